"""What both kinds of attention over the packed cache share: its numbers, and who sees what.

Attention holds no more than a block of scores: the largest so far and the sum are carried along, and what was summed
under an older largest score is scaled down. https://arxiv.org/abs/2205.14135

A window is how many positions a token sees, its own included, or 0 where it sees all. An address of a part of the
cache is that of position 0 of the first head, which need no longer be there: see `PackedKvCache.address`.
"""

from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import vectors as v

VECTOR_BYTES = 4 * v.LANES
NO_SCORE = np.float32(-1e30)  # below any; -inf minus -inf would be no number


@njit
def load_numbers(address: int) -> Any:
    """Load sixteen numbers of the cache, as they are without their scale."""
    return v.to_floats(v.load_signed_shorts(address))


@njit
def first_visible(position: int, window: int) -> Any:
    """Return the first position that a token sees."""
    return max(0, position - window + 1) if window else 0
