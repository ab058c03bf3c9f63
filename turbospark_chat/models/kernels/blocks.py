"""The block formats of GGUF as numba code: each decodes 32 values of a block at a time, to two vectors.

The layouts are those of `quants`, which says where they come from. `part` counts the runs of 32 within a block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.layout import PART
from turbospark_chat.models.quants import FORMATS, GgmlType

PART_BYTES = PART * 4  # of them as float32


@njit
def _scaled(low: Any, high: Any, scale: float) -> Any:
    factor = v.splat(scale)
    return v.mul(v.to_floats(low), factor), v.mul(v.to_floats(high), factor)


@njit
def _scaled_apart(low: Any, high: Any, scale_low: float, scale_high: float) -> Any:
    return v.mul(v.to_floats(low), v.splat(scale_low)), v.mul(v.to_floats(high), v.splat(scale_high))


@njit
def _scaled_and_moved(low: Any, high: Any, scale: float, offset: float) -> Any:
    factor, term = v.splat(scale), v.splat(offset)
    return v.fma(v.to_floats(low), factor, term), v.fma(v.to_floats(high), factor, term)


@njit
def _nibbles(address: int) -> Any:
    both = v.load_bytes(address)
    return v.keep_bits(both, 15), v.shift_right(both, 4)


@njit
def _five_bits(nibbles: int, fifths: int) -> Any:
    low, high = _nibbles(nibbles)
    bits = v.load_int32(fifths)
    return (
        v.join_bits(low, v.shift_left(v.bits_by_lane(bits), 4)),
        v.join_bits(high, v.shift_left(v.bits_by_lane(bits >> 16), 4)),
    )


@njit
def _fields(address: int, shift: int, bits: int) -> Any:
    """The same few bits of each of 32 bytes."""
    low, high = v.load_bytes(address), v.load_bytes(address + 16)
    return v.keep_bits(v.shift_right(low, shift), bits), v.keep_bits(v.shift_right(high, shift), bits)


@njit
def _with_upper(values: Any, upper: Any, n_bits: int) -> Any:
    """Put further bits on top of fields of `n_bits`."""
    return (
        v.join_bits(values[0], v.shift_left(upper[0], n_bits)),
        v.join_bits(values[1], v.shift_left(upper[1], n_bits)),
    )


@njit
def _f32(block: int, part: int) -> Any:
    return v.load_floats(block), v.load_floats(block + 64)


@njit
def _f16(block: int, part: int) -> Any:
    return v.load_halves(block), v.load_halves(block + 32)


@njit
def _bf16(block: int, part: int) -> Any:
    return (
        v.as_floats(v.shift_left(v.load_shorts(block), 16)),
        v.as_floats(v.shift_left(v.load_shorts(block + 32), 16)),
    )


@njit
def _q4_0(block: int, part: int) -> Any:
    low, high = _nibbles(block + 2)
    return _scaled(v.plus(low, -8), v.plus(high, -8), v.load_half(block))


@njit
def _q4_1(block: int, part: int) -> Any:
    low, high = _nibbles(block + 4)
    return _scaled_and_moved(low, high, v.load_half(block), v.load_half(block + 2))


@njit
def _q5_0(block: int, part: int) -> Any:
    low, high = _five_bits(block + 6, block + 2)
    return _scaled(v.plus(low, -16), v.plus(high, -16), v.load_half(block))


@njit
def _q5_1(block: int, part: int) -> Any:
    low, high = _five_bits(block + 8, block + 4)
    return _scaled_and_moved(low, high, v.load_half(block), v.load_half(block + 2))


@njit
def _q8_0(block: int, part: int) -> Any:
    low, high = v.load_signed_bytes(block + 2), v.load_signed_bytes(block + 18)
    return _scaled(low, high, v.load_half(block))


@njit
def _q2_k(block: int, part: int) -> Any:
    low, high = _fields(block + 16 + part // 4 * 32, part % 4 * 2, 3)
    d, d_min = v.load_half(block + 80), v.load_half(block + 82)
    first, second = v.load_byte(block + 2 * part), v.load_byte(block + 2 * part + 1)
    return (
        v.fma(
            v.to_floats(low), v.splat(d * np.float32(first & 15)), v.splat(-d_min * np.float32(first >> 4))
        ),
        v.fma(
            v.to_floats(high), v.splat(d * np.float32(second & 15)), v.splat(-d_min * np.float32(second >> 4))
        ),
    )


@njit
def _q3_scale(scales: int, index: int) -> Any:
    low = v.load_byte(scales + index % 8) >> (index // 8 * 4) & 15
    high = v.load_byte(scales + 8 + index % 4) >> (index // 4 * 2) & 3
    return np.float32((low | high << 4) - 32)


@njit
def _q3_k(block: int, part: int) -> Any:
    values = _fields(block + 32 + part // 4 * 32, part % 4 * 2, 3)
    low, high = _with_upper(values, _fields(block, part, 1), 2)
    d = v.load_half(block + 108)
    return _scaled_apart(
        v.plus(low, -4),
        v.plus(high, -4),
        d * _q3_scale(block + 96, 2 * part),
        d * _q3_scale(block + 96, 2 * part + 1),
    )


@njit
def _scale_and_min(scales: int, index: int) -> Any:
    """The 6-bit scale and min of Q4_K and Q5_K, as `quants` describes them."""
    if index < 4:
        return v.load_byte(scales + index) & 63, v.load_byte(scales + 4 + index) & 63
    first, second = v.load_byte(scales + index - 4), v.load_byte(scales + index)
    third = v.load_byte(scales + 4 + index)
    return third & 15 | first >> 6 << 4, third >> 4 | second >> 6 << 4


@njit
def _scaled_by_eighths(values: Any, block: int, part: int) -> Any:
    scale, least = _scale_and_min(block + 4, part)
    d, d_min = v.load_half(block), v.load_half(block + 2)
    return _scaled_and_moved(values[0], values[1], d * np.float32(scale), -d_min * np.float32(least))


@njit
def _q4_k(block: int, part: int) -> Any:
    return _scaled_by_eighths(_fields(block + 16 + part // 2 * 32, part % 2 * 4, 15), block, part)


@njit
def _q5_k(block: int, part: int) -> Any:
    values = _fields(block + 48 + part // 2 * 32, part % 2 * 4, 15)
    return _scaled_by_eighths(_with_upper(values, _fields(block + 16, part, 1), 4), block, part)


@njit
def _q6_k(block: int, part: int) -> Any:
    half, quarter = part // 4, part % 4
    values = _fields(block + half * 64 + quarter % 2 * 32, quarter // 2 * 4, 15)
    low, high = _with_upper(values, _fields(block + 128 + half * 32, quarter * 2, 3), 4)
    d, scales = v.load_half(block + 208), block + 192 + 2 * part
    return _scaled_apart(
        v.plus(low, -32),
        v.plus(high, -32),
        d * np.float32(v.load_signed_byte(scales)),
        d * np.float32(v.load_signed_byte(scales + 1)),
    )


@dataclass(frozen=True, slots=True)
class BlockCode:
    """A format for kernels: `decode(block, part)` gives two vectors, the 32 values of that part."""

    decode: Callable[[int, int], Any]
    n_bytes: int  # of a block
    n_parts: int  # in a block


def _code(ggml_type: GgmlType, decode: Any) -> BlockCode:
    block_format = FORMATS[ggml_type]
    length = max(block_format.length, PART)  # plain numbers come in parts of 32 as well
    return BlockCode(decode, block_format.layout.itemsize * length // block_format.length, length // PART)


BLOCK_CODES: Final[Mapping[GgmlType, BlockCode]] = {
    ggml_type: _code(ggml_type, decode)
    for ggml_type, decode in {
        GgmlType.F32: _f32,
        GgmlType.F16: _f16,
        GgmlType.BF16: _bf16,
        GgmlType.Q4_0: _q4_0,
        GgmlType.Q4_1: _q4_1,
        GgmlType.Q5_0: _q5_0,
        GgmlType.Q5_1: _q5_1,
        GgmlType.Q8_0: _q8_0,
        GgmlType.Q2_K: _q2_k,
        GgmlType.Q3_K: _q3_k,
        GgmlType.Q4_K: _q4_k,
        GgmlType.Q5_K: _q5_k,
        GgmlType.Q6_K: _q6_k,
    }.items()
}
