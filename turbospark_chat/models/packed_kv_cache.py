"""The KV cache of the compiled kernels: packed numbers that only they read and write.

Knows positions, never token ids.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.checkpoints import Checkpoints
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.kv_cache import check_arrays
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_layer import CachePart, PackedLayer
from turbospark_chat.models.retention import WINDOW_CHECKPOINTS, WINDOW_SLACK, Retention

_SCALES = {CachePart.KEYS: CachePart.KEY_SCALES, CachePart.VALUES: CachePart.VALUE_SCALES}


def packed_row_bytes(config: ModelConfig) -> int:
    """Return the bytes of a position in one layer."""
    return 2 * config.n_kv_heads * (2 * config.head_dim + 4)


class PackedKvCache:
    """Room for positions in every layer, of which the first `length` are filled.

    What kernels write past `length` counts once `commit` moves it, so a forward pass that fails half way leaves the
    cache as it was.

    A layer with a window drops what is past its slack, and `mark` copies what it sees. Rows that move go into new
    arrays, which take the place of the old ones at once.
    """

    def __init__(
        self, *, windows: Sequence[int | None], n_kv_heads: int, head_dim: int, slack: int = WINDOW_SLACK
    ) -> None:
        """Make an empty cache. `windows`: how many positions each layer sees, None for all."""
        self._windows, self._slack = tuple(windows), slack
        self._n_kv_heads, self._head_dim = n_kv_heads, head_dim
        self._retentions = [Retention(window, slack) for window in windows]
        self._layers = [self._empty_layer(0) for _ in windows]
        self._checkpoints: Checkpoints[dict[int, PackedLayer]] = Checkpoints(WINDOW_CHECKPOINTS)
        self._length = 0
        self._n_moves = 0

    def __len__(self) -> int:
        """How many positions are filled."""
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room and checkpoints included."""
        copies = (layer for copy in self._checkpoints.copies for layer in copy.values())
        return sum(layer.n_bytes for layer in (*self._layers, *copies))

    @property
    def n_moves(self) -> int:
        """How often arrays were replaced by others: addresses and room hold until it changes."""
        return self._n_moves

    @property
    def room(self) -> range:
        """The positions that can be written: every layer holds what the first of them sees, and has rows for them."""
        layers = list(zip(self._layers, self._retentions, strict=True))
        first = max((layer.base and layer.base + (kept.window or 0) - 1 for layer, kept in layers), default=0)
        return range(first, min((layer.base + layer.capacity for layer, _ in layers), default=sys.maxsize))

    def capacity(self, layer: int) -> int:
        """Return the rows that a layer has room for."""
        return self._layers[layer].capacity

    def address(self, layer: int, part: CachePart) -> int:
        """Return where position 0 stands in an array, or would stand had it not been dropped."""
        return self._layers[layer].address(part)

    def reserve(self, length: int) -> None:
        """Make room up to `length` in every layer; of the filled positions, those to be kept stay as they are.

        Raises:
            MemoryError: some layers may have moved; each has all its arrays alike, and no position is lost.
        """
        for index, (layer, retention) in enumerate(zip(self._layers, self._retentions, strict=True)):
            if length - layer.base > layer.capacity:
                start = max(layer.base, retention.first_kept(self._length))
                capacity = retention.capacity(length - start, layer.capacity)
                moved = layer.copy(start, self._length, capacity=capacity)
                self._n_moves += 1  # before the move, lest an interrupt leave one uncounted
                self._layers[index] = moved

    def commit(self, length: int) -> None:
        """Count the positions before `length` as filled, once every layer has written them."""
        self._length = length

    @property
    def slack(self) -> int:
        """See `State`. Where no layer has a window it goes back anywhere."""
        return self._slack if any(self._windows) else sys.maxsize

    def reach(self, length: int) -> int:
        """See `State`. Every layer has to hold what goes on from there, or else a checkpoint all that they dropped."""
        length = min(self._length, max(length, 0))
        if self._holds(length):
            return length
        marked = self._checkpoints.newest(length)
        return marked[0] if marked else 0

    def truncate(self, length: int) -> int:
        """See `State`. Interrupted, it is still to be truncated to the same length."""
        n_kept = self.reach(length)
        self._checkpoints.cut(n_kept)  # first: what is fed next must not meet one of what was there
        if self._holds(n_kept):
            self._length = n_kept
        else:
            layers = [self._copy_at(index, n_kept) for index in range(len(self._layers))]
            self._length = n_kept
            self._n_moves += 1
            self._layers = layers
        return n_kept

    def mark(self) -> None:
        """See `State`. Layers that see everything need no copy."""
        if self._length and any(self._windows) and self._length not in self._checkpoints.lengths:
            seen = {
                index: self._layers[index].copy(retention.first_seen(self._length), self._length)
                for index, retention in enumerate(self._retentions)
                if retention.window is not None
            }
            self._checkpoints.add(self._length, seen)

    def fork(self, length: int) -> Self:
        """See `State`. Copies of positions are its own; checkpoints are shared, since they never change."""
        other = type(self)(
            windows=self._windows, n_kv_heads=self._n_kv_heads, head_dim=self._head_dim, slack=self._slack
        )
        n_kept = self.reach(length)
        other._layers = [self._copy_at(index, n_kept) for index in range(len(self._layers))]
        other._checkpoints = self._checkpoints.until(n_kept)
        other._length, other._n_moves = n_kept, 1
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return each layer's arrays: views, to be read before the next pass.

        Of a layer with a window they are the last positions, no more than its slack needs.
        """
        rows = self._between(lambda index: self._first_kept(index, self._length))
        return {
            _name(part, index): array for index, parts in enumerate(rows) for part, array in parts.items()
        }

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `State`."""
        self.truncate(0)
        bases = [length - self._n_exported(index, length, arrays) for index in range(len(self._layers))]
        heads = {"n_kv_heads": self._n_kv_heads, "head_dim": self._head_dim}
        expected = {
            _name(part, index): (part.shape(n_rows=length - base, **heads), part.dtype)
            for index, base in enumerate(bases)
            for part in CachePart
        }
        check_arrays(arrays, expected)
        layers = [
            PackedLayer({part: np.array(arrays[_name(part, index)], order="C") for part in CachePart}, base)
            for index, base in enumerate(bases)
        ]
        self._n_moves += 1  # before the move, as in `reserve`
        self._layers = layers
        self._length = length

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """Yield keys and values (KV, S, Hd) as kernels read them: the numbers times their scales.

        Of a layer with a window they are what the next token sees, whatever else it still holds.
        """
        rows = self._between(lambda index: self._retentions[index].first_seen(self._length))
        for index, parts in enumerate(rows):
            for part, scales in _SCALES.items():
                yield _name(part, index), parts[part].astype(np.float32) * parts[scales][..., None]

    def _holds(self, length: int) -> bool:
        """Whether every layer still has what goes on from `length`."""
        pairs = zip(self._layers, self._retentions, strict=True)
        return all(layer.base <= retention.first_seen(length) for layer, retention in pairs)

    def _copy_at(self, index: int, length: int) -> PackedLayer:
        """Return a copy of a layer at a length within reach: of a checkpoint's where its own rows are gone."""
        layer = self._layers[index]
        if not length:
            return self._empty_layer(0)
        if not self._holds(length):
            layer = self._marked(length).get(index, layer)
        return layer.copy(max(layer.base, self._retentions[index].first_kept(length)), length)

    def _marked(self, length: int) -> dict[int, PackedLayer]:
        marked = self._checkpoints.newest(length)
        assert marked is not None  # it is within reach
        return marked[1]

    def _first_kept(self, index: int, length: int) -> int:
        return max(self._layers[index].base, self._retentions[index].first_kept(length))

    def _n_exported(self, index: int, length: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return how many of the last positions there are of a layer, or how many there should be at least."""
        keys = arrays.get(_name(CachePart.KEYS, index))
        n_rows = keys.shape[1] if keys is not None and keys.ndim == 3 else 0
        return min(max(n_rows, length - self._retentions[index].first_seen(length)), length)

    def _between(self, first: Callable[[int], int]) -> Iterator[dict[CachePart, NDArray[Any]]]:
        for index, layer in enumerate(self._layers):
            yield layer.between(first(index), self._length)

    def _empty_layer(self, capacity: int) -> PackedLayer:
        return PackedLayer.empty(capacity, n_kv_heads=self._n_kv_heads, head_dim=self._head_dim)


def _name(part: CachePart, index: int) -> str:
    return f"{part.value} {index}"
