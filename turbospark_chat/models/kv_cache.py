"""The KV cache of the numpy pass: float32 keys and values. Knows positions, never token ids."""

from collections.abc import Sequence

import numpy as np

from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.layer_cache import LayerCache
from turbospark_chat.models.layer_rows import LayerRows
from turbospark_chat.models.layers import Array
from turbospark_chat.models.retention import WINDOW_SLACK


def float_row_bytes(config: ModelConfig) -> int:
    """Return the bytes of a position in one layer."""
    return 2 * config.n_kv_heads * config.head_dim * np.dtype(np.float32).itemsize


class KvCache(LayerCache[LayerRows]):
    """Keys and values of each layer, which makes its own room as it is written to."""

    def __init__(
        self, *, windows: Sequence[int | None], n_kv_heads: int, head_dim: int, slack: int = WINDOW_SLACK
    ) -> None:
        """Make an empty cache. `windows`: how many positions each layer sees, None for all."""
        none = np.empty((n_kv_heads, 0, head_dim), np.float32)
        super().__init__(windows=windows, slack=slack, nothing=LayerRows({"keys": none, "values": none}))
        self.head_dim = head_dim

    def write(self, layer: int, keys: Array, values: Array, position: int) -> tuple[Array, Array]:
        """Store keys and values (T, KV, Hd) from `position` on; return what those tokens see, (KV, S, Hd) each."""
        end = position + len(keys)
        if end - self._layers[layer].base > self._layers[layer].capacity:
            self._grow(layer, position, end)
        rows = self._layers[layer]
        written = rows.between(position, end)
        written["keys"][:] = keys.transpose(1, 0, 2)
        written["values"][:] = values.transpose(1, 0, 2)
        seen = rows.between(self._retentions[layer].first_seen(position), end)
        return seen["keys"], seen["values"]
