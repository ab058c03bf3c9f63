"""Taking an architecture's weights from a file, by name and shape.

Knows no file format, no architecture, and no more of how a matrix is stored than that something else reads it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.forward_pass import ForwardPass, W, X
from turbospark_chat.models.layers import Array

Weights = TypeVar("Weights")


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

    def project(self, run: ForwardPass[X, W], x: X) -> X:
        """Project x (T, in), (T, out)."""
        return run.linear(x, self.weight, self.bias)


class WeightLoader(Generic[W]):
    """Takes tensors from a file by name and expected shape, and notices any left over.

    What it takes raises ModelFileError where the tensor is missing or has another shape.
    """

    def __init__(
        self,
        source: TensorSource,
        architecture: str,
        *,
        vector: Callable[[str], Array],
        matrix: Callable[[str], W],
    ) -> None:
        self._source, self._architecture = source, architecture
        self._read_vector, self._read_matrix = vector, matrix
        self._left = set(source.tensors)

    @property
    def n_rows(self) -> int:
        """Rows V of the embedding: the file's own, since a vocabulary may be padded."""
        embedding = self._source.tensors.get("token_embd.weight")
        return embedding.shape[0] if embedding and embedding.shape else 0

    def matrix(self, name: str, n_out: int, n_in: int) -> W:
        """Take a matrix (out, in)."""
        self._check(name, (n_out, n_in))
        return self._read_matrix(name)

    def vector(self, name: str, length: int) -> Array:
        """Take a vector (length,)."""
        self._check(name, (length,))
        return self._read_vector(name)

    def optional_vector(self, name: str, length: int) -> Array | None:
        """Take a vector that a file may lack."""
        return self.vector(name, length) if name in self._source.tensors else None

    def optional_matrix(self, name: str, n_out: int, n_in: int) -> W | None:
        """Take a matrix that a file may lack."""
        return self.matrix(name, n_out, n_in) if name in self._source.tensors else None

    def linear(self, name: str, n_out: int, n_in: int) -> Linear[W]:
        """Take a projection, with its bias if it has one."""
        return Linear(self.matrix(f"{name}.weight", n_out, n_in), self.optional_vector(f"{name}.bias", n_out))

    def refuse_leftovers(self) -> None:
        """Refuse tensors that nothing was made of.

        Raises:
            UnsupportedModelError: there are some; it names one.
        """
        if self._left:
            raise UnsupportedModelError(
                self._source.path,
                f"tensor `{min(self._left)}` has no part in the `{self._architecture}` architecture",
            )

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._source.tensors:
            raise ModelFileError(
                self._source.path,
                f"tensor `{name}` is missing; the `{self._architecture}` architecture needs it",
            )
        found = self._source.tensors[name].shape
        if found != shape:
            raise ModelFileError(self._source.path, f"tensor `{name}` has shape {found}, expected {shape}")
        self._left.discard(name)


def check_all(
    load_all: Callable[[WeightLoader[Array], ModelConfig], object], source: TensorSource, config: ModelConfig
) -> None:
    """Check that the file has the tensors that `load_all` takes, in their shapes, and no others; load none.

    Raises:
        ModelFileError: a tensor is missing or has another shape than the metadata says.
        UnsupportedModelError: the file has tensors the architecture does not use.
    """

    def nothing(name: str) -> Array:
        return np.empty(0, np.float32)

    loader = WeightLoader(source, config.architecture, vector=nothing, matrix=nothing)
    load_all(loader, config)
    loader.refuse_leftovers()
