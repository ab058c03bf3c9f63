"""The `llama` architecture: grouped-query attention, interleaved RoPE, SwiGLU. Llama, Mistral, SmolLM and kin.

Knows no quantised format (it asks a tensor source for float32) and no token text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models import layers
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array, LayerOps


class ShapedTensor(Protocol):
    """A tensor's description in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, as in numpy."""


class TensorSource(Protocol):
    """A model file, as far as weights go."""

    @property
    def path(self) -> Path:
        """The file, for messages."""

    @property
    def tensors(self) -> Mapping[str, ShapedTensor]:
        """Every tensor by name."""

    def load(self, name: str) -> Array:
        """Return a tensor as float32 in its shape."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection: weight (out, in) and, in some models, bias (out,)."""

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer's weights, under GGUF's names."""

    attn_norm: Array  # (D,)
    attn_q: Linear  # (H * Hd, D)
    attn_k: Linear  # (KV * Hd, D)
    attn_v: Linear  # (KV * Hd, D)
    attn_output: Linear  # (D, H * Hd)
    ffn_norm: Array  # (D,)
    ffn_gate: Linear  # (F, D)
    ffn_up: Linear  # (F, D)
    ffn_down: Linear  # (D, F)


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights. `output` is `token_embd` itself where the file ties them."""

    token_embd: Array  # (V, D)
    blocks: tuple[BlockWeights, ...]
    output_norm: Array  # (D,)
    output: Array  # (V, D)
    rope_divisors: Array | None  # (rope_dim / 2,)


