"""Caches of both kinds, fed the way their forward passes feed them, and followed: what they hold and may go back to.

Every number tells its array, head, dimension, and the ids fed up to its position: rows of another past would show.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.packed_layer import CachePart
from turbospark_chat.models.retention import WINDOW_CHECKPOINTS

N_KV_HEADS, HEAD_DIM = 2, 16
WINDOW, SLACK = 40, 30
ALL = (None, None, None)
MIXED = (WINDOW, None, 7)
Windows = Sequence[int | None]


def contents(part: str, layer: int, ids: Sequence[int], first: int = 0) -> NDArray[np.int16]:
    """Return the numbers (KV, S, Hd) of the positions from `first` on."""
    head, dim = np.arange(N_KV_HEADS)[:, None, None], np.arange(HEAD_DIM)
    past = np.cumsum(ids, dtype=np.int64)[first:, None]
    number = 10 * layer + list(CachePart).index(CachePart(part)) + 100 * head + 1000 * dim
    return ((past * 7 + number) % 30_000).astype(np.int16)


def first_seen(window: int | None, position: int) -> int:
    return 0 if window is None else max(0, position - window + 1)


class Fed(ABC):
    """A cache and the ids fed to it."""

    parts: ClassVar[tuple[str, ...]]
    row_bytes: ClassVar[int]  # of a position in one layer
    cache: KvCache | PackedKvCache

    def __init__(self, windows: Windows = ALL, *, slack: int = SLACK) -> None:
        self.windows, self.slack = windows, slack
        self.ids: list[int] = []
        self._marks: list[int] = []
        self._n_marks_ever = 0
        self._furthest = 0  # from where the slack counts

    @abstractmethod
    def write(self, ids: Sequence[int]) -> None:
        """Write what all ids leave behind from the cache's end on, as a forward pass does, and commit nothing."""

    @abstractmethod
    def expected(self, part: str, layer: int, first: int) -> NDArray[np.float32]:
        """Return the floats of the positions from `first` on."""

    def feed(self, n_tokens: int, *, id_: int = 1, at_once: int = 10**9) -> None:
        """Run a forward pass, or some of at most `at_once` tokens."""
        while n_tokens > 0:
            ids = [*self.ids, *[id_] * min(n_tokens, at_once)]
            self.write(ids)
            self.cache.commit(len(ids))
            n_tokens, self.ids = n_tokens - at_once, ids
        self._furthest = max(self._furthest, len(self.ids))

    def mark(self) -> None:
        self.cache.mark()
        assert self.cache.reach(len(self.ids)) == len(self.ids)
        if self.ids and len(self.ids) not in self._marks:
            self._marks.append(len(self.ids))
            self._n_marks_ever += 1

    def truncate(self, length: int) -> int:
        """Cut, and check that it goes as far back as it has to and never elsewhere than to what it holds."""
        asked = max(min(length, len(self.ids)), 0)
        foretold = self.cache.reach(length)
        n_kept = self.cache.truncate(length)
        assert foretold == n_kept == len(self.cache) <= asked
        if asked >= self._furthest - self.slack or not any(self.windows):
            assert n_kept == asked
        if n_kept != asked:  # a checkpoint, from where there is no slack
            marks = [mark for mark in self._marks if mark <= asked]
            assert n_kept in [0, *marks]
            if marks and self._n_marks_ever <= WINDOW_CHECKPOINTS:
                assert n_kept == marks[-1]
            self._furthest = n_kept + self.slack
        del self.ids[n_kept:]
        self._marks = [mark for mark in self._marks if mark <= n_kept]
        return n_kept

    def fork(self, length: int) -> Self:
        other = self.empty()
        other.cache = self.cache.fork(length)
        assert len(other.cache) == self.cache.reach(length)
        other.ids = self.ids[: len(other.cache)]
        other._marks = [mark for mark in self._marks if mark <= len(other.ids)]
        other._n_marks_ever = other._furthest = (
            10**9
        )  # any of its marks may be gone, and it need have no slack
        return other

    def restored(self, *, n_before: int = 0) -> Self:
        """Return a cache that held other positions before and then what this one exports."""
        other = self.empty()
        other.feed(n_before, id_=99)
        other.cache.mark()
        arrays = {name: np.array(array, order="F") for name, array in self.cache.export().items()}
        other.cache.restore(len(self.ids), arrays)
        for array in arrays.values():
            array[:] = 0  # they are the caller's
        other.ids, other._furthest = list(self.ids), self._furthest
        return other

    def empty(self) -> Self:
        return type(self)(self.windows, slack=self.slack)

    def check(self) -> None:
        """Check the length, and all that the next token can see."""
        assert len(self.cache) == len(self.ids)
        floats = dict(self.cache.as_floats())
        assert list(floats) == [
            f"{part} {n}" for n in range(len(self.windows)) for part in ("keys", "values")
        ]
        for name, array in floats.items():
            part, layer = name.split()
            first = first_seen(self.windows[int(layer)], len(self.ids))
            assert np.array_equal(array, self.expected(part, int(layer), first)), name


