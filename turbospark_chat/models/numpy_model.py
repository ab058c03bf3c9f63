"""Runs an architecture in numpy, operation by operation: the reference, and what runs where nothing compiles."""

from collections.abc import Sequence

import numpy as np

from turbospark_chat.models import layers
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array
from turbospark_chat.models.llama import Llama


class NumpyPass:
    """A forward pass that computes at once."""

    def __init__(self, tokens: Sequence[int], cache: KvCache, cos: Array, sin: Array) -> None:
        self._tokens, self._cache = tokens, cache
        self._cos, self._sin = cos, sin

    def embed(self, table: Array) -> Array:
        """See `ForwardPass`."""
        rows: Array = table[np.asarray(self._tokens, np.int64)]
        return rows

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """See `ForwardPass`."""
        return layers.rms_norm(x, weight, eps)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See `ForwardPass`."""
        return layers.linear(x, weight, bias)

    def rope(self, x: Array, head_dim: int, *, interleaved: bool) -> Array:
        """See `ForwardPass`."""
        heads = x.reshape(len(x), -1, head_dim)
        return layers.apply_rope(heads, self._cos, self._sin, interleaved=interleaved).reshape(x.shape)

    def attention(self, q: Array, k: Array, v: Array, layer: int) -> Array:
        """See `ForwardPass`."""
        head_dim, position = self._cache.head_dim, len(self._cache)
        k, v = (x.reshape(len(x), -1, head_dim) for x in (k, v))
        keys, values = self._cache.write(layer, k, v, position)  # (KV, S, Hd)
        return layers.attention(q.reshape(len(q), -1, head_dim), keys, values, position)

    def swiglu(self, gate: Array, up: Array) -> Array:
        """See `ForwardPass`."""
        return layers.swiglu(gate, up)

    def add(self, x: Array, y: Array) -> Array:
        """See `ForwardPass`."""
        return x + y

    def last(self, x: Array) -> Array:
        """See `ForwardPass`."""
        return x[-1:]


class NumpyModel:
    """A forward pass over float32 weights; the state is the cache it is handed."""

    arithmetic = "numpy, float32"

    def __init__(self, architecture: Llama[Array]) -> None:
        self._architecture = architecture

    @property
    def vocab_size(self) -> int:
        """Rows V of the output head, which may be padded past the tokenizer's ids."""
        return self._architecture.vocab_size

    @property
    def position_bytes(self) -> int:
        """Bytes of a position in the KV cache."""
        return self._architecture.config.kv_bytes(1, item_bytes=4)

    def make_state(self) -> KvCache:
        """Return an empty cache of this model's shape."""
        config = self._architecture.config
        return KvCache(n_layers=config.n_layers, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)

    # What a damaged weight does shows in the logits, for the sampler to name; numpy need not warn at each step.
    @np.errstate(over="ignore", invalid="ignore")
    def forward(self, tokens: Sequence[int], state: KvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state is as long as before.
        """
        position = len(state)
        cos, sin = layers.rope_table(self._architecture.frequencies, position, len(tokens))
        run = NumpyPass(tokens, state, cos, sin)
        x = self._architecture.hidden(run)
        logits = self._architecture.logits(run, x)[0] if need_logits else None
        state.commit(position + len(tokens))  # last, so that whatever fails leaves the state alone
        return logits
