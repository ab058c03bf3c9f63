"""The weights of the `gemma3` architecture, under GGUF's names.

A norm's weight is what a row is multiplied with: Hugging Face's files hold one less, and GGUF's converter adds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import W
from turbospark_chat.models.layers import Array
from turbospark_chat.models.weight_loader import Linear, TensorSource, WeightLoader, check_all


@dataclass(frozen=True, slots=True)
class Gemma3Block(Generic[W]):
    """One layer's weights."""

    attn_norm: Array  # (D,)
    attn_q: Linear[W]  # (H * Hd, D)
    attn_q_norm: Array  # (Hd,)
    attn_k: Linear[W]  # (KV * Hd, D)
    attn_k_norm: Array  # (Hd,)
    attn_v: Linear[W]  # (KV * Hd, D)
    attn_output: Linear[W]  # (D, H * Hd)
    post_attention_norm: Array  # (D,)
    ffn_norm: Array  # (D,)
    ffn_gate: Linear[W]  # (F, D)
    ffn_up: Linear[W]  # (F, D)
    ffn_down: Linear[W]  # (D, F)
    post_ffw_norm: Array  # (D,)


@dataclass(frozen=True, slots=True)
class Gemma3Weights(Generic[W]):
    """All weights. `output` is `token_embd` itself where the file ties them."""

    token_embd: W  # (V, D)
    blocks: tuple[Gemma3Block[W], ...]
    output_norm: Array  # (D,)
    output: W  # (V, D)


def check_weights(source: TensorSource, config: ModelConfig) -> None:
    """Check that the file has the tensors of this architecture, in their shapes, and no others; load none.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_all`.
    """
    check_all(_load_all, source, config)


def load_weights(
    source: TensorSource, config: ModelConfig, read_matrix: Callable[[str], W]
) -> Gemma3Weights[W]:
    """Load the weights: vectors as read-only float32 arrays, matrices as `read_matrix` gives them by name.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_weights`.
    """
    check_weights(source, config)
    loader = WeightLoader(source, config.architecture, vector=source.load, matrix=read_matrix)
    return _load_all(loader, config)


def _load_all(load: WeightLoader[W], config: ModelConfig) -> Gemma3Weights[W]:
    token_embd = load.matrix("token_embd.weight", load.n_rows, config.dim)
    output = load.optional_matrix("output.weight", load.n_rows, config.dim)
    return Gemma3Weights(
        token_embd=token_embd,
        blocks=tuple(_load_block(load, f"blk.{index}", config) for index in range(config.n_layers)),
        output_norm=load.vector("output_norm.weight", config.dim),
        output=token_embd if output is None else output,
    )


def _load_block(load: WeightLoader[W], block: str, config: ModelConfig) -> Gemma3Block[W]:
    dim, ffn_dim, head_dim = config.dim, config.ffn_dim, config.head_dim
    q_dim, kv_dim = config.n_heads * head_dim, config.n_kv_heads * head_dim
    return Gemma3Block(
        attn_norm=load.vector(f"{block}.attn_norm.weight", dim),
        attn_q=load.linear(f"{block}.attn_q", q_dim, dim),
        attn_q_norm=load.vector(f"{block}.attn_q_norm.weight", head_dim),
        attn_k=load.linear(f"{block}.attn_k", kv_dim, dim),
        attn_k_norm=load.vector(f"{block}.attn_k_norm.weight", head_dim),
        attn_v=load.linear(f"{block}.attn_v", kv_dim, dim),
        attn_output=load.linear(f"{block}.attn_output", dim, q_dim),
        post_attention_norm=load.vector(f"{block}.post_attention_norm.weight", dim),
        ffn_norm=load.vector(f"{block}.ffn_norm.weight", dim),
        ffn_gate=load.linear(f"{block}.ffn_gate", ffn_dim, dim),
        ffn_up=load.linear(f"{block}.ffn_up", ffn_dim, dim),
        ffn_down=load.linear(f"{block}.ffn_down", dim, ffn_dim),
        post_ffw_norm=load.vector(f"{block}.post_ffw_norm.weight", dim),
    )
