"""The keys and values of every layer, growing as they are used. Knows positions, never token ids."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.checkpoints import Checkpoints
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.layers import Array
from turbospark_chat.models.retention import WINDOW_CHECKPOINTS, WINDOW_SLACK, Retention


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """A layer's keys and values, (KV, capacity, Hd) each: position p stands in row p - base."""

    keys: Array
    values: Array
    base: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of both, room included."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return int(self.keys.shape[1])

    def between(self, start: int, end: int) -> tuple[Array, Array]:
        """Return views of the keys and values of positions from `start` to before `end`."""
        rows = slice(start - self.base, end - self.base)
        return self.keys[:, rows], self.values[:, rows]

    def copy(self, start: int, end: int) -> "LayerRows":
        """Return copies of the same, and no room."""
        keys, values = self.between(start, end)
        return LayerRows(keys.copy(), values.copy(), start)


class KvCache:
    """Keys and values of each layer, of which the first `length` positions are filled.

    Capacity is only room: no caller sees it. Writing fills rows past `length`; they count once `commit` moves
    `length`, so a forward pass that fails half way leaves the cache as it was.

    A layer with a window drops what is past its slack, and `mark` copies what it sees. Rows that move go into new
    arrays, which take the place of the old ones at once.
    """

    def __init__(
        self, *, windows: Sequence[int | None], n_kv_heads: int, head_dim: int, slack: int = WINDOW_SLACK
    ) -> None:
        self.windows, self.head_dim = tuple(windows), head_dim
        self._n_kv_heads, self._slack = n_kv_heads, slack
        self._retentions = [Retention(window, slack) for window in windows]
        self._layers = [LayerRows(self._empty(0), self._empty(0)) for _ in windows]
        self._checkpoints: Checkpoints[dict[int, LayerRows]] = Checkpoints(WINDOW_CHECKPOINTS)
        self._length = 0

    def __len__(self) -> int:
        """How many positions are filled."""
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room and checkpoints included."""
        copies = (rows for copy in self._checkpoints.copies for rows in copy.values())
        return sum(rows.n_bytes for rows in (*self._layers, *copies))

    def write(self, layer: int, keys: Array, values: Array, position: int) -> tuple[Array, Array]:
        """Store keys and values (T, KV, Hd) from `position` on; return what those tokens see, (KV, S, Hd) each."""
        end = position + len(keys)
        rows = self._layers[layer] = self._roomy(layer, position, end)
        for stored, new in zip(rows.between(position, end), (keys, values), strict=True):
            stored[:] = new.transpose(1, 0, 2)
        return rows.between(self._retentions[layer].first_seen(position), end)

    def commit(self, length: int) -> None:
        """Count the positions before `length` as filled, once every layer has written them."""
        self._length = length

    @property
    def slack(self) -> int:
        """See `State`. Where no layer has a window it goes back anywhere."""
        return sys.maxsize if not any(self.windows) else self._slack

    def reach(self, length: int) -> int:
        """See `State`. Every layer has to hold what goes on from there, or else a checkpoint all that they dropped."""
        length = min(self._length, max(length, 0))
        if self._holds(length):
            return length
        marked = self._checkpoints.newest(length)
        return marked[0] if marked else 0

    def truncate(self, length: int) -> int:
        """See `State`."""
        n_kept = self.reach(length)
        if n_kept and not self._holds(n_kept):
            self._length = 0  # until all layers are back, lest an interrupt leave some that are not
            for layer in self._marked(n_kept):
                self._layers[layer] = self._copy_at(layer, n_kept)
        self._checkpoints.cut(n_kept)
        self._length = n_kept
        return n_kept

    def mark(self) -> None:
        """See `State`. Layers that see everything need no copy."""
        if self._length and any(self.windows) and self._length not in self._checkpoints.lengths:
            seen = {
                layer: self._layers[layer].copy(retention.first_seen(self._length), self._length)
                for layer, retention in enumerate(self._retentions)
                if retention.window is not None
            }
            self._checkpoints.add(self._length, seen)

    def fork(self, length: int) -> Self:
        """See `State`. Copies of positions are its own, checkpoints are shared, since they never change."""
        other = type(self)(
            windows=self.windows, n_kv_heads=self._n_kv_heads, head_dim=self.head_dim, slack=self._slack
        )
        n_kept = self.reach(length)
        if n_kept:
            other._layers = [self._copy_at(layer, n_kept) for layer in range(len(self._layers))]
            other._checkpoints = self._checkpoints.until(n_kept)
        other._length = n_kept
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return each layer's keys and values (KV, S, Hd): views, to be read before the next pass.

        Of a layer with a window they are the last S positions, no more than its slack needs.
        """
        return dict(self._named(self._first_exported))

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `State`."""
        self._length = 0
        self._checkpoints.cut(0)
        counts = [self._n_exported(layer, length, arrays) for layer in range(len(self._layers))]
        shapes = [(self._n_kv_heads, n_rows, self.head_dim) for n_rows in counts]
        check_arrays(
            arrays,
            {
                f"{part} {layer}": (shape, np.dtype(np.float32))
                for layer, shape in enumerate(shapes)
                for part in ("keys", "values")
            },
        )
        self._layers = [
            LayerRows(np.array(arrays[f"keys {layer}"]), np.array(arrays[f"values {layer}"]), length - n_rows)
            for layer, n_rows in enumerate(counts)
        ]
        self._length = length

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """See `State`."""
        return self._named(lambda layer: self._retentions[layer].first_seen(self._length))

    def _holds(self, length: int) -> bool:
        """Tell whether every layer has the rows that go on from `length`."""
        return all(
            rows.base <= retention.first_seen(length)
            for rows, retention in zip(self._layers, self._retentions, strict=True)
        )

    def _marked(self, length: int) -> Mapping[int, LayerRows]:
        marked = self._checkpoints.newest(length)
        return marked[1] if marked else {}

    def _copy_at(self, layer: int, length: int) -> LayerRows:
        """Return a copy of the layer at a length within reach: of a checkpoint's where its own rows are gone."""
        rows = self._layers[layer]
        if not self._holds(length):
            rows = self._marked(length).get(layer, rows)
        return rows.copy(max(rows.base, self._retentions[layer].first_kept(length)), length)

    def _roomy(self, layer: int, position: int, end: int) -> LayerRows:
        """Return the layer's rows if there is room until `end`; else others with room and what is to be kept."""
        rows, retention = self._layers[layer], self._retentions[layer]
        if position == 0 and rows.base:  # what it began with is gone, and so is all that followed
            rows = LayerRows(rows.keys, rows.values)
        if end - rows.base <= rows.capacity:
            return rows
        start = max(rows.base, retention.first_kept(position))
        capacity = retention.capacity(end - start, rows.capacity)
        larger = LayerRows(self._empty(capacity), self._empty(capacity), start)
        for new, old in zip(larger.between(start, position), rows.between(start, position), strict=True):
            new[:] = old
        return larger

    def _first_exported(self, layer: int) -> int:
        first_kept = self._retentions[layer].first_kept(self._length)
        return min(max(self._layers[layer].base, first_kept), self._length)

    def _n_exported(self, layer: int, length: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return how many of the last positions there are of a layer, or how many there should be at least."""
        keys = arrays.get(f"keys {layer}")
        n_rows = keys.shape[1] if keys is not None and keys.ndim == 3 else 0
        return min(max(n_rows, length - self._retentions[layer].first_seen(length)), length)

    def _named(self, first: Callable[[int], int]) -> Iterator[tuple[str, Array]]:
        for layer, rows in enumerate(self._layers):
            keys, values = rows.between(first(layer), self._length)
            yield f"keys {layer}", keys
            yield f"values {layer}", values

    def _empty(self, capacity: int) -> Array:
        return np.empty((self._n_kv_heads, capacity, self.head_dim), np.float32)


def float_row_bytes(config: ModelConfig) -> int:
    """Return the bytes of a position in one layer."""
    return 2 * config.n_kv_heads * config.head_dim * np.dtype(np.float32).itemsize


def check_arrays(
    arrays: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> None:
    """Check that arrays have these names, shapes and types, and that there are no others.

    Raises:
        ValueError: they do not; it names the first that does not.
    """
    for name, (shape, dtype) in expected.items():
        found = arrays.get(name)
        if found is None or found.shape != shape or found.dtype != dtype:
            is_like = "missing" if found is None else f"{found.dtype}{found.shape}"
            raise ValueError(f"`{name}` is {is_like}, expected {dtype}{shape}")
    if others := arrays.keys() - expected.keys():
        raise ValueError(f"`{min(others)}` is not part of this state")
