"""Attention of several tokens over the packed cache, block by block: a token in each lane.

Where all query heads of a key head find room beside those of the other tokens, they have lanes of their own: what is
read of the cache then serves them all, and few tokens take a fraction of the time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.attention import NO_SCORE, VECTOR_BYTES, first_visible, load_numbers
from turbospark_chat.models.kernels.exponential import exp
from turbospark_chat.models.kernels.layout import BLOCK, GROUP, TILE_ROWS, Context, Field

_N_TOKENS, _STRIDE, _POSITION = int(Context.N_TOKENS), int(Context.STRIDE), int(Context.POSITION)
_TILE_1, _MANY_GROUP = int(Context.TILE_1), int(Field.CHUNKS_MANY_GROUP)
_SCRATCH, _SCRATCH_BYTES = int(Context.SCRATCH), int(Context.SCRATCH_BYTES)


def make_attention_many(head_dim: int) -> Callable[[int, int, int, int], None]:
    """Return the kernel for several tokens: all query heads of a key head, for a group of tokens.

    It is as many chunks a group as there are key heads.
    Arguments: q, keys, values, their scales, capacity, y, query heads to a key head, window.
    """
    attend, pack, unpack = _make_attend(head_dim), _make_pack(head_dim), _make_unpack(head_dim)

    def attention_many(instruction: int, context: int, thread: int, chunk: int) -> None:
        n_heads, n_kv_heads = memory.argument(instruction, 7), memory.field(instruction, _MANY_GROUP)
        kv_head, columns = chunk % n_kv_heads, chunk // n_kv_heads * GROUP
        stride, n_tokens = memory.field(context, _STRIDE) * 4, memory.field(context, _N_TOKENS)
        first_head = kv_head * n_heads * head_dim * stride + 4 * columns
        q, y = memory.argument(instruction, 0) + first_head, memory.argument(instruction, 6) + first_head
        scratch = memory.field(context, _SCRATCH) + thread * memory.field(context, _SCRATCH_BYTES)
        if n_tokens * n_heads > GROUP:
            attend(instruction, context, scratch, kv_head, columns, q, y, stride, n_heads, 1)
            return
        packed_q, packed_y = scratch, scratch + head_dim * VECTOR_BYTES
        scratch = packed_y + head_dim * VECTOR_BYTES
        pack(q, stride, packed_q, n_heads, n_tokens)
        attend(instruction, context, scratch, kv_head, 0, packed_q, packed_y, VECTOR_BYTES, 1, n_heads)
        unpack(packed_y, y, stride, n_heads, n_tokens)

    return attention_many


def _make_attend(head_dim: int) -> Any:
    """Return the function that does so for query heads at q, each of which has `n_each` lanes for a token."""
    row_bytes = 4 * head_dim
    begin, widen_block, attend_block, divide = (
        make(head_dim) for make in (_make_begin, _make_widen_block, _make_attend_block, _make_divide)
    )

    @njit
    def attend(
        instruction: int, context: int, scratch: int, kv_head: int, columns: int, q: int, y: int, stride: int,
        n_heads: int, n_each: int,
    ) -> None:  # fmt: skip
        tile, window = memory.field(context, _TILE_1), memory.argument(instruction, 8)
        position = memory.field(context, _POSITION) + columns
        end = position + min(GROUP, memory.field(context, _N_TOKENS) - columns)
        keys, values = scratch, scratch + BLOCK * row_bytes
        scores = values + (BLOCK + TILE_ROWS) * row_bytes  # a tile of values may read on past their end
        states = scores + BLOCK * VECTOR_BYTES
        begin(states, y, stride, n_heads)
        for start in range(first_visible(position, window), end, BLOCK):
            n = min(BLOCK, end - start)
            n_past = position + 1 - start
            n_seeing = window - n_past + 1 if window else GROUP
            widen_block(instruction, kv_head * memory.argument(instruction, 5) + start, keys, values, n)
            for head in range(n_heads):
                rows, state = head * head_dim * stride, states + 2 * head * VECTOR_BYTES
                attend_block(
                    tile, q + rows, y + rows, stride, keys, values, scores, n, n_past, n_seeing, n_each, state
                )
        divide(states, y, stride, n_heads)

    return attend


def _make_begin(head_dim: int) -> Any:
    """Return the function that makes ready the largest score and divisor of every head, and its sums."""

    @njit
    def begin(states: int, y: int, stride: int, n_heads: int) -> None:
        for head in range(n_heads):
            v.store_floats(states + 2 * head * VECTOR_BYTES, v.splat(NO_SCORE))
            v.store_floats(states + (2 * head + 1) * VECTOR_BYTES, v.splat(np.float32(0)))
        for row in range(n_heads * head_dim):
            v.store_floats(y + row * stride, v.splat(np.float32(0)))

    return begin


def _make_divide(head_dim: int) -> Any:
    """Return the function that divides the sums of every head by its divisor."""

    @njit
    def divide(states: int, y: int, stride: int, n_heads: int) -> None:
        for head in range(n_heads):
            divisor = v.load_floats(states + (2 * head + 1) * VECTOR_BYTES)
            factor = v.div(v.splat(np.float32(1)), divisor)
            for row in range(head * head_dim, (head + 1) * head_dim):
                v.store_floats(y + row * stride, v.mul(v.load_floats(y + row * stride), factor))

    return divide


def _make_widen_block(head_dim: int) -> Any:
    """Return the function that decodes the keys and values of some positions to float32."""

    @njit
    def widen(numbers: int, scales: int, out: int, n: int) -> None:
        for index in range(n):
            factor = v.splat(v.load_float(scales + 4 * index))
            for offset in range(index * head_dim, (index + 1) * head_dim, v.LANES):
                v.store_floats(out + 4 * offset, v.mul(load_numbers(numbers + 2 * offset), factor))

    @njit
    def widen_block(instruction: int, row: int, keys: int, values: int, n: int) -> None:
        for items, scales, out in ((1, 3, keys), (2, 4, values)):
            numbers = memory.argument(instruction, items) + row * head_dim * 2
            widen(numbers, memory.argument(instruction, scales) + row * 4, out, n)

    return widen_block


def _make_attend_block(head_dim: int) -> Any:
    """Return the function that adds to a head's sums what its tokens see of a block."""
    row_bytes = 4 * head_dim
    soften = _make_soften(head_dim)

    @njit
    def score(tile: int, q: int, stride: int, keys: int, scores: int, n: int) -> None:
        for index in range(0, n, TILE_ROWS):
            n_rows = min(TILE_ROWS, n - index)
            out = scores + index * VECTOR_BYTES
            for row in range(n_rows):
                v.store_floats(out + row * VECTOR_BYTES, v.splat(np.float32(0)))
            keys_here = keys + index * row_bytes
            memory.call_tile(tile, keys_here, row_bytes, 4, q, stride, out, VECTOR_BYTES, head_dim, n_rows)

    @njit
    def weigh(tile: int, values: int, scores: int, y: int, stride: int, n: int) -> None:
        for index in range(0, head_dim, TILE_ROWS):
            n_rows, out = min(TILE_ROWS, head_dim - index), y + index * stride
            memory.call_tile(
                tile, values + 4 * index, 4, row_bytes, scores, VECTOR_BYTES, out, stride, n, n_rows
            )

    @njit
    def attend_block(
        tile: int, q: int, y: int, stride: int, keys: int, values: int, scores: int, n: int, n_past: int,
        n_seeing: int, n_each: int, state: int,
    ) -> None:  # fmt: skip
        score(tile, q, stride, keys, scores, n)
        older = soften(scores, n, n_past, n_seeing, n_each, state)
        for index in range(head_dim):
            v.store_floats(y + index * stride, v.mul(v.load_floats(y + index * stride), older))
        weigh(tile, values, scores, y, stride, n)

    return attend_block


