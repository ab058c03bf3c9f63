"""A layer's keys and values for the compiled kernels: 16-bit whole numbers, with a scale for each head and position.

Logits come ten times as near to those of a float32 cache as with float16: the values of a head are of one magnitude,
and float16 spends five of its bits on others. The scales add four bytes to a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from turbospark_chat.models.layer_rows import LayerRows
from turbospark_chat.models.layers import Array


class CachePart(StrEnum):
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


_SCALES = {CachePart.KEYS: CachePart.KEY_SCALES, CachePart.VALUES: CachePart.VALUE_SCALES}


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayer(LayerRows):
    """The arrays of a layer, one for each `CachePart`."""

    @classmethod
    def empty(cls, *, n_kv_heads: int, head_dim: int) -> "PackedLayer":
        """Return a layer with no room."""
        return cls(
            {
                part: np.empty(part.shape(n_kv_heads=n_kv_heads, n_rows=0, head_dim=head_dim), part.dtype)
                for part in CachePart
            }
        )

    def address(self, part: CachePart) -> int:
        """Return where position 0 stands, or would stand had it not been dropped: kernels count from there."""
        array = self.parts[part]
        return array.ctypes.data - self.base * array.strides[1]

    def as_floats(self, start: int, end: int) -> Mapping[str, Array]:
        """Return keys and values (KV, S, Hd) as kernels read them: the numbers times their scales."""
        rows = self.between(start, end)
        return {
            part: rows[part].astype(np.float32) * rows[scales][..., None] for part, scales in _SCALES.items()
        }
