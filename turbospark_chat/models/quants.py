"""The block formats of GGUF tensors, and their values as float32.

Owns the layout of a block and its arithmetic. Knows no file, no tensor name and no model. A layout is the
`block_*` struct of the same name in ggml's ggml-common.h; the values equal the `gguf` package's bit for bit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Blocks = NDArray[Any]  # (N,) elements of a format's layout

_VALUES_AT_A_TIME = 1 << 16  # keeps temporaries inside the cache, and small beside the result


class GgmlType(IntEnum):
    """The tensor types this program reads, by their number in a file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a tensor type stores each run of `length` values of a row."""

    length: int  # values a block
    layout: np.dtype[Any]  # the bytes of a block
    decode: Callable[[Blocks], Floats]  # (N,) blocks to N * length values in order, in any shape

    def size_of(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor of `shape`.

        Raises:
            ValueError: a row is not a whole number of blocks.
        """
        row_length = shape[-1] if shape else 1
        if row_length % self.length:
            raise ValueError(f"a row of {row_length} values is not a whole number of blocks of {self.length}")
        return math.prod(shape) // self.length * self.layout.itemsize


def dequantize(data: Bytes, ggml_type: int, shape: tuple[int, ...]) -> Floats:
    """Return a tensor's values as a new float32 array of `shape`. `data` holds its blocks, row after row.

    Raises:
        KeyError: no format has that type.
        ValueError: `data` is not what a tensor of that type and shape takes.
    """
    block_format = FORMATS[ggml_type]
    if data.size != (needed := block_format.size_of(shape)):
        raise ValueError(f"{data.size} bytes of data; shape {shape} takes {needed}")
    blocks = data.reshape(-1).view(block_format.layout)  # (N,)
    values = np.empty((len(blocks), block_format.length), np.float32)
    step = _VALUES_AT_A_TIME // block_format.length
    with np.errstate(invalid="ignore"):  # an infinite scale gives NaN; that is the file's doing
        for start in range(0, len(blocks), step):
            decoded = block_format.decode(blocks[start : start + step])
            values[start : start + step] = decoded.reshape(-1, block_format.length)
    return values.reshape(shape)


def _unpack(packed: Bytes, n_bits: int, run: int) -> Bytes:
    """Split bytes into fields of `n_bits`: every `run` bytes give their lowest fields, then the next higher.

    `packed`: (N, B). Result: (N, B * 8 / n_bits).
    """
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    fields = (packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8(2**n_bits - 1)
    return fields.reshape(len(packed), -1)


def _floats(values: NDArray[Any]) -> Floats:
    return values.astype(np.float32)


def _column(halves: NDArray[Any]) -> Floats:
    """Return one number a block, ready to multiply its values: (N,) to (N, 1)."""
    return _floats(halves)[:, None]


def _grouped(values: NDArray[Any], n_groups: int) -> Floats:
    """Return (N, 256) as (N, n_groups, 256 / n_groups), for a scale each group."""
    return _floats(values).reshape(len(values), n_groups, -1)


def _decode_bf16(bits: Blocks) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)  # the upper half of a float32


def _decode_q4_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_floats(_unpack(blocks["qs"], 4, 16)) - 8)


def _decode_q4_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _floats(_unpack(blocks["qs"], 4, 16)) + _column(blocks["m"])


def _five_bits(blocks: Blocks) -> Floats:
    return _floats(_unpack(blocks["qs"], 4, 16) | (_unpack(blocks["qh"], 1, 1) << 4))


def _decode_q5_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_five_bits(blocks) - 16)


def _decode_q5_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _five_bits(blocks) + _column(blocks["m"])


def _decode_q8_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _floats(blocks["qs"])


def _decode_q2_k(blocks: Blocks) -> Floats:
    scales = _column(blocks["d"]) * _floats(blocks["scales"] & 15)  # (N, 16)
    mins = _column(blocks["dmin"]) * _floats(blocks["scales"] >> 4)
    return scales[:, :, None] * _grouped(_unpack(blocks["qs"], 2, 32), 16) - mins[:, :, None]


def _decode_q3_k(blocks: Blocks) -> Floats:
    packed = blocks["scales"]
    six_bits = _unpack(packed[:, :8], 4, 8) | (_unpack(packed[:, 8:], 2, 4) << 4)
    scales = _column(blocks["d"]) * (_floats(six_bits) - 32)  # (N, 16)
    # The third bit is stored upside down: 4 is subtracted where it is 0.
    values = _grouped(_unpack(blocks["qs"], 2, 32) | (_unpack(blocks["hmask"], 1, 32) << 2), 16) - 4
    return scales[:, :, None] * values