def _make_soften(head_dim: int) -> Any:
    """Return the function that turns scores into weights, hiding from each token what it does not see.

    It returns what scales older sums. `n_past`: positions of this block that are no token's future. `n_seeing`: tokens,
    or more than there are, in whose windows the first position is; one token more sees each that follows.
    """
    scale = np.float32(head_dim**-0.5)

    @njit
    def soften(scores: int, n: int, n_past: int, n_seeing: int, n_each: int, state: int) -> Any:
        top = v.load_floats(state)
        new_top = top
        for index in range(n):
            score = v.mul(v.load_floats(scores + index * VECTOR_BYTES), v.splat(scale))
            if index >= n_past:
                score = v.replace_before(score, (index - n_past + 1) * n_each, NO_SCORE)
            if index + n_seeing < GROUP:
                score = v.replace_from(score, (index + n_seeing) * n_each, NO_SCORE)
            v.store_floats(scores + index * VECTOR_BYTES, score)
            new_top = v.larger(score, new_top)
        older = exp(v.sub(top, new_top))
        divisor = v.mul(v.load_floats(state + VECTOR_BYTES), older)
        for index in range(n):
            weight = exp(v.sub(v.load_floats(scores + index * VECTOR_BYTES), new_top))
            v.store_floats(scores + index * VECTOR_BYTES, weight)
            divisor = v.add(divisor, weight)
        v.store_floats(state, new_top)
        v.store_floats(state + VECTOR_BYTES, divisor)
        return older

    return soften


def _make_pack(head_dim: int) -> Any:
    """Return the function that gives every token and head a lane, the heads of a token side by side."""

    @njit
    def pack(q: int, stride: int, packed: int, n_heads: int, n_tokens: int) -> None:
        for index in range(head_dim):
            out = packed + index * VECTOR_BYTES
            v.store_floats(out, v.splat(np.float32(0)))
            for head in range(n_heads):
                row = q + (head * head_dim + index) * stride
                for token in range(n_tokens):
                    v.store_float(out + 4 * (token * n_heads + head), v.load_float(row + 4 * token))

    return pack


def _make_unpack(head_dim: int) -> Any:
    """Return the function that undoes that for the sums; lanes of no token are zero."""

    @njit
    def unpack(packed: int, y: int, stride: int, n_heads: int, n_tokens: int) -> None:
        for index in range(head_dim):
            for head in range(n_heads):
                row = y + (head * head_dim + index) * stride
                v.store_floats(row, v.splat(np.float32(0)))
                for token in range(n_tokens):
                    value = v.load_float(packed + index * VECTOR_BYTES + 4 * (token * n_heads + head))
                    v.store_float(row + 4 * token, value)

    return unpack
