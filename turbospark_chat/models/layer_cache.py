"""What every KV cache does: the rows of its layers, how far back they go, and how they are copied and exported.

Knows positions, never token ids, and neither what a row consists of nor who writes it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.checkpoints import Checkpoints
from turbospark_chat.models.layer_rows import LayerRows
from turbospark_chat.models.layers import Array
from turbospark_chat.models.retention import WINDOW_CHECKPOINTS, Retention
from turbospark_chat.models.state_arrays import check_arrays

Rows = TypeVar("Rows", bound=LayerRows)


class LayerCache(Generic[Rows]):
    """Rows of every layer, of which the first `length` positions are filled: a `State`, but for how they are written.

    Capacity is only room. What is written past `length` counts once `commit` moves it, so a forward pass that fails
    half way leaves the cache as it was.

    A layer with a window drops what is past its slack, and `mark` copies what it sees. Rows that move go into new
    arrays, which take the place of the old ones at once.
    """

    def __init__(self, *, windows: Sequence[int | None], slack: int, nothing: Rows) -> None:
        """Make an empty cache.

        Args:
            windows: How many positions each layer sees, None for all.
            slack: How many positions a layer with a window can go back.
            nothing: A layer without room: what every layer begins as.
        """
        self.windows = tuple(windows)
        self._slack, self._nothing = slack, nothing
        self._retentions = [Retention(window, slack) for window in windows]
        self._layers = [nothing for _ in windows]
        self._checkpoints: Checkpoints[dict[int, Rows]] = Checkpoints(WINDOW_CHECKPOINTS)
        self._length = 0
        self._n_moves = 0

    def __len__(self) -> int:
        """How many positions are filled."""
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room and checkpoints included."""
        copies = (rows for marked in self._checkpoints.copies for rows in marked.values())
        return sum(rows.n_bytes for rows in (*self._layers, *copies))

    @property
    def n_moves(self) -> int:
        """How often arrays were replaced by others."""
        return self._n_moves

    @property
    def slack(self) -> int:
        """See `State`. Where no layer has a window it goes back anywhere."""
        return self._slack if any(self.windows) else sys.maxsize

    def commit(self, length: int) -> None:
        """Count the positions before `length` as filled, once every layer has written them."""
        self._length = length

    def reach(self, length: int) -> int:
        """See `State`. Every layer has to hold what goes on from there, or else a checkpoint all that they dropped."""
        length = min(self._length, max(length, 0))
        if not self._lacking(length):
            return length
        marked = self._checkpoints.newest(length)
        return marked[0] if marked else 0

    def truncate(self, length: int) -> int:
        """See `State`. Interrupted, it is still to be truncated to the same length."""
        n_kept = self.reach(length)
        self._checkpoints.cut(n_kept)  # first: what is fed next must not meet one of what was there
        copies = {layer: self._copy_at(layer, n_kept) for layer in self._lacking(n_kept)}
        self._length = n_kept
        if copies:
            self._replace([copies.get(layer, rows) for layer, rows in enumerate(self._layers)])
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
        """See `State`. Copies of positions are its own; checkpoints are shared, since they never change."""
        n_kept = self.reach(length)
        other = copy(self)
        other._layers = [self._copy_at(layer, n_kept) for layer in range(len(self._layers))]
        other._checkpoints = self._checkpoints.until(n_kept)
        other._length = n_kept
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return each layer's arrays (KV, S, ...): views, to be read before the next pass.

        Of a layer with a window they are the last S positions, no more than its slack needs.
        """
        length = self._length
        return {
            _name(part, layer): array
            for layer, (rows, retention) in enumerate(self._kept())
            for part, array in rows.between(max(rows.base, retention.first_kept(length)), length).items()
        }

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `State`."""
        self.truncate(0)
        like = self._nothing.parts
        bases = [length - self._n_exported(layer, length, arrays) for layer in range(len(self._layers))]
        expected = {
            _name(part, layer): ((len(array), length - base, *array.shape[2:]), array.dtype)
            for layer, base in enumerate(bases)
            for part, array in like.items()
        }
        check_arrays(arrays, expected)
        copies = [
            {part: np.array(arrays[_name(part, layer)], order="C") for part in like}
            for layer in range(len(self._layers))
        ]
        self._replace(
            [
                replace(self._nothing, parts=parts, base=base)
                for parts, base in zip(copies, bases, strict=True)
            ]
        )
        self._length = length

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """See `State`. Of a layer with a window it is what the next token sees, whatever else it still holds."""
        for layer, (rows, retention) in enumerate(self._kept()):
            for part, array in rows.as_floats(retention.first_seen(self._length), self._length).items():
                yield _name(part, layer), array

    def _kept(self) -> Iterator[tuple[Rows, Retention]]:
        """Yield what each layer holds, and which positions it is to hold."""
        return zip(self._layers, self._retentions, strict=True)

    def _grow(self, layer: int, position: int, end: int) -> None:
        """Move a layer to where there is room until `end`, with what is to be kept of the positions before `position`.

        Raises:
            MemoryError: the layer is where it was.
        """
        rows, retention = self._layers[layer], self._retentions[layer]
        start = max(rows.base, retention.first_kept(position))
        moved = rows.copy(start, position, capacity=retention.capacity(end - start, rows.capacity))
        self._n_moves += 1  # before the move, lest an interrupt leave one uncounted
        self._layers[layer] = moved

    def _replace(self, layers: list[Rows]) -> None:
        self._n_moves += 1  # before the move, as in `_grow`
        self._layers = layers

    def _lacking(self, length: int) -> list[int]:
        """Return the layers that have dropped rows which whatever goes on from `length` would see."""
        return [
            layer
            for layer, (rows, retention) in enumerate(self._kept())
            if rows.base > retention.first_seen(length)
        ]

    def _copy_at(self, layer: int, length: int) -> Rows:
        """Return a copy of a layer at a length within reach: of a checkpoint's where its own rows are gone."""
        if not length:
            return self._nothing
        rows, retention = self._layers[layer], self._retentions[layer]
        if rows.base > retention.first_seen(length):
            marked = self._checkpoints.newest(length)
            assert marked is not None  # it is within reach
            rows = marked[1][layer]
        return rows.copy(max(rows.base, retention.first_kept(length)), length)

    def _n_exported(self, layer: int, length: int, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return how many of the last positions there are of a layer, or how many there should be at least."""
        keys = arrays.get(_name("keys", layer))
        n_rows = keys.shape[1] if keys is not None and keys.ndim == 3 else 0
        return min(max(n_rows, length - self._retentions[layer].first_seen(length)), length)


def _name(part: str, layer: int) -> str:
    return f"{part} {layer}"
