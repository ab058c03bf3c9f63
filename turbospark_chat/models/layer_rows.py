"""A layer's part of a KV cache: arrays with a row for each position, the first of which may have been dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.layers import Array


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """A layer's arrays by name, `keys` among them, (KV, capacity, ...) each: position p stands in row p - base."""

    parts: Mapping[str, NDArray[Any]]
    base: int = 0

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return int(self.parts["keys"].shape[1])

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room included."""
        return sum(array.nbytes for array in self.parts.values())

    def between(self, start: int, end: int) -> dict[str, NDArray[Any]]:
        """Return views of the positions from `start` to before `end`."""
        rows = slice(start - self.base, end - self.base)
        return {part: array[:, rows] for part, array in self.parts.items()}

    def copy(self, start: int, end: int, *, capacity: int | None = None) -> Self:
        """Return a copy of the positions from `start` to before `end`, with room for so many, or for no more."""
        capacity = end - start if capacity is None else capacity
        parts = {}
        for part, rows in self.between(start, end).items():
            parts[part] = np.empty((len(rows), capacity, *rows.shape[2:]), rows.dtype)
            parts[part][:, : end - start] = rows
        return type(self)(parts, start)

    def as_floats(self, start: int, end: int) -> Mapping[str, Array]:
        """Return keys and values (KV, S, Hd) of the same positions as a forward pass reads them."""
        return self.between(start, end)
