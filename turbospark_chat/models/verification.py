"""The proof that a state is what its ids make it: the ids computed anew, from nothing, and what both hold compared.

Knows a model and two states of it; neither who runs the model nor what the ids say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final, Protocol

import numpy as np

from turbospark_chat.models.layers import Array
from turbospark_chat.models.state import Model, StateT

# How a prompt is cut, and what was computed in one go with what, moves the last digits. Measured with the kernels on
# SmolLM2 over twenty turns with rewinds, and on Gemma 3 far past its window: sound caches differ by up to 0.0003,
# logits by up to 0.004; in numpy both by a fiftieth of that. With one wrong id of 1,500 caches differ by 0.15 or more,
# with one position lost or two swapped by more than 1, and logits by 0.05 or more.
CACHE_TOLERANCE: Final = 5e-3  # of the largest number of an array
LOGIT_TOLERANCE: Final = 0.02

_CHUNK: Final = 64  # tokens between two looks at the cancel flag

OnProgress = Callable[[int, int], None]


class CancelFlag(Protocol):
    """A flag another thread may raise."""

    def is_set(self) -> bool:
        """Whether to stop."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a live state and one that was computed anew from its record's ids differ."""

    n_ids: int  # that the record names
    n_positions: int  # that the live state holds
    cache_difference: float  # the largest, as a part of the largest number of its array
    differs_most: str  # the name of that array
    logit_difference: float  # the largest
    is_same_token: bool  # whether both find the same token likeliest

    @property
    def cache_tolerance(self) -> float:
        """The most that arithmetic explains of the cache's difference."""
        return CACHE_TOLERANCE

    @property
    def logit_tolerance(self) -> float:
        """The most that arithmetic explains of the logits' difference."""
        return LOGIT_TOLERANCE

    @property
    def is_sound(self) -> bool:
        """Whether the live state is that of its ids: as long, and no further from it than arithmetic explains."""
        return (
            self.n_ids == self.n_positions
            and self.cache_difference <= CACHE_TOLERANCE
            and self.logit_difference <= LOGIT_TOLERANCE
        )


def verify_state(
    model: Model[StateT],
    ids: Sequence[int],
    live: StateT,
    *,
    cancel: CancelFlag,
    on_progress: OnProgress = lambda done, total: None,
) -> Verification | None:
    """Compare a state with one computed anew from the ids it is said to hold; None where that is cancelled.

    Whatever happens, `live` stays as it is. It takes the memory of one more such state. The logits are those after one
    more token, which sees every position: fed again, the last one would only overwrite its own row, wrong or not.
    """
    cold = model.make_state()
    for start in range(0, len(ids), _CHUNK):
        if cancel.is_set():
            return None
        chunk = ids[start : start + _CHUNK]
        model.forward(chunk, cold, need_logits=False)
        on_progress(start + len(chunk), len(ids))
    cache_difference, differs_most = _most_different(live, cold)
    token = ids[-1] if ids else 0
    expected = _logits_after(model, token, cold)
    del cold
    logits = _logits_after(model, token, live.fork(len(live)))
    return Verification(
        n_ids=len(ids),
        n_positions=len(live),
        cache_difference=cache_difference,
        differs_most=differs_most,
        logit_difference=_largest(logits - expected),
        is_same_token=bool(logits.argmax() == expected.argmax()),
    )


def _logits_after(model: Model[StateT], token: int, state: StateT) -> Array:
    logits = model.forward([token], state, need_logits=True)
    assert logits is not None
    return logits


def _most_different(live: StateT, cold: StateT) -> tuple[float, str]:
    """Return the largest difference of two states' arrays, and the name of the first that has it."""
    pairs = zip(live.as_floats(), cold.as_floats(), strict=True)
    return max(
        ((_difference(array, expected), name) for (name, array), (_, expected) in pairs),
        key=lambda pair: pair[0],
        default=(0.0, ""),
    )


def _difference(array: Array, expected: Array) -> float:
    """Return the largest difference as a part of the largest number expected; infinity where none can be told."""
    if array.shape != expected.shape:
        return inf
    difference, magnitude = _largest(array - expected), _largest(expected)
    if difference == 0:
        return 0.0
    return difference / magnitude if 0 < magnitude < inf else inf


def _largest(array: Array) -> float:
    """Return the largest magnitude; infinity where something is no number."""
    largest = float(np.abs(array).max(initial=0))
    return largest if isfinite(largest) else inf
