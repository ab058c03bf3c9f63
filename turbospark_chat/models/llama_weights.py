"""The weights of the `llama` architecture, under GGUF's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np

from turbospark_chat.errors import ModelFileError
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import W
from turbospark_chat.models.layers import Array
from turbospark_chat.models.weight_loader import Linear, TensorSource, WeightLoader, check_all


@dataclass(frozen=True, slots=True)
class BlockWeights(Generic[W]):
    """One layer's weights."""

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


def check_weights(source: TensorSource, config: ModelConfig) -> None:
    """Check that the file has the tensors of this architecture, in their shapes, and no others; load none.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_all`.
    """
    check_all(_load_all, source, config)


def load_weights(
    source: TensorSource, config: ModelConfig, read_matrix: Callable[[str], W]
) -> LlamaWeights[W]:
    """Load the weights: vectors as read-only float32 arrays, matrices as `read_matrix` gives them by name.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_weights`; or a RoPE divisor divides by nothing.
    """
    check_weights(source, config)
    loader = WeightLoader(source, config.architecture, vector=source.load, matrix=read_matrix)
    weights = _load_all(loader, config)
    divisors = weights.rope_divisors
    if divisors is not None and not np.all((divisors > 0) & np.isfinite(divisors)):
        raise ModelFileError(source.path, "tensor `rope_freqs.weight` has values that are not above 0")
    return weights


def _load_all(load: WeightLoader[W], config: ModelConfig) -> LlamaWeights[W]:
    token_embd = load.matrix("token_embd.weight", load.n_rows, config.dim)
    output = load.optional_matrix("output.weight", load.n_rows, config.dim)
    return LlamaWeights(
        token_embd=token_embd,
        blocks=tuple(_load_block(load, f"blk.{index}", config) for index in range(config.n_layers)),
        output_norm=load.vector("output_norm.weight", config.dim),
        output=token_embd if output is None else output,
        rope_divisors=load.optional_vector("rope_freqs.weight", config.rope_dim // 2),
    )


def _load_block(load: WeightLoader[W], block: str, config: ModelConfig) -> BlockWeights[W]:
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
