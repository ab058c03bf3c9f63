"""A weight as its file holds it. Knows no file: the bytes are a view of whatever keeps them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.quants import FORMATS, GgmlType


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """The blocks of a matrix (rows, columns), row after row. Read-only."""

    data: NDArray[np.uint8]  # (n_bytes,)
    ggml_type: GgmlType
    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return FORMATS[self.ggml_type].size_of(self.shape[1:])
