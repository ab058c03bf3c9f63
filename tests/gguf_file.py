"""Writes small GGUF files for tests: whole with `write_gguf`, or piece by piece for headers that are wrong.

    write_gguf(path, {"general.architecture": "llama"}, {"x.weight": ("Q4_0", (2, 32), np.ones((2, 32)))})

Metadata values: bool, str, int (uint32, or int32 below 0), float (float32), a numpy scalar (its own type), a
list of str or bytes, a list of numbers (int32, float32 or bool), an ndarray. A tensor is its type, its shape
as numpy has it, and its values (quantised here; not for K types) or its bytes.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import quantize

Tensor = tuple[int | str, tuple[int, ...], "bytes | np.ndarray"]

_VALUE_TYPES = {
    np.dtype("u1"): GGUFValueType.UINT8,
    np.dtype("i1"): GGUFValueType.INT8,
    np.dtype("<u2"): GGUFValueType.UINT16,
    np.dtype("<i2"): GGUFValueType.INT16,
    np.dtype("<u4"): GGUFValueType.UINT32,
    np.dtype("<i4"): GGUFValueType.INT32,
    np.dtype("<f4"): GGUFValueType.FLOAT32,
    np.dtype("?"): GGUFValueType.BOOL,
    np.dtype("<u8"): GGUFValueType.UINT64,
    np.dtype("<i8"): GGUFValueType.INT64,
    np.dtype("<f8"): GGUFValueType.FLOAT64,
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def head(n_tensors: int, n_entries: int, *, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(n_tensors) + u64(n_entries)


def entry(key: str | bytes, value: Any) -> bytes:
    """A metadata entry."""
    return string(key) + _value(value)


def tensor_info(name: str, shape: Sequence[int], type_number: int, offset: int) -> bytes:
    """A tensor's description; the dimensions are stored fastest first."""
    dims = b"".join(u64(dim) for dim in reversed(shape))
    return string(name) + u32(len(shape)) + dims + u32(type_number) + u64(offset)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], *, version: int = 3) -> bytes:
    """A whole file. The alignment is `general.alignment`, or 32."""
    alignment = int(metadata.get("general.alignment", 32))
    header = head(len(tensors), len(metadata), version=version)
    header += b"".join(entry(key, value) for key, value in metadata.items())
    data = b""
    for name, (kind, shape, values) in tensors.items():
        type_number = type_number_of(kind)
        header += tensor_info(name, shape, type_number, len(data))
        raw = values if isinstance(values, bytes) else _quantised(values.reshape(shape), type_number)
        data += _padded(raw, alignment)
    return _padded(header, alignment) + data


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], *, version: int = 3
) -> Path:
    """Write a whole file and return its path."""
    path.write_bytes(gguf_bytes(metadata, tensors, version=version))
    return path


def random_blocks(kind: int | str, shape: tuple[int, ...], rng: np.random.Generator) -> bytes:
    """The bytes of a tensor of `shape`: every bit random, but the scales finite and of either sign."""
    ggml_type = GGMLQuantizationType(type_number_of(kind))
    block_length, block_bytes = GGML_QUANT_SIZES[ggml_type]
    n_blocks = int(np.prod(shape)) // block_length
    if ggml_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16):
        return _quantised(rng.normal(size=n_blocks).astype(np.float32), ggml_type)
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    for position in _HALVES[ggml_type.name]:
        halves = rng.normal(scale=0.1, size=(n_blocks, 1)).astype("<f2")
        blocks[:, position : position + 2 or None] = halves.view(np.uint8)
    return blocks.tobytes()


def type_number_of(kind: int | str) -> int:
    return int(GGMLQuantizationType[kind]) if isinstance(kind, str) else int(kind)


# Where the float16 scales of a block begin; negative counts from its end.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (-4, -2),
    "Q3_K": (-2,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (-2,),
}


def _quantised(values: np.ndarray, type_number: int) -> bytes:
    return quantize(values.astype(np.float32), GGMLQuantizationType(type_number)).tobytes()


def _padded(raw: bytes, alignment: int) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def _value(value: Any) -> bytes:
    if isinstance(value, str | bytes):
        return u32(GGUFValueType.STRING) + string(value)
    if isinstance(value, list) and value and isinstance(value[0], str | bytes):
        items = b"".join(string(item) for item in value)
        return u32(GGUFValueType.ARRAY) + u32(GGUFValueType.STRING) + u64(len(value)) + items
    numbers = _numbers(value)
    value_type = u32(_VALUE_TYPES[numbers.dtype])
    if numbers.ndim == 0:
        return value_type + numbers.tobytes()
    return u32(GGUFValueType.ARRAY) + value_type + u64(len(numbers)) + numbers.tobytes()


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    numbers = np.asarray(value)
    if numbers.dtype.kind == "f":
        return numbers.astype("<f4")
    if numbers.dtype.kind == "i":
        return numbers.astype("<u4" if numbers.ndim == 0 and value >= 0 else "<i4")
    return numbers
