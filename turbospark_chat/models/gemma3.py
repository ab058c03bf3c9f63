"""The `gemma3` architecture, text only: windows on most layers, norms on both sides of every step, GeGLU.

Knows neither who does the arithmetic nor how the weights are stored. https://arxiv.org/abs/2503.19786
"""

import math
from typing import Generic

from turbospark_chat.models import layers
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import ForwardPass, W, X
from turbospark_chat.models.gemma3_weights import Gemma3Block, Gemma3Weights

_LOCAL, _GLOBAL = 0, 1  # RoPE tables: of layers with a window, and of those that see everything
_LAYERS_OF_27B = 62  # the one size whose scores are divided by sqrt(dim / n_heads) and not by sqrt(head_dim)


class Gemma3(Generic[W]):
    """The architecture over given weights, whoever computes it."""

    def __init__(self, config: ModelConfig, weights: Gemma3Weights[W], *, vocab_size: int) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.frequencies = (
            layers.rope_frequencies(config.rope_dim, config.window_rope_theta),  # never scaled
            layers.rope_frequencies(config.rope_dim, config.rope_theta, scale=config.rope_scale),
        )
        is_27b = config.n_layers == _LAYERS_OF_27B
        self._q_scale = math.sqrt(config.head_dim * config.n_heads / config.dim) if is_27b else 1.0
        self._weights = weights

    def hidden(self, run: ForwardPass[X, W]) -> X:
        """Return what the last layer makes of the tokens, (T, D)."""
        eps = self.config.norm_eps
        x = run.scale(run.embed(self._weights.token_embd), math.sqrt(self.config.dim))
        for index, block in enumerate(self._weights.blocks):
            attended = self._attend(run, run.rms_norm(x, block.attn_norm, eps), block, index)
            x = run.add(x, run.rms_norm(attended, block.post_attention_norm, eps))
            normed = run.rms_norm(x, block.ffn_norm, eps)
            gated = run.geglu(
                block.ffn_gate.project(run, normed), block.ffn_up.project(run, normed)
            )  # (T, F)
            x = run.add(x, run.rms_norm(block.ffn_down.project(run, gated), block.post_ffw_norm, eps))
        return x

    def logits(self, run: ForwardPass[X, W], x: X) -> X:
        """Return the logits (1, V) that follow the last token of x (T, D)."""
        normed = run.rms_norm(run.last(x), self._weights.output_norm, self.config.norm_eps)
        return run.linear(normed, self._weights.output, None)

    def _attend(self, run: ForwardPass[X, W], x: X, block: Gemma3Block[W], index: int) -> X:
        eps, head_dim = self.config.norm_eps, self.config.head_dim
        table = _GLOBAL if self.config.windows[index] is None else _LOCAL
        q = run.head_norm(block.attn_q.project(run, x), block.attn_q_norm, eps, head_dim)
        k = run.head_norm(block.attn_k.project(run, x), block.attn_k_norm, eps, head_dim)
        q, k = (run.rope(heads, head_dim, interleaved=False, table=table) for heads in (q, k))
        if self._q_scale != 1.0:
            q = run.scale(q, self._q_scale)
        return block.attn_output.project(run, run.attention(q, k, block.attn_v.project(run, x), index))
