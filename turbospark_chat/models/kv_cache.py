"""The keys and values of every layer, growing as they are used. Knows positions, never token ids."""

import numpy as np

from turbospark_chat.models.layers import Array

GROWTH_STEP = 256  # positions


class KvCache:
    """Keys and values (KV, capacity, Hd) per layer, of which the first `length` positions are filled.

    Capacity is only room: no caller sees it. Writing fills rows past `length`; they count once `commit` moves
    `length`, so a forward pass that fails half way leaves the cache as it was.
    """

    def __init__(self, *, n_layers: int, n_kv_heads: int, head_dim: int) -> None:
        self.head_dim = head_dim
        empty = (n_kv_heads, 0, head_dim)
        self._keys = [np.empty(empty, np.float32) for _ in range(n_layers)]
        self._values = [np.empty(empty, np.float32) for _ in range(n_layers)]
        self._length = 0

    def __len__(self) -> int:
        """How many positions are filled."""
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes allocated, room included."""
        return sum(array.nbytes for array in (*self._keys, *self._values))

    def write(self, layer: int, keys: Array, values: Array, position: int) -> tuple[Array, Array]:
        """Store keys and values (T, KV, Hd) from `position` on; return those of all positions so far (KV, S, Hd)."""
        end = position + len(keys)
        for arrays, rows in ((self._keys, keys), (self._values, values)):
            if arrays[layer].shape[1] < end:
                arrays[layer] = _grown(arrays[layer], end, keep=position)
            arrays[layer][:, position:end] = rows.transpose(1, 0, 2)
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    def commit(self, length: int) -> None:
        """Count the positions before `length` as filled, once every layer has written them."""
        self._length = length

    def truncate(self, length: int) -> int:
        """Cut to at most `length` positions and return how many are kept."""
        self._length = min(self._length, max(length, 0))
        return self._length


def _grown(array: Array, needed: int, *, keep: int) -> Array:
    """Copy the first `keep` positions into an array with room for `needed`, half as much again and whole steps."""
    roomy = max(needed, array.shape[1] * 3 // 2)
    capacity = -(-roomy // GROWTH_STEP) * GROWTH_STEP
    larger = np.empty((array.shape[0], capacity, array.shape[2]), np.float32)
    larger[:, :keep] = array[:, :keep]
    return larger
