"""Why a turn reused less than was held, in words for people: where, what stood there and what came, and the cause."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from turbospark_chat.engine.reuse_miss import MissCause, ReuseMiss


class Cause(StrEnum):
    """What kept a turn from continuing where the last one ended."""

    EDITED = "edited"  # turns, the system prompt or the settings were changed
    TEMPLATE = "template"  # it writes what was said before in another way now
    PROMPT = "another prompt"  # than the one that was kept under the same name
    WINDOW_DROPPED = "window dropped"  # the oldest turns left the prompt, to fit the context
    SLOT_EVICTED = "slot evicted"  # the state that was kept for it was thrown away for want of room
    REFUSED = "refused"  # the state cannot go back so far
    TAINTED = "tainted"  # the state consumed something its ids do not describe


_BY_STATE = {
    MissCause.EVICTED: Cause.SLOT_EVICTED,
    MissCause.REFUSED: Cause.REFUSED,
    MissCause.TAINTED: Cause.TAINTED,
}


@dataclass(frozen=True, slots=True)
class Miss:
    """A prompt was computed anew from `position` on, since it differs from what was held at `differs_at`.

    `held` and `prompt` are the two tokens there as text; `held` is None where nothing was held.
    """

    cause: Cause
    position: int
    differs_at: int
    held: str | None
    prompt: str

    def __str__(self) -> str:
        """Say it as one line."""
        if self.cause in (Cause.SLOT_EVICTED, Cause.TAINTED, Cause.REFUSED):
            return f"{self.cause}: computed anew from position {self.position}"
        held = "the end" if self.held is None else _quoted(self.held)
        return f"{self.cause}: position {self.differs_at} is {_quoted(self.prompt)}, where {held} was held"


def _quoted(token: str) -> str:
    """Return a token between backticks; many are ends of lines."""
    return "`" + token.replace("\r", "\\r").replace("\n", "\\n") + "`"


def describe_miss(
    miss: ReuseMiss | None,
    *,
    n_said: int,
    cause: Cause,
    spell: Callable[[int], str],
) -> Miss | None:
    """Return what a run missed; None where that is nothing the conversation had said.

    Args:
        n_said: how many ids the last turn left that belong to this conversation; what was held behind them is a
            draft, or a message that got no reply.
        cause: what has changed the prompt, should it be the prompt that differs and not the state that is gone.
    """
    if miss is None:
        return None
    of_state = _BY_STATE.get(miss.cause)
    if of_state is None and miss.differs_at >= n_said:
        return None
    held = None if miss.held_id is None else spell(miss.held_id)
    return Miss(of_state or cause, miss.position, miss.differs_at, held, spell(miss.prompt_id))
