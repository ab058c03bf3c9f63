"""What recurrent layers have made of the tokens so far, and checkpoints to come back to.

Knows positions, never token ids. A memory is never written to, only replaced, so a checkpoint or a fork is a reference
and no copy, and what is restored twice is the same twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.checkpoints import MOST_CHECKPOINTS, Checkpoints
from turbospark_chat.models.delta_net import DeltaMemory, DeltaShape
from turbospark_chat.models.layers import Array
from turbospark_chat.models.state_arrays import check_arrays

_LENGTHS = "lengths"


@dataclass(frozen=True, slots=True)
class _Moment:
    """The memories of all layers at a length."""

    length: int
    layers: tuple[DeltaMemory, ...]


class DeltaState:
    """A memory for each of `n_layers` gated delta net layers, all of one shape.

    What a forward pass writes counts once `commit` moves the length, so one that fails half way leaves the state as
    it was. It goes back to checkpoints only.
    """

    def __init__(self, *, shape: DeltaShape, n_layers: int, n_checkpoints: int = MOST_CHECKPOINTS) -> None:
        self._shape, self._n_layers, self._n_checkpoints = shape, n_layers, n_checkpoints
        self._empty = _Moment(0, (DeltaMemory.empty(shape),) * n_layers)
        self._present = self._empty
        self._written: dict[int, DeltaMemory] = {}
        self._checkpoints: Checkpoints[_Moment] = Checkpoints(n_checkpoints)

    def __len__(self) -> int:
        """How many positions it has seen."""
        return self._present.length

    @property
    def n_bytes(self) -> int:
        """Bytes of the memories, those of checkpoints included; what a fork shares counts in both."""
        moments = (self._present, *self._checkpoints.copies)
        memories = {id(memory): memory for moment in moments for memory in moment.layers}
        return sum(memory.n_bytes for memory in memories.values())

    @property
    def slack(self) -> int:
        """It goes back to checkpoints only."""
        return 0

    @property
    def checkpoint_lengths(self) -> tuple[int, ...]:
        """The lengths it can go back to, ascending."""
        return self._checkpoints.lengths

    def read(self, layer: int) -> DeltaMemory:
        """Return what a layer goes on from."""
        return self._present.layers[layer]

    def write(self, layer: int, memory: DeltaMemory) -> None:
        """Take what a layer has made of it."""
        self._written[layer] = memory

    def commit(self, length: int) -> None:
        """Go on from what was written, which is the state after `length` positions, once every layer has written."""
        layers = tuple(self._written[layer] for layer in range(self._n_layers))
        self._present = _Moment(length, layers)  # one step, whatever interrupts
        self._written.clear()

    def reach(self, length: int) -> int:
        """See `State`."""
        return self._moment(length).length

    def truncate(self, length: int) -> int:
        """Go back to the newest checkpoint of at most `length` positions, or to nothing; return what is left."""
        moment = self._moment(length)
        self._written.clear()
        self._checkpoints.cut(moment.length)  # first: one past the end would be taken for what comes there
        self._present = moment
        return moment.length

    def mark(self) -> None:
        """Take a checkpoint."""
        if self._present.length:
            self._checkpoints.add(self._present.length, self._present)

    def fork(self, length: int) -> Self:
        """Return a state of `reach(length)` positions that shares the memories so far."""
        other = type(self)(shape=self._shape, n_layers=self._n_layers, n_checkpoints=self._n_checkpoints)
        other._present = self._moment(length)
        other._checkpoints = self._checkpoints.until(other._present.length)
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return the memories of the checkpoints and, last, of the present, of every layer one behind the other."""
        marked = [moment for moment in self._checkpoints.copies if moment.length < len(self)]
        moments = [*marked, self._present]
        arrays: dict[str, NDArray[Any]] = {_LENGTHS: np.array([m.length for m in moments], np.int64)}
        for index in range(self._n_layers):
            arrays[f"matrices {index}"] = np.stack([moment.layers[index].matrices for moment in moments])
            arrays[f"inputs {index}"] = np.stack([moment.layers[index].inputs for moment in moments])
        return arrays

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `State`; checkpoints come back with it, and its end becomes one."""
        self.truncate(0)
        lengths = _checked_lengths(length, arrays.get(_LENGTHS))
        like, n = self._empty.layers[0], len(lengths)
        expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {_LENGTHS: ((n,), np.dtype(np.int64))}
        for index in range(self._n_layers):
            expected[f"matrices {index}"] = ((n, *like.matrices.shape), like.matrices.dtype)
            expected[f"inputs {index}"] = ((n, *like.inputs.shape), like.inputs.dtype)
        check_arrays(arrays, expected)
        for nth, at in enumerate(lengths):
            memories = [
                DeltaMemory(
                    np.array(arrays[f"matrices {index}"][nth]), np.array(arrays[f"inputs {index}"][nth])
                )
                for index in range(self._n_layers)
            ]
            self._present = _Moment(at, tuple(memories))
            self.mark()

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """See `State`."""
        for index, memory in enumerate(self._present.layers):
            yield f"matrices {index}", memory.matrices
            yield f"inputs {index}", memory.inputs

    def _moment(self, length: int) -> _Moment:
        """Return the last one of at most `length` positions that is still known."""
        if length >= self._present.length:
            return self._present
        checkpoint = self._checkpoints.newest(length)
        return self._empty if checkpoint is None else checkpoint[1]


def _checked_lengths(length: int, lengths: NDArray[Any] | None) -> list[int]:
    if lengths is None or lengths.ndim != 1 or lengths.dtype != np.int64:
        raise ValueError(f"`{_LENGTHS}` is not a row of int64")
    listed: list[int] = lengths.tolist()
    is_ascending = all(before < after for before, after in pairwise([0, *listed]))
    if not listed or listed[-1] != length or not (is_ascending or listed == [0]):
        raise ValueError(f"`{_LENGTHS}` does not ascend to {length}: {listed[:9]}")
    return listed
