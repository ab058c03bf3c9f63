"""Why less of a prompt was served from the cache than the cache held: the position, the two ids, and the cause."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class MissCause(StrEnum):
    """What kept the cache from serving more, as far as ids and states tell."""

    DIFFERS = "differs"  # the prompt has another id there than the cache
    REFUSED = "refused"  # the state cannot go back so far
    TAINTED = "tainted"  # the state consumed something its ids do not describe, or the prompt is about to
    EVICTED = "slot evicted"  # a parked state would have served more, and was thrown away for want of room


class ReuseReport(Protocol):
    """How a producer's state served a prompt: see `ReuseMiss.of`."""

    @property
    def n_held(self) -> int:
        """Positions of the state that served best."""

    @property
    def n_common(self) -> int:
        """How many of them the prompt begins with."""

    @property
    def n_kept(self) -> int:
        """How many of those the state could go back to."""

    @property
    def held_id(self) -> int | None:
        """What stood behind the common ones, None where they are all."""

    @property
    def is_tainted(self) -> bool:
        """Whether the state had consumed something its ids do not describe."""

    @property
    def n_evicted(self) -> int:
        """How many positions a state would have served that was thrown away for want of room."""


@runtime_checkable
class ReportsReuse(Protocol):
    """A producer that tells how it served the latest prompt; one that does not is asked nothing."""

    @property
    def reuse_report(self) -> ReuseReport | None:
        """The report, None before any prompt."""


@dataclass(frozen=True, slots=True)
class ReuseMiss:
    """The prompt is computed anew from `position` on, though more than that was held, or had been.

    `held_id` is what the cache held at `differs_at`, None where it held nothing there, and `prompt_id` what the prompt
    has. The two positions are not the same where a state could not go back as far as the ids agree; and where they
    agree to the prompt's end, or ids do not tell the difference, the two ids are the same.
    """

    cause: MissCause
    position: int
    differs_at: int
    held_id: int | None
    prompt_id: int

    @classmethod
    def of(cls, report: ReuseReport, prompt_ids: Sequence[int]) -> "ReuseMiss | None":
        """Return what was missed of a prompt; None where all was served that ever could be."""
        servable = len(prompt_ids) - 1  # the last id gives the logits to start from
        if report.n_kept >= servable:
            return None
        differs_at = min(report.n_common, servable)
        prompt_id = prompt_ids[differs_at]
        # Equal ids count as common unless something that ids do not describe keeps any from counting.
        if report.is_tainted or (differs_at < servable and report.held_id == prompt_id):
            cause = MissCause.TAINTED
        elif report.n_evicted > report.n_kept:
            cause = MissCause.EVICTED
        elif report.n_kept < report.n_common:
            cause = MissCause.REFUSED
        elif report.n_common < report.n_held:
            cause = MissCause.DIFFERS
        else:
            return None
        return cls(cause, report.n_kept, differs_at, report.held_id, prompt_id)
