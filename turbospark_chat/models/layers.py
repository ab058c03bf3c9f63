"""The arithmetic of a transformer in plain numpy: the readable truth that fast kernels are compared with.

Shapes: T tokens in this call · S tokens in the cache after it · D `dim` · H query heads · KV key/value heads ·
Hd `head_dim` · F `ffn_dim` · V vocabulary. No batch axis. Weights are stored as in the file, `(out, in)`.
Everything is float32, but for the angles of RoPE.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Angles = NDArray[np.float64]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Multiply x (T, in) by the transpose of weight (out, in) and add bias (out,)."""
    y: Array = x @ weight.T  # (T, out)
    if bias is not None:
        y += bias
    return y


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Scale x (T, D) to unit root mean square, times weight (D,). https://arxiv.org/abs/1910.07467"""
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))  # (T, 1)
    y: Array = x * scale * weight
    return y


def rope_frequencies(
    rope_dim: int, theta: float, *, scale: float = 1.0, divisors: Array | None = None
) -> Angles:
    """Return the angle per position of each rotated pair, (rope_dim / 2,).

    `scale` divides every angle (linear scaling); `divisors` (rope_dim / 2,) divides each pair's own, which is how
    GGUF carries Llama 3's scaling in `rope_freqs.weight`.
    """
    exponents = np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim
    frequencies = theta**-exponents / scale
    return frequencies if divisors is None else frequencies / divisors


def rope_table(frequencies: Angles, position: int, n_tokens: int) -> tuple[Array, Array]:
    """Return cosines and sines (T, rope_dim / 2) of the positions from `position` on.

    The angles are float64: at position 8191 float32 is off by up to 5e-4 rad.
    """
    positions = np.arange(position, position + n_tokens, dtype=np.float64)
    angles = positions[:, None] * frequencies[None, :]  # (T, rope_dim / 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def apply_rope(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Rotate the first dimensions of each head of x (T, H, Hd). https://arxiv.org/abs/2104.09864

    `interleaved` pairs neighbours (0 with 1), which fits the row order of GGUF's `llama` files, whose converter
    permutes Q and K for it; otherwise the first half is paired with the second (0 with rope_dim / 2).
    """
    half = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]  # (T, 1, rope_dim / 2)
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    rotated = x.copy()  # dimensions past rope_dim stay as they are
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def attention(q: Array, k: Array, v: Array, position: int, *, window: int | None = None) -> Array:
    """Causal attention of q (T, H, Hd) over k, v (KV, S, Hd); token t has row `position + t`. Returns (T, H * Hd).

    Query head h reads key/value head `h // (H / KV)`. Scores are scaled by 1 / sqrt(Hd). With a `window` a token sees
    so many rows, its own the last of them.
    """
    n_tokens, n_heads, head_dim = q.shape
    n_kv_heads, length, _ = k.shape
    group = n_heads // n_kv_heads
    grouped = q.reshape(n_tokens, n_kv_heads, group, head_dim).transpose(1, 2, 0, 3)  # (KV, G, T, Hd)
    rows = grouped.reshape(n_kv_heads, group * n_tokens, head_dim) * np.float32(head_dim**-0.5)
    scores: Array = np.matmul(rows, k.transpose(0, 2, 1))  # (KV, G * T, S)
    scores = scores.reshape(n_kv_heads, group, n_tokens, length)  # (KV, G, T, S)
    scores[..., position:] += np.triu(np.full((n_tokens, n_tokens), -np.inf, np.float32), k=1)  # the future
    if window is not None and length > window:
        scores += np.tril(np.full((n_tokens, length), -np.inf, np.float32), k=position - window)  # the past
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Array = scores.reshape(n_kv_heads, group * n_tokens, length) @ v  # (KV, G * T, Hd)
    heads = mixed.reshape(n_kv_heads, group, n_tokens, head_dim).transpose(2, 0, 1, 3)  # (T, KV, G, Hd)
    return heads.reshape(n_tokens, n_heads * head_dim)


def swiglu(gate: Array, up: Array) -> Array:
    """Return silu(gate) * up, both (T, F). https://arxiv.org/abs/2002.05202"""
    with np.errstate(over="ignore"):  # exp of a large -gate is inf, and x / inf is the right 0
        y: Array = np.multiply(gate / (1.0 + np.exp(-gate)), up)
    return y


def geglu(gate: Array, up: Array) -> Array:
    """Return gelu(gate) * up, both (T, F), by the approximation with tanh. https://arxiv.org/abs/1606.08415"""
    with np.errstate(over="ignore"):  # the tanh of an infinite number is the right 1
        inner = np.float32(math.sqrt(2 / math.pi)) * gate * (1 + np.float32(0.044715) * gate * gate)
    y: Array = np.float32(0.5) * gate * (1 + np.tanh(inner)) * up
    return y
