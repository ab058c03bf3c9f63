"""The `llama` architecture: grouped-query attention, interleaved RoPE, SwiGLU. Llama, Mistral, SmolLM and kin.

Knows neither who does the arithmetic nor how the weights are stored.
"""

from typing import Generic

from turbospark_chat.models import layers
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import ForwardPass, W, X
from turbospark_chat.models.llama_weights import BlockWeights, LlamaWeights


class Llama(Generic[W]):
    """The architecture over given weights, whoever computes it."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights[W], *, vocab_size: int) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.frequencies = (
            layers.rope_frequencies(
                config.rope_dim, config.rope_theta, scale=config.rope_scale, divisors=weights.rope_divisors
            ),
        )
        self._weights = weights

    def hidden(self, run: ForwardPass[X, W]) -> X:
        """Return what the last layer makes of the tokens, (T, D)."""
        eps = self.config.norm_eps
        x = run.embed(self._weights.token_embd)
        for index, block in enumerate(self._weights.blocks):
            x = run.add(x, self._attend(run, run.rms_norm(x, block.attn_norm, eps), block, index))
            normed = run.rms_norm(x, block.ffn_norm, eps)
            gate, up = block.ffn_gate.project(run, normed), block.ffn_up.project(run, normed)  # (T, F)
            x = run.add(x, block.ffn_down.project(run, run.swiglu(gate, up)))
        return x

    def logits(self, run: ForwardPass[X, W], x: X) -> X:
        """Return the logits (1, V) that follow the last token of x (T, D)."""
        normed = run.rms_norm(run.last(x), self._weights.output_norm, self.config.norm_eps)
        return run.linear(normed, self._weights.output, None)

    def _attend(self, run: ForwardPass[X, W], x: X, block: BlockWeights[W], index: int) -> X:
        head_dim = self.config.head_dim
        q, k, v = (linear.project(run, x) for linear in (block.attn_q, block.attn_k, block.attn_v))
        # GGUF's converter permutes the rows of Q and K for neighbouring pairs, so the rows stay as they are.
        q, k = (run.rope(heads, head_dim, interleaved=True) for heads in (q, k))
        return block.attn_output.project(run, run.attention(q, k, v, index))
