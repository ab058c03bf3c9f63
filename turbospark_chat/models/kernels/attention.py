"""Causal attention over the packed cache: one token in pieces of the cache, several block by block.

Neither holds more than a block of scores: the largest so far and the sum are carried along, and what was summed
under an older largest score is scaled down. https://arxiv.org/abs/2205.14135

A window is how many positions a token sees, its own included, or 0 where it sees all. An address of a part of the
cache is that of position 0 of the first head, which need no longer be there: see `PackedKvCache.address`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.exponential import exp
from turbospark_chat.models.kernels.layout import BLOCK, GROUP, MAX_SPLITS, TILE_ROWS, Context, Field

_N_TOKENS, _STRIDE, _POSITION = int(Context.N_TOKENS), int(Context.STRIDE), int(Context.POSITION)
_TILE_1, _MANY_GROUP = int(Context.TILE_1), int(Field.CHUNKS_MANY_GROUP)
_SCRATCH, _SCRATCH_BYTES = int(Context.SCRATCH), int(Context.SCRATCH_BYTES)
_VECTOR_BYTES = 4 * v.LANES
_NONE = np.float32(-1e30)  # below any score; -inf minus -inf would be no number


@njit
def _load_numbers(address: int) -> Any:
    return v.to_floats(v.load_signed_shorts(address))


@njit
def _first_visible(position: int, window: int) -> Any:
    return max(0, position - window + 1) if window else 0


def make_attention_one(head_dim: int) -> Callable[[int, int, int, int], None]:
    """Return the kernel for one token: all query heads of a key head over a piece of what the token sees.

    It leaves its sum (Hd), its largest score and its divisor for `make_combine`. A piece may be empty.
    Arguments: q, keys, values, their scales, capacity, pieces (H, MAX_SPLITS, Hd + 2), query heads to a key head,
    window.
    """
    scale = np.float32(head_dim**-0.5)
    piece_bytes = 4 * (head_dim + 2)
    width = 4 if head_dim % (4 * v.LANES) == 0 else 1  # vectors summed side by side

    @njit
    def score_block(q: int, keys: int, scales: int, scores: int, n: int) -> Any:
        """Write the scores of up to BLOCK positions, padded to a vector, and return the largest."""
        for index in range(n):
            part = v.splat(np.float32(0))
            for offset in range(0, head_dim, v.LANES):
                part = v.fma(v.load_floats(q + 4 * offset), _load_numbers(keys + 2 * offset), part)
            v.store_float(scores + 4 * index, v.total(part) * scale * v.load_float(scales + 4 * index))
            keys += 2 * head_dim
        for index in range(n, (n + v.LANES - 1) // v.LANES * v.LANES):
            v.store_float(scores + 4 * index, _NONE)
        top = v.splat(_NONE)
        for offset in range(0, 4 * n, _VECTOR_BYTES):
            top = v.larger(v.load_floats(scores + offset), top)
        return v.largest_lane(top)

    @njit
    def weigh_block(scores: int, values: int, scales: int, out: int, n: int, older: float) -> None:
        """Scale what was summed by `older` and add the values times their scores."""
        for offset in range(0, head_dim, width * v.LANES):
            factor = v.splat(older)
            a = v.mul(v.load_floats(out + 4 * offset), factor)
            b = c = d = v.splat(np.float32(0))
            if width == 4:
                b = v.mul(v.load_floats(out + 4 * offset + 64), factor)
                c = v.mul(v.load_floats(out + 4 * offset + 128), factor)
                d = v.mul(v.load_floats(out + 4 * offset + 192), factor)
            for index in range(n):
                weight = v.splat(v.load_float(scores + 4 * index) * v.load_float(scales + 4 * index))
                row = values + (index * head_dim + offset) * 2
                a = v.fma(weight, _load_numbers(row), a)
                if width == 4:
                    b = v.fma(weight, _load_numbers(row + 32), b)
                    c = v.fma(weight, _load_numbers(row + 64), c)
                    d = v.fma(weight, _load_numbers(row + 96), d)
            v.store_floats(out + 4 * offset, a)
            if width == 4:
                v.store_floats(out + 4 * offset + 64, b)
                v.store_floats(out + 4 * offset + 128, c)
                v.store_floats(out + 4 * offset + 192, d)

    @njit
    def attend_piece(
        q: int, keys: int, values: int, key_scales: int, value_scales: int, out: int, scores: int, n: int
    ) -> None:
        for offset in range(0, head_dim, v.LANES):
            v.store_floats(out + 4 * offset, v.splat(np.float32(0)))
        top, divisor = _NONE, np.float32(0)
        for start in range(0, n, BLOCK):
            n_here = min(BLOCK, n - start)
            row = start * head_dim * 2
            new_top = max(top, score_block(q, keys + row, key_scales + 4 * start, scores, n_here))
            sums = v.splat(np.float32(0))
            for offset in range(0, 4 * n_here, _VECTOR_BYTES):
                weights = exp(v.sub(v.load_floats(scores + offset), v.splat(new_top)))
                v.store_floats(scores + offset, weights)
                sums = v.add(sums, weights)
            older = np.exp(top - new_top)
            divisor = divisor * older + v.total(sums)
            weigh_block(scores, values + row, value_scales + 4 * start, out, n_here, older)
            top = new_top
        v.store_float(out + 4 * head_dim, top)
        v.store_float(out + 4 * head_dim + 4, divisor)

    def attention_one(instruction: int, context: int, thread: int, chunk: int) -> None:
        position, n_pieces = memory.field(context, _POSITION), memory.n_splits(context)
        kv_head, piece = chunk // n_pieces, chunk % n_pieces
        first_visible = _first_visible(position, memory.argument(instruction, 8))
        length = (position - first_visible + n_pieces) // n_pieces
        first = first_visible + piece * length
        n = min(length, position + 1 - first)
        row = kv_head * memory.argument(instruction, 5) + first
        keys = memory.argument(instruction, 1) + row * head_dim * 2
        values = memory.argument(instruction, 2) + row * head_dim * 2
        key_scales = memory.argument(instruction, 3) + row * 4
        value_scales = memory.argument(instruction, 4) + row * 4
        scores = memory.field(context, _SCRATCH) + thread * memory.field(context, _SCRATCH_BYTES)
        group = memory.argument(instruction, 7)
        for head in range(kv_head * group, (kv_head + 1) * group):
            q = memory.argument(instruction, 0) + head * head_dim * 4
            out = memory.argument(instruction, 6) + (head * MAX_SPLITS + piece) * piece_bytes
            attend_piece(q, keys, values, key_scales, value_scales, out, scores, n)

    return attention_one


def make_combine(head_dim: int) -> Callable[[int, int, int, int], None]:
    """Return the kernel that puts the pieces of a head together. Arguments: pieces, y."""
    piece_bytes = 4 * (head_dim + 2)

    def combine(instruction: int, context: int, thread: int, chunk: int) -> None:
        pieces = memory.argument(instruction, 0) + chunk * MAX_SPLITS * piece_bytes
        y = memory.argument(instruction, 1) + chunk * head_dim * 4
        n_pieces = memory.n_splits(context)
        top = _NONE
        for piece in range(n_pieces):
            top = max(top, v.load_float(pieces + piece * piece_bytes + 4 * head_dim))
        divisor = np.float32(0)
        for piece in range(n_pieces):
            start = pieces + piece * piece_bytes
            share = np.exp(v.load_float(start + 4 * head_dim) - top)
            divisor += share * v.load_float(start + 4 * head_dim + 4)
            for offset in range(0, 4 * head_dim, _VECTOR_BYTES):
                older = v.load_floats(y + offset) if piece else v.splat(np.float32(0))
                v.store_floats(y + offset, v.fma(v.load_floats(start + offset), v.splat(share), older))
        for offset in range(0, 4 * head_dim, _VECTOR_BYTES):
            v.store_floats(y + offset, v.mul(v.load_floats(y + offset), v.splat(np.float32(1) / divisor)))

    return combine


def make_attention_many(head_dim: int) -> Callable[[int, int, int, int], None]:
    """Return the kernel for several tokens: all query heads of a key head, for a group of tokens.

    It is as many chunks a group as there are key heads.
    Arguments: q, keys, values, their scales, capacity, y, query heads to a key head, window.
    """
    scale = np.float32(head_dim**-0.5)
    row_bytes = 4 * head_dim

    @njit
    def widen(numbers: int, scales: int, out: int, n: int) -> None:
        for index in range(n):
            factor = v.splat(v.load_float(scales + 4 * index))
            for offset in range(index * head_dim, (index + 1) * head_dim, v.LANES):
                v.store_floats(out + 4 * offset, v.mul(_load_numbers(numbers + 2 * offset), factor))

    @njit
    def score_block(tile: int, q: int, stride: int, keys: int, scores: int, n: int) -> None:
        for index in range(0, n, TILE_ROWS):
            n_rows = min(TILE_ROWS, n - index)
            out = scores + index * _VECTOR_BYTES
            for row in range(n_rows):
                v.store_floats(out + row * _VECTOR_BYTES, v.splat(np.float32(0)))
            keys_here = keys + index * row_bytes
            memory.call_tile(tile, keys_here, row_bytes, 4, q, stride, out, _VECTOR_BYTES, head_dim, n_rows)

    @njit
    def soften(scores: int, n: int, n_past: int, n_seeing: int, state: int) -> Any:
        """Turn scores into weights, hiding from each token what it does not see; return what scales older sums.

        `n_past`: positions of this block that are no token's future. `n_seeing`: tokens, or more than there are, in
        whose windows the first position is; one token more sees each that follows.
        """
        top = v.load_floats(state)
        new_top = top
        for index in range(n):
            score = v.mul(v.load_floats(scores + index * _VECTOR_BYTES), v.splat(scale))
            if index >= n_past:
                score = v.replace_before(score, index - n_past + 1, _NONE)
            if index + n_seeing < GROUP:
                score = v.replace_from(score, index + n_seeing, _NONE)
            v.store_floats(scores + index * _VECTOR_BYTES, score)
            new_top = v.larger(score, new_top)
        older = exp(v.sub(top, new_top))
        divisor = v.mul(v.load_floats(state + _VECTOR_BYTES), older)
        for index in range(n):
            weight = exp(v.sub(v.load_floats(scores + index * _VECTOR_BYTES), new_top))
            v.store_floats(scores + index * _VECTOR_BYTES, weight)
            divisor = v.add(divisor, weight)
        v.store_floats(state, new_top)
        v.store_floats(state + _VECTOR_BYTES, divisor)
        return older

    @njit
    def scale_rows(y: int, stride: int, factor: Any) -> None:
        for index in range(head_dim):
            v.store_floats(y + index * stride, v.mul(v.load_floats(y + index * stride), factor))

    @njit
    def clear_rows(y: int, stride: int) -> None:
        for index in range(head_dim):
            v.store_floats(y + index * stride, v.splat(np.float32(0)))

    @njit
    def weigh_block(tile: int, values: int, scores: int, y: int, stride: int, n: int) -> None:
        for index in range(0, head_dim, TILE_ROWS):
            n_rows = min(TILE_ROWS, head_dim - index)
            out = y + index * stride
            memory.call_tile(
                tile, values + 4 * index, 4, row_bytes, scores, _VECTOR_BYTES, out, stride, n, n_rows
            )

    def attention_many(instruction: int, context: int, thread: int, chunk: int) -> None:
        n_heads, n_kv_heads = memory.argument(instruction, 7), memory.field(instruction, _MANY_GROUP)
        kv_head, columns = chunk % n_kv_heads, chunk // n_kv_heads * GROUP
        stride, tile = memory.field(context, _STRIDE) * 4, memory.field(context, _TILE_1)
        position, window = memory.field(context, _POSITION) + columns, memory.argument(instruction, 8)
        end = position + min(GROUP, memory.field(context, _N_TOKENS) - columns)
        first_row = kv_head * memory.argument(instruction, 5)
        keys = memory.field(context, _SCRATCH) + thread * memory.field(context, _SCRATCH_BYTES)
        values = keys + BLOCK * row_bytes
        scores = values + (BLOCK + TILE_ROWS) * row_bytes  # a tile of values may read on past their end
        states = scores + BLOCK * _VECTOR_BYTES
        first_head = kv_head * n_heads * head_dim * stride + 4 * columns
        q, y = memory.argument(instruction, 0) + first_head, memory.argument(instruction, 6) + first_head
        for head in range(n_heads):
            v.store_floats(states + 2 * head * _VECTOR_BYTES, v.splat(_NONE))
            v.store_floats(states + (2 * head + 1) * _VECTOR_BYTES, v.splat(np.float32(0)))
            clear_rows(y + head * head_dim * stride, stride)
        for start in range(_first_visible(position, window), end, BLOCK):
            n = min(BLOCK, end - start)
            n_past = position + 1 - start
            n_seeing = window - n_past + 1 if window else GROUP
            row = first_row + start
            for items, scales, out in ((1, 3, keys), (2, 4, values)):
                widen(
                    memory.argument(instruction, items) + row * head_dim * 2,
                    memory.argument(instruction, scales) + row * 4,
                    out,
                    n,
                )
            for head in range(n_heads):
                rows = head * head_dim * stride
                score_block(tile, q + rows, stride, keys, scores, n)
                older = soften(scores, n, n_past, n_seeing, states + 2 * head * _VECTOR_BYTES)
                scale_rows(y + rows, stride, older)
                weigh_block(tile, values, scores, y + rows, stride, n)
        for head in range(n_heads):
            divisor = v.load_floats(states + (2 * head + 1) * _VECTOR_BYTES)
            rows = y + head * head_dim * stride
            scale_rows(rows, stride, v.div(v.splat(np.float32(1)), divisor))

    return attention_many