class Llama:
    """A forward pass over given weights; the state is the cache it is handed."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, *, ops: LayerOps = layers) -> None:
        self._config = config
        self._weights = weights
        self._ops = ops
        self._frequencies = layers.rope_frequencies(
            config.rope_dim, config.rope_theta, scale=config.rope_scale, divisors=weights.rope_divisors
        )

    @property
    def vocab_size(self) -> int:
        """Rows V of the output head, which may be padded past the tokenizer's ids."""
        return len(self._weights.output)

    def make_state(self) -> KvCache:
        """Return an empty cache of this model's shape."""
        config = self._config
        return KvCache(n_layers=config.n_layers, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)

    # What a damaged weight does shows in the logits, for the sampler to name; numpy need not warn at each step.
    @np.errstate(over="ignore", invalid="ignore")
    def forward(self, tokens: Sequence[int], state: KvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state is as long as before.
        """
        ops, config, weights = self._ops, self._config, self._weights
        position = len(state)
        cos, sin = layers.rope_table(self._frequencies, position, len(tokens))
        x = weights.token_embd[np.asarray(tokens, np.int64)]  # (T, D)
        for index, block in enumerate(weights.blocks):
            normed = ops.rms_norm(x, block.attn_norm, config.norm_eps)  # (T, D)
            x = x + self._attend(normed, block, index, state, cos, sin)
            normed = ops.rms_norm(x, block.ffn_norm, config.norm_eps)  # (T, D)
            gate, up = self._project(normed, block.ffn_gate), self._project(normed, block.ffn_up)  # (T, F)
            x = x + self._project(ops.swiglu(gate, up), block.ffn_down)
        logits = self._head(x[-1:]) if need_logits else None
        state.commit(position + len(tokens))  # last, so that whatever fails leaves the state alone
        return logits

    def _attend(
        self, x: Array, block: BlockWeights, index: int, cache: KvCache, cos: Array, sin: Array
    ) -> Array:
        """Attend from x (T, D) over the cache and itself; return (T, D)."""
        ops, config, n_tokens = self._ops, self._config, len(x)
        q = self._project(x, block.attn_q).reshape(n_tokens, config.n_heads, config.head_dim)
        k = self._project(x, block.attn_k).reshape(n_tokens, config.n_kv_heads, config.head_dim)
        v = self._project(x, block.attn_v).reshape(n_tokens, config.n_kv_heads, config.head_dim)
        # GGUF's converter permutes the rows of Q and K for neighbouring pairs, so the rows stay as they are.
        q = ops.apply_rope(q, cos, sin, interleaved=True)
        k = ops.apply_rope(k, cos, sin, interleaved=True)
        position = len(cache)
        keys, values = cache.write(index, k, v, position)  # (KV, S, Hd)
        return self._project(ops.attention(q, keys, values, position), block.attn_output)

    def _head(self, x: Array) -> Array:
        """Return the logits (V,) that follow from the last token's x (1, D)."""
        normed = self._ops.rms_norm(x, self._weights.output_norm, self._config.norm_eps)  # (1, D)
        logits: Array = self._ops.linear(normed, self._weights.output)[0]  # (V,)
        return logits

    def _project(self, x: Array, linear: Linear) -> Array:
        return self._ops.linear(x, linear.weight, linear.bias)


class _Loader:
    """Takes tensors from a file by name and expected shape, and notices any left over."""

    def __init__(self, source: TensorSource, read: Callable[[str], Array]) -> None:
        self._source, self._read = source, read
        self._left = set(source.tensors)

    @property
    def n_rows(self) -> int:
        """Rows V of the embedding: the file's own, since a vocabulary may be padded."""
        embedding = self._source.tensors.get("token_embd.weight")
        return embedding.shape[0] if embedding and embedding.shape else 0

    def tensor(self, name: str, *shape: int) -> Array:
        if name not in self._source.tensors:
            raise ModelFileError(
                self._source.path, f"tensor `{name}` is missing; the `llama` architecture needs it"
            )
        found = self._source.tensors[name].shape
        if found != shape:
            raise ModelFileError(self._source.path, f"tensor `{name}` has shape {found}, expected {shape}")
        self._left.discard(name)
        values = self._read(name)
        values.setflags(write=False)  # a kernel that writes a weight must fail
        return values

    def optional(self, name: str, *shape: int) -> Array | None:
        return self.tensor(name, *shape) if name in self._source.tensors else None

    def linear(self, name: str, n_out: int, n_in: int) -> Linear:
        return Linear(self.tensor(f"{name}.weight", n_out, n_in), self.optional(f"{name}.bias", n_out))

    def refuse_leftovers(self) -> None:
        if self._left:
            raise UnsupportedModelError(
                self._source.path, f"tensor `{min(self._left)}` has no part in the `llama` architecture"
            )


def check_weights(source: TensorSource, config: ModelConfig) -> None:
    """Check that the file has the tensors of this architecture, in their shapes, and no others; load none.

    Raises:
        ModelFileError: a tensor is missing or has another shape than the metadata says.
        UnsupportedModelError: the file has tensors this architecture does not use.
    """
    loader = _Loader(source, read=lambda name: np.empty(0, np.float32))
    _load_all(loader, config)
    loader.refuse_leftovers()


def load_weights(source: TensorSource, config: ModelConfig) -> LlamaWeights:
    """Load every weight as a read-only float32 array.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_weights`; or a RoPE divisor divides by nothing.
    """
    check_weights(source, config)
    weights = _load_all(_Loader(source, read=source.load), config)
    divisors = weights.rope_divisors
    if divisors is not None and not np.all((divisors > 0) & np.isfinite(divisors)):
        raise ModelFileError(source.path, "tensor `rope_freqs.weight` has values that are not above 0")
    return weights


def _load_all(load: _Loader, config: ModelConfig) -> LlamaWeights:
    token_embd = load.tensor("token_embd.weight", load.n_rows, config.dim)
    output = load.optional("output.weight", load.n_rows, config.dim)
    return LlamaWeights(
        token_embd=token_embd,
        blocks=tuple(_load_block(load, f"blk.{index}", config) for index in range(config.n_layers)),
        output_norm=load.tensor("output_norm.weight", config.dim),
        output=token_embd if output is None else output,
        rope_divisors=load.optional("rope_freqs.weight", config.rope_dim // 2),
    )


def _load_block(load: _Loader, block: str, config: ModelConfig) -> BlockWeights:
    dim, ffn_dim = config.dim, config.ffn_dim
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return BlockWeights(
        attn_norm=load.tensor(f"{block}.attn_norm.weight", dim),
        attn_q=load.linear(f"{block}.attn_q", q_dim, dim),
        attn_k=load.linear(f"{block}.attn_k", kv_dim, dim),
        attn_v=load.linear(f"{block}.attn_v", kv_dim, dim),
        attn_output=load.linear(f"{block}.attn_output", dim, q_dim),
        ffn_norm=load.tensor(f"{block}.ffn_norm.weight", dim),
        ffn_gate=load.linear(f"{block}.ffn_gate", ffn_dim, dim),
        ffn_up=load.linear(f"{block}.ffn_up", ffn_dim, dim),
        ffn_down=load.linear(f"{block}.ffn_down", dim, ffn_dim),
    )
