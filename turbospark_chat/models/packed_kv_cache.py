"""The KV cache of the compiled kernels: 16-bit whole numbers, with a scale for each head and position.

Logits come ten times as near to those of a float32 cache as with float16: the values of a head are of one magnitude,
and float16 spends five of its bits on others. The scales add four bytes to a head. Only kernels read and write the
numbers. Knows positions, never token ids.
"""

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.kv_cache import GROWTH_STEP


class CachePart(Enum):
    """An array that each layer has."""

    KEYS = "keys"  # int16 (KV, capacity, Hd)
    VALUES = "values"
    KEY_SCALES = "key scales"  # float32 (KV, capacity): what the numbers are to be multiplied with
    VALUE_SCALES = "value scales"

    @property
    def is_scales(self) -> bool:
        """Whether it holds one number a position, not one a dimension."""
        return self in (CachePart.KEY_SCALES, CachePart.VALUE_SCALES)


def packed_position_bytes(config: ModelConfig) -> int:
    """Return the bytes of a position in all layers."""
    return 2 * config.n_layers * config.n_kv_heads * (2 * config.head_dim + 4)


class PackedKvCache:
    """Room for positions in every layer, of which the first `length` are filled.

    What kernels write past `length` counts once `commit` moves it, so a forward pass that fails half way leaves the
    cache as it was.
    """

    def __init__(self, *, n_layers: int, n_kv_heads: int, head_dim: int) -> None:
        self._n_kv_heads, self._head_dim = n_kv_heads, head_dim
        self._layers = [{part: self._empty(part, 0) for part in CachePart} for _ in range(n_layers)]
        self._length = 0
        self._n_moves = 0

    def __len__(self) -> int:
        """How many positions are filled."""
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room included."""
        return sum(array.nbytes for layer in self._layers for array in layer.values())

    @property
    def n_moves(self) -> int:
        """How often arrays were replaced by larger ones: an address holds until it changes."""
        return self._n_moves

    def capacity(self, layer: int) -> int:
        """Return the positions that a layer has room for."""
        return int(self._layers[layer][CachePart.KEYS].shape[1])

    def address(self, layer: int, part: CachePart) -> int:
        """Return where an array begins."""
        return self._layers[layer][part].ctypes.data

    def reserve(self, length: int) -> None:
        """Make room for so many positions in every layer; the filled ones stay as they are.

        Raises:
            MemoryError: some layers may have grown; each has all its arrays alike, and no position is lost.
        """
        for index, layer in enumerate(self._layers):
            room = self.capacity(index)
            if room < length:
                capacity = -(-max(length, room * 3 // 2) // GROWTH_STEP) * GROWTH_STEP
                larger = {part: self._grown(part, layer[part], capacity) for part in CachePart}
                self._n_moves += 1  # before the move, lest an interrupt leave one uncounted
                self._layers[index] = larger

    def commit(self, length: int) -> None:
        """Count the positions before `length` as filled, once every layer has written them."""
        self._length = length

    def truncate(self, length: int) -> int:
        """Cut to at most `length` positions and return how many are kept."""
        self._length = min(self._length, max(length, 0))
        return self._length

    def _empty(self, part: CachePart, capacity: int) -> NDArray[Any]:
        shape = (self._n_kv_heads, capacity)
        return np.empty(shape, np.float32) if part.is_scales else np.empty((*shape, self._head_dim), np.int16)

    def _grown(self, part: CachePart, array: NDArray[Any], capacity: int) -> NDArray[Any]:
        larger = self._empty(part, capacity)
        larger[:, : self._length] = array[:, : self._length]
        return larger