class FedFloats(Fed):
    """A `KvCache`, for which every written token also checks what it is given."""

    parts = ("keys", "values")
    row_bytes = 2 * N_KV_HEADS * HEAD_DIM * 4

    def __init__(self, windows: Windows = ALL, *, slack: int = SLACK) -> None:
        super().__init__(windows, slack=slack)
        self.cache: KvCache = KvCache(windows=windows, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=slack)

    def write(self, ids: Sequence[int]) -> None:
        position = len(self.cache)
        for layer, window in enumerate(self.windows):
            whole = [contents(part, layer, ids).astype(np.float32) for part in self.parts]
            keys, values = (array[:, position:].transpose(1, 0, 2) for array in whole)
            seen = self.cache.write(layer, keys, values, position)
            for found, array in zip(seen, whole, strict=True):
                assert np.array_equal(found, array[:, first_seen(window, position) :])

    def expected(self, part: str, layer: int, first: int) -> NDArray[np.float32]:
        return contents(part, layer, self.ids, first).astype(np.float32)


class FedPacked(Fed):
    """A `PackedKvCache`, written and read by address as kernels do."""

    parts = tuple(CachePart)
    row_bytes = 2 * N_KV_HEADS * (2 * HEAD_DIM + 4)

    def __init__(self, windows: Windows = ALL, *, slack: int = SLACK) -> None:
        super().__init__(windows, slack=slack)
        self.cache: PackedKvCache = PackedKvCache(
            windows=windows, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=slack
        )

    def write(self, ids: Sequence[int]) -> None:
        first = len(self.cache)
        self.cache.reserve(len(ids))
        assert self.cache.room.start <= first <= len(ids) <= self.cache.room.stop
        for layer in range(len(self.windows)):
            for array, new in self._rows(layer, ids, first):
                array[:] = new

    def expected(self, part: str, layer: int, first: int) -> NDArray[np.float32]:
        scales = {"keys": CachePart.KEY_SCALES, "values": CachePart.VALUE_SCALES}[part]
        numbers, factors = (contents(each, layer, self.ids, first) for each in (part, scales))
        return numbers.astype(np.float32) * factors[..., :1].astype(np.float32)

    def check(self) -> None:
        super().check()
        assert self.cache.room.start <= len(self.ids) <= self.cache.room.stop
        for layer, window in enumerate(self.windows):
            for array, expected in self._rows(layer, self.ids, first_seen(window, len(self.ids))):
                assert np.array_equal(array, expected)

    def _rows(
        self, layer: int, ids: Sequence[int], first: int
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the positions from `first` on in each array and head, by address, and what they are to be."""
        for part in CachePart:
            kind: type[Any] = ctypes.c_float if part.is_scales else ctypes.c_int16
            width = 1 if part.is_scales else HEAD_DIM
            for head, numbers in enumerate(contents(part, layer, ids, first)):
                row = head * self.cache.capacity(layer) + first
                address = self.cache.address(layer, part) + row * width * ctypes.sizeof(kind)
                memory = (kind * numbers[:, :width].size).from_address(address)
                yield np.frombuffer(memory, kind).reshape(-1, width), numbers[:, :width]


class ScarceNumpy:
    """numpy, until its memory is used up, or the user interrupts; it counts what it allocates."""

    def __init__(self, n_arrays: float = np.inf, error: type[BaseException] = MemoryError) -> None:
        self._n_arrays, self._error = n_arrays, error
        self.n_allocated = 0

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any) -> NDArray[Any]:
        if self.n_allocated >= self._n_arrays:
            raise self._error
        self.n_allocated += 1
        return np.empty(shape, dtype)
