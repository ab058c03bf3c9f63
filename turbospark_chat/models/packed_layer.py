"""A layer's keys and values for the compiled kernels: 16-bit whole numbers, with a scale for each head and position.

Logits come ten times as near to those of a float32 cache as with float16: the values of a head are of one magnitude,
and float16 spends five of its bits on others. The scales add four bytes to a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Part = NDArray[Any]


class CachePart(Enum):
    """An array that each layer has."""

    KEYS = "keys"  # int16 (KV, capacity, Hd)
    VALUES = "values"
    KEY_SCALES = "key scales"  # float32 (KV, capacity): what the numbers are to be multiplied with
    VALUE_SCALES = "value scales"

    def shape(self, *, n_kv_heads: int, n_rows: int, head_dim: int) -> tuple[int, ...]:
        """Return the shape it has with so many rows."""
        return (n_kv_heads, n_rows) if self.is_scales else (n_kv_heads, n_rows, head_dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(np.float32 if self.is_scales else np.int16)

    @property
    def is_scales(self) -> bool:
        """Whether it holds one number a position, not one a dimension."""
        return self in (CachePart.KEY_SCALES, CachePart.VALUE_SCALES)


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayer:
    """The arrays of a layer, in which position p stands in row p - base."""

    parts: Mapping[CachePart, Part]
    base: int = 0

    @classmethod
    def empty(cls, capacity: int, *, n_kv_heads: int, head_dim: int) -> "PackedLayer":
        """Return a layer with room for so many positions and nothing in it."""
        shapes = {
            part: part.shape(n_kv_heads=n_kv_heads, n_rows=capacity, head_dim=head_dim) for part in CachePart
        }
        return cls({part: np.empty(shape, part.dtype) for part, shape in shapes.items()})

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return int(self.parts[CachePart.KEYS].shape[1])

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room included."""
        return sum(array.nbytes for array in self.parts.values())

    def address(self, part: CachePart) -> int:
        """Return where position 0 stands, or would stand had it not been dropped: kernels count from there."""
        array = self.parts[part]
        return array.ctypes.data - self.base * array.strides[1]

    def between(self, start: int, end: int) -> dict[CachePart, Part]:
        """Return views of the positions from `start` to before `end`."""
        rows = slice(start - self.base, end - self.base)
        return {part: array[:, rows] for part, array in self.parts.items()}

    def copy(self, start: int, end: int, *, capacity: int | None = None) -> "PackedLayer":
        """Return a copy of the positions from `start` to before `end`, with room for so many, or for no more."""
        capacity = end - start if capacity is None else capacity
        parts = {}
        for part, rows in self.between(start, end).items():
            parts[part] = np.empty((len(rows), capacity, *rows.shape[2:]), rows.dtype)
            parts[part][:, : end - start] = rows
        return PackedLayer(parts, start)
