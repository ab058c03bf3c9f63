"""Attention of a single token over the packed cache: in pieces, which threads take one by one, and their sum."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.attention import NO_SCORE, VECTOR_BYTES, first_visible, load_numbers
from turbospark_chat.models.kernels.exponential import exp
from turbospark_chat.models.kernels.layout import BLOCK, MAX_SPLITS, Context

_POSITION = int(Context.POSITION)
_SCRATCH, _SCRATCH_BYTES = int(Context.SCRATCH), int(Context.SCRATCH_BYTES)


def _make_score_block(head_dim: int) -> Any:
    """Return the function that writes the scores of up to BLOCK positions, and of none up to a whole vector.

    It returns the largest.
    """
    scale = np.float32(head_dim**-0.5)

    @njit
    def score_block(q: int, keys: int, scales: int, scores: int, n: int) -> Any:
        for index in range(n):
            part = v.splat(np.float32(0))
            for offset in range(0, head_dim, v.LANES):
                part = v.fma(v.load_floats(q + 4 * offset), load_numbers(keys + 2 * offset), part)
            v.store_float(scores + 4 * index, v.total(part) * scale * v.load_float(scales + 4 * index))
            keys += 2 * head_dim
        for index in range(n, (n + v.LANES - 1) // v.LANES * v.LANES):
            v.store_float(scores + 4 * index, NO_SCORE)
        top = v.splat(NO_SCORE)
        for offset in range(0, 4 * n, VECTOR_BYTES):
            top = v.larger(v.load_floats(scores + offset), top)
        return v.largest_lane(top)

    return score_block


def _make_weigh_block(head_dim: int) -> Any:
    """Return the function that scales what was summed by `older` and adds the values times their scores."""
    width = 4 if head_dim % (4 * v.LANES) == 0 else 1  # vectors summed side by side

    @njit
    def weigh_block(scores: int, values: int, scales: int, out: int, n: int, older: float) -> None:
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
                a = v.fma(weight, load_numbers(row), a)
                if width == 4:
                    b = v.fma(weight, load_numbers(row + 32), b)
                    c = v.fma(weight, load_numbers(row + 64), c)
                    d = v.fma(weight, load_numbers(row + 96), d)
            v.store_floats(out + 4 * offset, a)
            if width == 4:
                v.store_floats(out + 4 * offset + 64, b)
                v.store_floats(out + 4 * offset + 128, c)
                v.store_floats(out + 4 * offset + 192, d)

    return weigh_block


def _make_attend_piece(head_dim: int) -> Any:
    """Return the function that attends to `n` positions and leaves its sum, its largest score and its divisor."""
    score_block, weigh_block = _make_score_block(head_dim), _make_weigh_block(head_dim)

    @njit
    def attend_piece(
        q: int, keys: int, values: int, key_scales: int, value_scales: int, out: int, scores: int, n: int
    ) -> None:
        for offset in range(0, head_dim, v.LANES):
            v.store_floats(out + 4 * offset, v.splat(np.float32(0)))
        top, divisor = NO_SCORE, np.float32(0)
        for start in range(0, n, BLOCK):
            n_here = min(BLOCK, n - start)
            row = start * head_dim * 2
            new_top = max(top, score_block(q, keys + row, key_scales + 4 * start, scores, n_here))
            sums = v.splat(np.float32(0))
            for offset in range(0, 4 * n_here, VECTOR_BYTES):
                weights = exp(v.sub(v.load_floats(scores + offset), v.splat(new_top)))
                v.store_floats(scores + offset, weights)
                sums = v.add(sums, weights)
            older = np.exp(top - new_top)
            divisor = divisor * older + v.total(sums)
            weigh_block(scores, values + row, value_scales + 4 * start, out, n_here, older)
            top = new_top
        v.store_float(out + 4 * head_dim, top)
        v.store_float(out + 4 * head_dim + 4, divisor)

    return attend_piece


def make_attention_one(head_dim: int) -> Callable[[int, int, int, int], None]:
    """Return the kernel for one token: all query heads of a key head over a piece of what the token sees.

    It leaves its sum (Hd), its largest score and its divisor for `make_combine`. A piece may be empty.
    Arguments: q, keys, values, their scales, capacity, pieces (H, MAX_SPLITS, Hd + 2), query heads to a key head,
    window.
    """
    piece_bytes = 4 * (head_dim + 2)
    attend_piece = _make_attend_piece(head_dim)

    def attention_one(instruction: int, context: int, thread: int, chunk: int) -> None:
        position, n_pieces = memory.field(context, _POSITION), memory.n_splits(context)
        kv_head, piece = chunk // n_pieces, chunk % n_pieces
        seen_from = first_visible(position, memory.argument(instruction, 8))
        length = (position - seen_from + n_pieces) // n_pieces
        first = seen_from + piece * length
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
        top = NO_SCORE
        for piece in range(n_pieces):
            top = max(top, v.load_float(pieces + piece * piece_bytes + 4 * head_dim))
        divisor = np.float32(0)
        for piece in range(n_pieces):
            start = pieces + piece * piece_bytes
            share = np.exp(v.load_float(start + 4 * head_dim) - top)
            divisor += share * v.load_float(start + 4 * head_dim + 4)
            for offset in range(0, 4 * head_dim, VECTOR_BYTES):
                older = v.load_floats(y + offset) if piece else v.splat(np.float32(0))
                v.store_floats(y + offset, v.fma(v.load_floats(start + offset), v.splat(share), older))
        for offset in range(0, 4 * head_dim, VECTOR_BYTES):
            v.store_floats(y + offset, v.mul(v.load_floats(y + offset), v.splat(np.float32(1) / divisor)))

    return combine
