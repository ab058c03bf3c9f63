"""Runs an architecture in numpy, operation by operation: the reference, and what runs where nothing compiles."""

from collections.abc import Sequence

import numpy as np

from turbospark_chat.models import layers
from turbospark_chat.models.forward_pass import Architecture
from turbospark_chat.models.kv_cache import KvCache, float_row_bytes
from turbospark_chat.models.layers import Array
from turbospark_chat.models.retention import WINDOW_SLACK


class NumpyPass:
    """A forward pass that computes at once."""

    def __init__(
        self,
        tokens: Sequence[int],
        cache: KvCache,
        rope_tables: Sequence[tuple[Array, Array]],
        *,
        needs_each: bool = False,
    ) -> None:
        self._tokens, self._cache, self._rope_tables = tokens, cache, rope_tables
        self._needs_each = needs_each

    def embed(self, table: Array) -> Array:
        """See `ForwardPass`."""
        rows: Array = table[np.asarray(self._tokens, np.int64)]
        return rows

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """See `ForwardPass`."""
        return layers.rms_norm(x, weight, eps)

    def head_norm(self, x: Array, weight: Array, eps: float, head_dim: int) -> Array:
        """See `ForwardPass`."""
        return layers.rms_norm(x.reshape(len(x), -1, head_dim), weight, eps).reshape(x.shape)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See `ForwardPass`."""
        return layers.linear(x, weight, bias)

    def rope(self, x: Array, head_dim: int, *, interleaved: bool, table: int = 0) -> Array:
        """See `ForwardPass`."""
        heads, (cos, sin) = x.reshape(len(x), -1, head_dim), self._rope_tables[table]
        return layers.apply_rope(heads, cos, sin, interleaved=interleaved).reshape(x.shape)

    def attention(self, q: Array, k: Array, v: Array, layer: int) -> Array:
        """See `ForwardPass`."""
        q, k, v = (x.reshape(len(x), -1, self._cache.head_dim) for x in (q, k, v))
        keys, values = self._cache.write(layer, k, v, len(self._cache))  # (KV, S, Hd): of what q can see
        own_row = keys.shape[1] - len(q)
        return layers.attention(q, keys, values, own_row, window=self._cache.windows[layer])

    def swiglu(self, gate: Array, up: Array) -> Array:
        """See `ForwardPass`."""
        return layers.swiglu(gate, up)

    def geglu(self, gate: Array, up: Array) -> Array:
        """See `ForwardPass`."""
        return layers.geglu(gate, up)

    def scale(self, x: Array, factor: float) -> Array:
        """See `ForwardPass`."""
        return x * np.float32(factor)

    def add(self, x: Array, y: Array) -> Array:
        """See `ForwardPass`."""
        return x + y

    def last(self, x: Array) -> Array:
        """See `ForwardPass`; where every token's logits are asked for, all rows."""
        return x if self._needs_each else x[-1:]


class NumpyModel:
    """A forward pass over float32 weights; the state is the cache it is handed."""

    arithmetic = "numpy, float32"

    def __init__(self, architecture: Architecture[Array], *, window_slack: int = WINDOW_SLACK) -> None:
        self._architecture, self._window_slack = architecture, window_slack

    @property
    def vocab_size(self) -> int:
        """Rows V of the output head, which may be padded past the tokenizer's ids."""
        return self._architecture.vocab_size

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in one layer's cache."""
        return float_row_bytes(self._architecture.config)

    @property
    def n_guesses(self) -> int:
        """None: two tokens take more than twice as long as one."""
        return 0

    def make_state(self) -> KvCache:
        """Return an empty cache of this model's shape."""
        config = self._architecture.config
        return KvCache(
            windows=config.windows,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            slack=self._window_slack,
        )

    # What a damaged weight does shows in the logits, for the sampler to name; numpy need not warn at each step.
    @np.errstate(over="ignore", invalid="ignore")
    def forward(self, tokens: Sequence[int], state: KvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state is as long as before.
        """
        run = self._begin(tokens, state)
        x = self._architecture.hidden(run)
        logits = self._architecture.logits(run, x)[0] if need_logits else None
        state.commit(len(state) + len(tokens))  # last, so that whatever fails leaves the state alone
        return logits

    @np.errstate(over="ignore", invalid="ignore")
    def forward_each(self, tokens: Sequence[int], state: KvCache) -> Array:
        """Run tokens as `forward` does and return the logits (T, V) after each."""
        run = self._begin(tokens, state, needs_each=True)
        logits = self._architecture.logits(run, self._architecture.hidden(run))
        state.commit(len(state) + len(tokens))
        return logits

    def _begin(self, tokens: Sequence[int], state: KvCache, *, needs_each: bool = False) -> NumpyPass:
        rope_tables = [
            layers.rope_table(frequencies, len(state), len(tokens))
            for frequencies in self._architecture.frequencies
        ]
        return NumpyPass(tokens, state, rope_tables, needs_each=needs_each)
