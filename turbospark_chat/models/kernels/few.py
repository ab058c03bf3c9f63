"""Products of quantised weights with a few tokens, straight from the blocks: what is decoded serves all of them.

Each token gets what it would get alone, in the same order. One row at a time: the registers hold no more sums.
"""

from typing import Any

from numba import njit

from turbospark_chat.models.kernels import memory, sums
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.blocks import BLOCK_CODES, PART_BYTES
from turbospark_chat.models.kernels.layout import AHEAD, FEW, GROUP
from turbospark_chat.models.quants import GgmlType

_Y_ROW = 4 * GROUP  # bytes: no few tokens need more than one group


def make_multiply_few(ggml_type: GgmlType) -> Any:
    """Return the function that multiplies rows with two to FEW tokens.

    Arguments: tokens, weight, x (FEW, features), y (rows, GROUP), first and last row, blocks a row, bias or 0.
    """
    multiply_2, multiply_4, multiply_8 = (_make_multiply(ggml_type, n) for n in (FEW // 4, FEW // 2, FEW))

    @njit
    def multiply_few(
        n_tokens: int, w: int, x: int, y: int, first: int, last: int, n_blocks: int, bias: int
    ) -> None:
        if n_tokens <= FEW // 4:
            multiply_2(w, x, y, first, last, n_blocks, bias)
        elif n_tokens <= FEW // 2:
            multiply_4(w, x, y, first, last, n_blocks, bias)
        else:
            multiply_8(w, x, y, first, last, n_blocks, bias)

    return multiply_few


def _make_multiply(ggml_type: GgmlType, n_tokens: int) -> Any:
    """Return the function for exactly so many tokens; the lanes of y behind them get the bias alone."""
    dot_row, n_bytes = _make_dot_row(ggml_type, n_tokens), BLOCK_CODES[ggml_type].n_bytes

    @njit
    def multiply(w: int, x: int, y: int, first: int, last: int, n_blocks: int, bias: int) -> None:
        row_bytes = n_blocks * n_bytes
        for row in range(first, last):
            start = v.splat(memory.optional_float(bias, row))
            v.store_floats(y + row * _Y_ROW, v.add(dot_row(w + row * row_bytes, x, n_blocks), start))

    return multiply


def _make_dot_row(ggml_type: GgmlType, n_tokens: int) -> Any:
    """Return the function that multiplies a row with every token, a lane each."""
    code = BLOCK_CODES[ggml_type]
    decode, n_bytes, n_parts = code.decode, code.n_bytes, code.n_parts
    zeros, fma_rows, totals = (
        make(n_tokens) for make in (sums.make_zeros, sums.make_fma_rows, sums.make_totals)
    )

    @njit
    def dot_row(row: int, x: int, n_blocks: int) -> Any:
        low_sums, high_sums = zeros(), zeros()
        x_row = n_blocks * n_parts * PART_BYTES
        for block in range(n_blocks):
            v.prefetch(row + block * n_bytes + AHEAD)
            for part in range(n_parts):
                low, high = decode(row + block * n_bytes, part)
                low_sums = fma_rows(low_sums, low, x, x_row)
                high_sums = fma_rows(high_sums, high, x + PART_BYTES // 2, x_row)
                x += PART_BYTES
        return totals(low_sums, high_sums)

    return dot_row