def _scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the eight 6-bit scales and mins of Q4_K and Q5_K, each (N, 8), from (N, 12).

    The first four are the low six bits of bytes 0-3 and 4-7. The last four have their low four bits in the
    halves of bytes 8-11, and their upper two on top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.hstack([first & 63, (third & 15) | (first >> 6 << 4)])
    mins = np.hstack([second & 63, (third >> 4) | (second >> 6 << 4)])
    return scales, mins


def _scaled_by_eighths(values: NDArray[Any], blocks: Blocks) -> Floats:
    scales, mins = _scales_and_mins(blocks["scales"])
    d = _column(blocks["d"]) * _floats(scales)  # (N, 8)
    m = _column(blocks["dmin"]) * _floats(mins)
    return d[:, :, None] * _grouped(values, 8) - m[:, :, None]


def _decode_q4_k(blocks: Blocks) -> Floats:
    return _scaled_by_eighths(_unpack(blocks["qs"], 4, 32), blocks)


def _decode_q5_k(blocks: Blocks) -> Floats:
    return _scaled_by_eighths(_unpack(blocks["qs"], 4, 32) | (_unpack(blocks["qh"], 1, 32) << 4), blocks)


def _decode_q6_k(blocks: Blocks) -> Floats:
    scales = _column(blocks["d"]) * _floats(blocks["scales"])  # (N, 16)
    values = _grouped(_unpack(blocks["ql"], 4, 64) | (_unpack(blocks["qh"], 2, 32) << 4), 16) - 32
    return scales[:, :, None] * values


_HALF, _BYTE, _SIGNED = "<f2", "u1", "i1"
_Q4_0 = np.dtype([("d", _HALF), ("qs", _BYTE, 16)])
_Q4_1 = np.dtype([("d", _HALF), ("m", _HALF), ("qs", _BYTE, 16)])
_Q5_0 = np.dtype([("d", _HALF), ("qh", _BYTE, 4), ("qs", _BYTE, 16)])
_Q5_1 = np.dtype([("d", _HALF), ("m", _HALF), ("qh", _BYTE, 4), ("qs", _BYTE, 16)])
_Q8_0 = np.dtype([("d", _HALF), ("qs", _SIGNED, 32)])
_Q2_K = np.dtype([("scales", _BYTE, 16), ("qs", _BYTE, 64), ("d", _HALF), ("dmin", _HALF)])
_Q3_K = np.dtype([("hmask", _BYTE, 32), ("qs", _BYTE, 64), ("scales", _BYTE, 12), ("d", _HALF)])
_Q4_K = np.dtype([("d", _HALF), ("dmin", _HALF), ("scales", _BYTE, 12), ("qs", _BYTE, 128)])
_Q5_K = np.dtype(
    [("d", _HALF), ("dmin", _HALF), ("scales", _BYTE, 12), ("qh", _BYTE, 32), ("qs", _BYTE, 128)]
)
_Q6_K = np.dtype([("ql", _BYTE, 128), ("qh", _BYTE, 64), ("scales", _SIGNED, 16), ("d", _HALF)])

FORMATS: Final[Mapping[int, BlockFormat]] = {
    GgmlType.F32: BlockFormat(1, np.dtype("<f4"), _floats),
    GgmlType.F16: BlockFormat(1, np.dtype("<f2"), _floats),
    GgmlType.BF16: BlockFormat(1, np.dtype("<u2"), _decode_bf16),
    GgmlType.Q4_0: BlockFormat(32, _Q4_0, _decode_q4_0),
    GgmlType.Q4_1: BlockFormat(32, _Q4_1, _decode_q4_1),
    GgmlType.Q5_0: BlockFormat(32, _Q5_0, _decode_q5_0),
    GgmlType.Q5_1: BlockFormat(32, _Q5_1, _decode_q5_1),
    GgmlType.Q8_0: BlockFormat(32, _Q8_0, _decode_q8_0),
    GgmlType.Q2_K: BlockFormat(256, _Q2_K, _decode_q2_k),
    GgmlType.Q3_K: BlockFormat(256, _Q3_K, _decode_q3_k),
    GgmlType.Q4_K: BlockFormat(256, _Q4_K, _decode_q4_k),
    GgmlType.Q5_K: BlockFormat(256, _Q5_K, _decode_q5_k),
    GgmlType.Q6_K: BlockFormat(256, _Q6_K, _decode_q6_k),
}
