"""The weights of the `llama` architecture, and taking them from a file by name and shape.

Knows no file format, and no more of how a matrix is stored than that something else reads it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol

import numpy as np

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import W
from turbospark_chat.models.layers import Array


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
        """Return a tensor as a read-only float32 array in its shape."""


@dataclass(frozen=True, slots=True)
class Linear(Generic[W]):
    """A projection: weight (out, in) and, in some models, bias (out,)."""

    weight: W
    bias: Array | None = None


@dataclass(frozen=True, slots=True)
class BlockWeights(Generic[W]):
    """One layer's weights, under GGUF's names."""

    attn_norm: Array  # (D,)
    attn_q: Linear[W]  # (H * Hd, D)
    attn_k: Linear[W]  # (KV * Hd, D)
    attn_v: Linear[W]  # (KV * Hd, D)
    attn_output: Linear[W]  # (D, H * Hd)
    ffn_norm: Array  # (D,)
    ffn_gate: Linear[W]  # (F, D)
    ffn_up: Linear[W]  # (F, D)
    ffn_down: Linear[W]  # (D, F)


@dataclass(frozen=True, slots=True)
class LlamaWeights(Generic[W]):
    """All weights. `output` is `token_embd` itself where the file ties them."""

    token_embd: W  # (V, D)
    blocks: tuple[BlockWeights[W], ...]
    output_norm: Array  # (D,)
    output: W  # (V, D)
    rope_divisors: Array | None  # (rope_dim / 2,)


class _Loader(Generic[W]):
    """Takes tensors from a file by name and expected shape, and notices any left over."""

    def __init__(
        self, source: TensorSource, *, vector: Callable[[str], Array], matrix: Callable[[str], W]
    ) -> None:
        self._source, self._read_vector, self._read_matrix = source, vector, matrix
        self._left = set(source.tensors)

    @property
    def n_rows(self) -> int:
        """Rows V of the embedding: the file's own, since a vocabulary may be padded."""
        embedding = self._source.tensors.get("token_embd.weight")
        return embedding.shape[0] if embedding and embedding.shape else 0

    def matrix(self, name: str, n_out: int, n_in: int) -> W:
        self._check(name, (n_out, n_in))
        return self._read_matrix(name)

    def vector(self, name: str, length: int) -> Array:
        self._check(name, (length,))
        return self._read_vector(name)

    def optional_vector(self, name: str, length: int) -> Array | None:
        return self.vector(name, length) if name in self._source.tensors else None

    def optional_matrix(self, name: str, n_out: int, n_in: int) -> W | None:
        return self.matrix(name, n_out, n_in) if name in self._source.tensors else None

    def linear(self, name: str, n_out: int, n_in: int) -> Linear[W]:
        return Linear(self.matrix(f"{name}.weight", n_out, n_in), self.optional_vector(f"{name}.bias", n_out))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._source.tensors:
            raise ModelFileError(
                self._source.path, f"tensor `{name}` is missing; the `llama` architecture needs it"
            )
        found = self._source.tensors[name].shape
        if found != shape:
            raise ModelFileError(self._source.path, f"tensor `{name}` has shape {found}, expected {shape}")
        self._left.discard(name)

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
    loader = _Loader(
        source, vector=lambda name: np.empty(0, np.float32), matrix=lambda name: np.empty(0, np.float32)
    )
    _load_all(loader, config)
    loader.refuse_leftovers()


def load_weights(
    source: TensorSource, config: ModelConfig, read_matrix: Callable[[str], W]
) -> LlamaWeights[W]:
    """Load the weights: vectors as read-only float32 arrays, matrices as `read_matrix` gives them by name.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_weights`; or a RoPE divisor divides by nothing.
    """
    check_weights(source, config)
    weights = _load_all(_Loader(source, vector=source.load, matrix=read_matrix), config)
    divisors = weights.rope_divisors
    if divisors is not None and not np.all((divisors > 0) & np.isfinite(divisors)):
        raise ModelFileError(source.path, "tensor `rope_freqs.weight` has values that are not above 0")
    return weights


def _load_all(load: _Loader[W], config: ModelConfig) -> LlamaWeights[W]:
    token_embd = load.matrix("token_embd.weight", load.n_rows, config.dim)
    output = load.optional_matrix("output.weight", load.n_rows, config.dim)
    return LlamaWeights(
        token_embd=token_embd,
        blocks=tuple(_load_block(load, f"blk.{index}", config) for index in range(config.n_layers)),
        output_norm=load.vector("output_norm.weight", config.dim),
        output=token_embd if output is None else output,
        rope_divisors=load.optional_vector("rope_freqs.weight", config.rope_dim // 2),
    )


def _load_block(load: _Loader[W], block: str, config: ModelConfig) -> BlockWeights[W]:
    dim, ffn_dim = config.dim, config.ffn_dim
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return BlockWeights(
        attn_norm=load.vector(f"{block}.attn_norm.weight", dim),
        attn_q=load.linear(f"{block}.attn_q", q_dim, dim),
        attn_k=load.linear(f"{block}.attn_k", kv_dim, dim),
        attn_v=load.linear(f"{block}.attn_v", kv_dim, dim),
        attn_output=load.linear(f"{block}.attn_output", dim, q_dim),
        ffn_norm=load.vector(f"{block}.ffn_norm.weight", dim),
        ffn_gate=load.linear(f"{block}.ffn_gate", ffn_dim, dim),
        ffn_up=load.linear(f"{block}.ffn_up", ffn_dim, dim),
        ffn_down=load.linear(f"{block}.ffn_down", dim, ffn_dim),
    )
