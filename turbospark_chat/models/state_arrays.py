"""The arrays that a state exports: whether what is to be restored is made like them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_arrays(
    arrays: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> None:
    """Check that arrays have these names, shapes and types, and that there are no others.

    Raises:
        ValueError: they do not; it names the first that does not.
    """
    for name, (shape, dtype) in expected.items():
        found = arrays.get(name)
        if found is None or found.shape != shape or found.dtype != dtype:
            is_like = "missing" if found is None else f"{found.dtype}{found.shape}"
            raise ValueError(f"`{name}` is {is_like}, expected {dtype}{shape}")
    if others := arrays.keys() - expected.keys():
        raise ValueError(f"`{min(others)}` is not part of this state")
