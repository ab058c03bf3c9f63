"""What came of comparing a model's live state with one computed anew, as a chat sees it. Knows no model."""

from typing import Protocol


class Verification(Protocol):
    """How the live state and one computed anew from the ids it is said to hold differ."""

    @property
    def n_ids(self) -> int:
        """Ids that the record names."""

    @property
    def n_positions(self) -> int:
        """Positions that the live state holds."""

    @property
    def cache_difference(self) -> float:
        """The largest difference, as a part of the largest number of its array; infinity where none can be told."""

    @property
    def cache_tolerance(self) -> float:
        """The most that arithmetic explains of it."""

    @property
    def differs_most(self) -> str:
        """The name of that array."""

    @property
    def logit_difference(self) -> float:
        """The largest difference of a logit."""

    @property
    def logit_tolerance(self) -> float:
        """The most that arithmetic explains of it."""

    @property
    def is_same_token(self) -> bool:
        """Whether both find the same token likeliest."""

    @property
    def is_sound(self) -> bool:
        """Whether the live state is that of its ids."""
