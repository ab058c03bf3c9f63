"""Products with quantised weights: one token or a few straight from the blocks, more over rows decoded once.

Arguments: weight, x, y, rows, blocks a row, bias or 0, rows a chunk for one token or a few and for more, x token-major.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.blocks import BLOCK_CODES, PART_BYTES
from turbospark_chat.models.kernels.few import make_multiply_few
from turbospark_chat.models.kernels.layout import AHEAD, GROUP, PART, TILE_ROWS, Context
from turbospark_chat.models.quants import GgmlType

_N_TOKENS, _STRIDE = int(Context.N_TOKENS), int(Context.STRIDE)
_SCRATCH, _SCRATCH_BYTES = int(Context.SCRATCH), int(Context.SCRATCH_BYTES)
_TILE_1, _TILE_2, _TILE_4 = int(Context.TILE_1), int(Context.TILE_2), int(Context.TILE_4)
_TOKENS = int(Context.TOKENS)


def make_decode_row(ggml_type: GgmlType) -> Any:
    """Return a function that writes a row of a tensor as float32."""
    code = BLOCK_CODES[ggml_type]
    decode, n_bytes, n_parts = code.decode, code.n_bytes, code.n_parts

    @njit
    def decode_row(row: int, n_blocks: int, out: int) -> None:
        for block in range(n_blocks):
            v.prefetch(row + block * n_bytes + AHEAD)
            for part in range(n_parts):
                low, high = decode(row + block * n_bytes, part)
                v.store_floats(out, low)
                v.store_floats(out + PART_BYTES // 2, high)
                out += PART_BYTES

    return decode_row


def _make_dot_rows(ggml_type: GgmlType) -> Any:
    """Return a function that multiplies two rows with one vector: what is read of it serves both."""
    code = BLOCK_CODES[ggml_type]
    decode, n_bytes, n_parts = code.decode, code.n_bytes, code.n_parts

    @njit
    def dot_rows(first: int, second: int, x: int, n_blocks: int) -> Any:
        zero = v.splat(np.float32(0))
        a, b, c, d = zero, zero, zero, zero
        for block in range(n_blocks):
            offset = block * n_bytes
            v.prefetch(first + offset + AHEAD)
            v.prefetch(second + offset + AHEAD)
            for part in range(n_parts):
                x_low, x_high = v.load_floats(x), v.load_floats(x + PART_BYTES // 2)
                low, high = decode(first + offset, part)
                a, b = v.fma(low, x_low, a), v.fma(high, x_high, b)
                low, high = decode(second + offset, part)
                c, d = v.fma(low, x_low, c), v.fma(high, x_high, d)
                x += PART_BYTES
        return v.total(v.add(a, b)), v.total(v.add(c, d))

    return dot_rows


@njit
def _multiply_tile(context: int, scratch: int, n_k: int, x: int, y: int, n_rows: int) -> None:
    """Multiply decoded rows with every group of tokens, as many groups at once as there is a tile for."""
    row_bytes = memory.field(context, _STRIDE) * 4
    n_groups = (memory.field(context, _N_TOKENS) + GROUP - 1) // GROUP
    group = 0
    while group < n_groups:
        left = n_groups - group
        step = 4 if left >= 4 else 2 if left >= 2 else 1
        tile = memory.field(context, _TILE_4 if step == 4 else _TILE_2 if step == 2 else _TILE_1)
        columns = group * GROUP * 4
        memory.call_tile(
            tile, scratch, n_k * 4, 4, x + columns, row_bytes, y + columns, row_bytes, n_k, n_rows
        )
        group += step


def make_linear(ggml_type: GgmlType) -> Callable[[int, int, int, int], None]:
    """Return the kernel for weights of a format."""
    dot_rows, decode_row = _make_dot_rows(ggml_type), make_decode_row(ggml_type)
    multiply_few = make_multiply_few(ggml_type)
    n_bytes, n_parts = BLOCK_CODES[ggml_type].n_bytes, BLOCK_CODES[ggml_type].n_parts

    @njit
    def multiply_one(w: int, x: int, y: int, first: int, last: int, n_blocks: int, bias: int) -> None:
        row_bytes = n_blocks * n_bytes
        for row in range(first, last, 2):
            following = min(row + 1, last - 1)  # at the end of an odd number, the same once more
            one, two = dot_rows(w + row * row_bytes, w + following * row_bytes, x, n_blocks)
            v.store_float(y + 4 * following, two + memory.optional_float(bias, following))
            v.store_float(y + 4 * row, one + memory.optional_float(bias, row))

    @njit
    def multiply_many(
        context: int, scratch: int, w: int, x: int, y: int, first: int, last: int, n_blocks: int, bias: int
    ) -> None:
        stride = memory.field(context, _STRIDE)
        n_k = n_blocks * n_parts * PART
        for tile_start in range(first, last, TILE_ROWS):
            n_rows = min(TILE_ROWS, last - tile_start)
            for row in range(tile_start, tile_start + n_rows):
                decode_row(w + row * n_blocks * n_bytes, n_blocks, scratch + (row - tile_start) * n_k * 4)
                start = v.splat(memory.optional_float(bias, row))
                for token in range(0, stride, GROUP):
                    v.store_floats(y + (row * stride + token) * 4, start)
            _multiply_tile(context, scratch, n_k, x, y + tile_start * stride * 4, n_rows)

    def linear(instruction: int, context: int, thread: int, chunk: int) -> None:
        w, x, y = (
            memory.argument(instruction, 0),
            memory.argument(instruction, 1),
            memory.argument(instruction, 2),
        )
        n_rows, n_blocks = memory.argument(instruction, 3), memory.argument(instruction, 4)
        bias = memory.argument(instruction, 5)
        is_single = memory.is_single(instruction, context)
        n_chunk = memory.argument(instruction, 6 if is_single or memory.is_few(context) else 7)
        first = chunk * n_chunk
        last = min(first + n_chunk, n_rows)
        if is_single:
            multiply_one(w, x, y, first, last, n_blocks, bias)
        elif memory.is_few(context):
            n_tokens, by_token = memory.field(context, _N_TOKENS), memory.argument(instruction, 8)
            multiply_few(n_tokens, w, by_token, y, first, last, n_blocks, bias)
        else:
            scratch = memory.field(context, _SCRATCH) + thread * memory.field(context, _SCRATCH_BYTES)
            multiply_many(context, scratch, w, x, y, first, last, n_blocks, bias)

    return linear


def make_embed(ggml_type: GgmlType) -> Callable[[int, int, int, int], None]:
    """Return the kernel that looks up the token of a chunk; past the last one it writes zeros.

    Arguments: table, y, blocks a row.
    """
    decode_row, code = make_decode_row(ggml_type), BLOCK_CODES[ggml_type]
    n_bytes, n_parts = code.n_bytes, code.n_parts

    def embed(instruction: int, context: int, thread: int, chunk: int) -> None:
        n_blocks, y = memory.argument(instruction, 2), memory.argument(instruction, 1)
        n_features, stride = n_blocks * n_parts * PART, memory.field(context, _STRIDE)
        scratch = memory.field(context, _SCRATCH) + thread * memory.field(context, _SCRATCH_BYTES)
        is_token = chunk < memory.field(context, _N_TOKENS)
        if is_token:
            token = memory.field(memory.field(context, _TOKENS), chunk)
            decode_row(memory.argument(instruction, 0) + token * n_blocks * n_bytes, n_blocks, scratch)
        for index in range(n_features):
            value = v.load_float(scratch + 4 * index) if is_token else np.float32(0)
            v.store_float(y + (index * stride + chunk) * 4, value)

    return embed
