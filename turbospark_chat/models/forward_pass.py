"""What an architecture computes with, whoever does the arithmetic and whenever."""

from typing import Protocol, TypeVar

from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.layers import Angles, Array

X = TypeVar("X")  # activations of the tokens fed: an array, or what will be one
W = TypeVar("W")  # a matrix: an array, or the blocks of a file
W_contra = TypeVar("W_contra", contravariant=True)
W_co = TypeVar("W_co", covariant=True)


class ForwardPass(Protocol[X, W_contra]):
    """The operations of `layers`, for the tokens of one pass at their positions, over one state.

    Shapes are those of `layers`, heads side by side: (T, H * Hd).
    """

    def embed(self, table: W_contra) -> X:
        """Return the rows of table (V, D) that belong to the tokens, (T, D)."""

    def rms_norm(self, x: X, weight: Array, eps: float) -> X:
        """Norm x (T, D)."""

    def head_norm(self, x: X, weight: Array, eps: float, head_dim: int) -> X:
        """Norm each head of x (T, H * Hd) with weight (Hd,)."""

    def linear(self, x: X, weight: W_contra, bias: Array | None) -> X:
        """Multiply x (T, in) by the transpose of weight (out, in) and add bias (out,)."""

    def rope(self, x: X, head_dim: int, *, interleaved: bool, table: int = 0) -> X:
        """Rotate each head of x (T, H * Hd) by its token's position, as that of the architecture's tables says."""

    def attention(self, q: X, k: X, v: X, layer: int) -> X:
        """Add k, v (T, KV * Hd) to the layer's state and attend from q (T, H * Hd) over it, (T, H * Hd).

        It sees everything up to each token, or as much as the layer's window holds.
        """

    def swiglu(self, gate: X, up: X) -> X:
        """Gate a projection, (T, F)."""

    def geglu(self, gate: X, up: X) -> X:
        """Gate a projection the other way, (T, F)."""

    def scale(self, x: X, factor: float) -> X:
        """Multiply by a number."""

    def add(self, x: X, y: X) -> X:
        """Sum two of the same shape."""

    def last(self, x: X) -> X:
        """Return the last token's row of x, (1, D)."""


class Architecture(Protocol[W_co]):
    """A model's order of operations over its weights, whoever computes them."""

    @property
    def config(self) -> ModelConfig:
        """Its numbers."""

    @property
    def vocab_size(self) -> int:
        """Rows V of the output head, which may be padded past the tokenizer's ids."""

    @property
    def frequencies(self) -> tuple[Angles, ...]:
        """The angles per position of each of its RoPE tables, (rope_dim / 2,) each."""

    def hidden(self, run: ForwardPass[X, W_co]) -> X:
        """Return what the last layer makes of the tokens, (T, D)."""

    def logits(self, run: ForwardPass[X, W_co], x: X) -> X:
        """Return the logits (1, V) that follow the last token of x (T, D)."""
