"""One gated delta net layer in plain numpy, as Qwen3-Next has it. https://arxiv.org/abs/2412.06464

Knows no cache: what a layer carries from one call to the next goes in and comes out as a value. No architecture that a
file can name is made of it yet.

Shapes besides those of `layers`: H value heads · HK heads of queries and keys, each read by H / HK value heads side
by side · Dk, Dv dimensions of a key and of a value · K inputs that the convolution sees · C its channels,
2 * HK * Dk + H * Dv.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from turbospark_chat.models import layers
from turbospark_chat.models.layers import Array

CHUNK_SIZE = 64  # tokens; the work within a chunk grows with its square
_L2_EPS = np.float32(1e-6)


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The sizes of a layer."""

    n_heads: int  # H
    n_key_heads: int  # HK
    key_dim: int  # Dk
    value_dim: int  # Dv
    kernel_size: int  # K

    @property
    def n_channels(self) -> int:
        """Channels C of the convolution: queries, keys, values."""
        return 2 * self.n_key_heads * self.key_dim + self.n_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The parameters of a layer."""

    qkv: Array  # (C, D)
    conv: Array  # (C, K), the oldest input first
    decay: Array  # (H, D)
    decay_bias: Array  # (H,)
    decay_rate: Array  # (H,), above 0: a file may have its logarithm
    beta: Array  # (H, D)
    gate: Array  # (H * Dv, D)
    norm: Array  # (Dv,)
    output: Array  # (D, H * Dv)


@dataclass(frozen=True, slots=True)
class DeltaMemory:
    """All that a layer knows of the tokens so far. It takes the arrays over and nobody writes into them again."""

    matrices: Array  # (H, Dk, Dv), from keys to values
    inputs: Array  # (K - 1, C), what the convolution saw last

    def __post_init__(self) -> None:
        """Close the arrays, so that a memory can be kept by keeping the reference."""
        self.matrices.flags.writeable = self.inputs.flags.writeable = False

    @classmethod
    def empty(cls, shape: DeltaShape) -> Self:
        """Return the memory before any token."""
        matrices = np.zeros((shape.n_heads, shape.key_dim, shape.value_dim), np.float32)
        return cls(matrices, np.zeros((shape.kernel_size - 1, shape.n_channels), np.float32))

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.matrices.nbytes + self.inputs.nbytes


def delta_net(
    x: Array, weights: DeltaWeights, shape: DeltaShape, memory: DeltaMemory, eps: float
) -> tuple[Array, DeltaMemory]:
    """Run x (T, D) through a layer from a memory on; return the output (T, D) and the memory after it."""
    mixed, inputs = causal_convolution(layers.linear(x, weights.qkv), weights.conv, memory.inputs)
    q, k, v = _heads(mixed, shape)
    steps = np.logaddexp(np.float32(0), layers.linear(x, weights.decay, weights.decay_bias))  # softplus
    log_decay = -weights.decay_rate * steps  # (T, H)
    beta = _sigmoid(layers.linear(x, weights.beta))  # (T, H)
    rule = delta_rule if len(x) == 1 else delta_rule_in_chunks
    read, matrices = rule(q, k, v, log_decay, beta, memory.matrices)
    gate = layers.linear(x, weights.gate).reshape(read.shape)  # (T, H, Dv)
    gated = layers.swiglu(gate, layers.rms_norm(read, weights.norm, eps)).reshape(len(x), -1)
    return layers.linear(gated, weights.output), DeltaMemory(matrices, inputs)


def causal_convolution(x: Array, weight: Array, before: Array) -> tuple[Array, Array]:
    """Weigh each channel of x (T, C) with its K - 1 last inputs and itself, then silu; `before` x came (K - 1, C).

    Returns (T, C), and the last K - 1 inputs to go on from.
    """
    seen = np.concatenate([before, x])  # (K - 1 + T, C)
    mixed = np.zeros_like(x)
    for age, column in enumerate(weight.T):  # (C,)
        mixed += column * seen[age : age + len(x)]
    # A copy: a view would keep all of `seen` alive.
    return layers.swiglu(mixed, np.ones_like(mixed)), seen[len(x) :].copy()


def delta_rule(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, matrices: Array
) -> tuple[Array, Array]:
    """Read and write the matrices (H, Dk, Dv) token by token: the readable truth.

    A head forgets by exp(log_decay), takes back a share `beta` of what the key k stands for, writes the same share of
    the value v in its place, and reads with q. q, k: (T, H, Dk); v: (T, H, Dv); log_decay, beta: (T, H).
    Returns what was read (T, H, Dv), and new matrices.
    """
    read = np.empty_like(v)
    for t in range(len(q)):
        matrices = matrices * np.exp(log_decay[t])[:, None, None]
        known = np.einsum("hkv,hk->hv", matrices, k[t])
        change = beta[t][:, None] * (v[t] - known)  # (H, Dv)
        matrices += k[t][:, :, None] * change[:, None, :]
        read[t] = np.einsum("hkv,hk->hv", matrices, q[t])
    return read, matrices


def delta_rule_in_chunks(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, matrices: Array, *, size: int = CHUNK_SIZE
) -> tuple[Array, Array]:
    """Compute `delta_rule` a chunk of tokens at a time, with matrix products; sums are in another order.

    What a token changes depends on the changes before it in the chunk, linearly: one triangular system a head.
    """
    parts = []
    for start in range(0, len(q), size):
        part = slice(start, start + size)
        read, matrices = _chunk(q[part], k[part], v[part], log_decay[part], beta[part], matrices)
        parts.append(read)
    return np.concatenate(parts), matrices


def _chunk(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, matrices: Array
) -> tuple[Array, Array]:
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))  # (H, T, Dk or Dv)
    share = beta.T[..., None]  # (H, T, 1)
    # float64: the difference of two large sums is to be a small one.
    total = np.cumsum(log_decay.T, axis=1, dtype=np.float64)  # (H, T)
    between = np.tril(total[:, :, None] - total[:, None, :])  # (H, T, T); the future could overflow
    left = np.tril(np.exp(between)).astype(np.float32)  # of what was written at j, at t
    since_start = np.exp(total).astype(np.float32)[..., None]  # (H, T, 1)
    system = np.eye(len(log_decay), dtype=np.float32) + np.tril(share * left * (k @ k.transpose(0, 2, 1)), -1)
    changes = np.linalg.solve(system, share * (v - since_start * (k @ matrices)))  # (H, T, Dv)
    read = since_start * (q @ matrices) + (left * (q @ k.transpose(0, 2, 1))) @ changes
    written = (k * left[:, -1, :, None]).transpose(0, 2, 1) @ changes  # (H, Dk, Dv)
    return read.transpose(1, 0, 2), since_start[:, -1:] * matrices + written


def _heads(mixed: Array, shape: DeltaShape) -> tuple[Array, Array, Array]:
    """Split channels (T, C) into q, k (T, H, Dk), of unit length but for q's scale 1 / sqrt(Dk), and v (T, H, Dv)."""
    n_keys = shape.n_key_heads * shape.key_dim
    pairs = mixed[:, : 2 * n_keys].reshape(len(mixed), 2, shape.n_key_heads, shape.key_dim)
    unit = pairs / np.sqrt(np.sum(pairs * pairs, axis=-1, keepdims=True) + _L2_EPS)
    unit = np.repeat(unit, shape.n_heads // shape.n_key_heads, axis=2)  # (T, 2, H, Dk)
    v = mixed[:, 2 * n_keys :].reshape(len(mixed), shape.n_heads, shape.value_dim)
    return unit[:, 0] * np.float32(shape.key_dim**-0.5), unit[:, 1], v


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # as in `swiglu`
        y: Array = 1.0 / (np.float32(1.0) + np.exp(-x))
    return y
