"""The KV cache of the compiled kernels: packed numbers that only they read and write.

Knows positions, never token ids.
"""

import sys
from collections.abc import Sequence

from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.layer_cache import LayerCache
from turbospark_chat.models.packed_layer import CachePart, PackedLayer
from turbospark_chat.models.retention import WINDOW_SLACK


def packed_row_bytes(config: ModelConfig) -> int:
    """Return the bytes of a position in one layer."""
    return 2 * config.n_kv_heads * (2 * config.head_dim + 4)


class PackedKvCache(LayerCache[PackedLayer]):
    """Rows that kernels write by address, for which room is made beforehand.

    Addresses and room hold until `n_moves` changes.
    """

    def __init__(
        self, *, windows: Sequence[int | None], n_kv_heads: int, head_dim: int, slack: int = WINDOW_SLACK
    ) -> None:
        """Make an empty cache. `windows`: how many positions each layer sees, None for all."""
        nothing = PackedLayer.empty(n_kv_heads=n_kv_heads, head_dim=head_dim)
        super().__init__(windows=windows, slack=slack, nothing=nothing)

    @property
    def room(self) -> range:
        """The positions that can be written: every layer holds what the first of them sees, and has rows for them."""
        layers = list(self._kept())
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
        for index, layer in enumerate(self._layers):
            if length - layer.base > layer.capacity:
                self._grow(index, self._length, length)
