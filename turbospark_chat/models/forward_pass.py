"""What an architecture computes with, whoever does the arithmetic and whenever."""

from typing import Protocol, TypeVar

from turbospark_chat.models.layers import Array

X = TypeVar("X")  # activations of the tokens fed: an array, or what will be one
W = TypeVar("W")  # a matrix: an array, or the blocks of a file
W_contra = TypeVar("W_contra", contravariant=True)


class ForwardPass(Protocol[X, W_contra]):
    """The operations of `layers`, for the tokens of one pass at their positions, over one state.

    Shapes are those of `layers`, heads side by side: (T, H * Hd).
    """

    def embed(self, table: W_contra) -> X:
        """Return the rows of table (V, D) that belong to the tokens, (T, D)."""

    def rms_norm(self, x: X, weight: Array, eps: float) -> X:
        """Norm x (T, D)."""

    def linear(self, x: X, weight: W_contra, bias: Array | None) -> X:
        """Multiply x (T, in) by the transpose of weight (out, in) and add bias (out,)."""

    def rope(self, x: X, head_dim: int, *, interleaved: bool) -> X:
        """Rotate each head of x (T, H * Hd) by its token's position."""

    def attention(self, q: X, k: X, v: X, layer: int) -> X:
        """Add k, v (T, KV * Hd) to the layer's state and attend from q (T, H * Hd) over all of it, (T, H * Hd)."""

    def swiglu(self, gate: X, up: X) -> X:
        """Gate a projection, (T, F)."""

    def add(self, x: X, y: X) -> X:
        """Sum two of the same shape."""

    def last(self, x: X) -> X:
        """Return the last token's row of x, (1, D)."""
