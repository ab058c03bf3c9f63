"""Gemma 3 written out plainly, over weights as Hugging Face has them: every position at once, and masks for windows.

Shares nothing with the engine. A norm's weight is one less than what a row is multiplied with, as that code has it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Gemma3Sizes:
    """The numbers of a model. Layers are local, but for every `pattern`th."""

    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int
    pattern: int = 6
    local_theta: float = 1e4
    global_theta: float = 1e6
    global_scale: float = 1.0
    eps: float = 1e-6
    score_dim: int | None = None  # scores are divided by its root; None: head_dim

    def is_local(self, layer: int) -> bool:
        return (layer + 1) % self.pattern != 0


class Gemma3Reference:
    """Hidden states and logits of whole sequences, in the precision of the weights."""

    def __init__(self, sizes: Gemma3Sizes, weights: Mapping[str, Floats]) -> None:
        self._sizes, self._weights = sizes, weights

    def logits(self, token_ids: Sequence[int], positions: Sequence[int] = (-1,)) -> Floats:
        """Return the logits (P, V) after each of the positions."""
        embedding = self._weights["token_embd.weight"]
        x = embedding[list(token_ids)] * math.sqrt(self._sizes.dim)
        for layer in range(self._sizes.n_layers):
            name = f"blk.{layer}."
            x = x + self._norm(
                self._attend(self._norm(x, name + "attn_norm"), layer), name + "post_attention_norm"
            )
            normed = self._norm(x, name + "ffn_norm")
            gate = self._project(normed, name + "ffn_gate")
            gelu = gate / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)))
            down = self._project(gelu * self._project(normed, name + "ffn_up"), name + "ffn_down")
            x = x + self._norm(down, name + "post_ffw_norm")
        head = self._weights.get("output.weight", embedding)
        return self._norm(x[list(positions)], "output_norm") @ head.T

    def _attend(self, x: Floats, layer: int) -> Floats:
        sizes, name, n_tokens = self._sizes, f"blk.{layer}.", len(x)
        q, k, v = (
            self._project(x, name + part).reshape(n_tokens, -1, sizes.head_dim)
            for part in ("attn_q", "attn_k", "attn_v")
        )
        q = self._turn(self._norm(q, name + "attn_q_norm"), layer)
        k = self._turn(self._norm(k, name + "attn_k_norm"), layer)
        ago = np.arange(n_tokens)[:, None] - np.arange(n_tokens)
        is_seen = (ago >= 0) & (ago < (sizes.window if sizes.is_local(layer) else n_tokens))
        mixed = np.empty_like(q)
        for head in range(sizes.n_heads):
            shared = head // (sizes.n_heads // sizes.n_kv_heads)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(sizes.score_dim or sizes.head_dim)
            scores = np.where(is_seen, scores, -np.inf)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, shared]
        return self._project(mixed.reshape(n_tokens, -1), name + "attn_output")

    def _turn(self, heads: Floats, layer: int) -> Floats:
        sizes, half = self._sizes, self._sizes.head_dim // 2
        is_local = sizes.is_local(layer)
        theta, scale = (sizes.local_theta, 1.0) if is_local else (sizes.global_theta, sizes.global_scale)
        angles = np.arange(len(heads))[:, None, None] / scale * theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles).astype(heads.dtype), np.sin(angles).astype(heads.dtype)
        first, second = heads[..., :half], heads[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _norm(self, x: Floats, name: str) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self._sizes.eps) * (1 + self._weights[f"{name}.weight"])

    def _project(self, x: Floats, name: str) -> Floats:
        return x @ self._weights[f"{name}.weight"].T
