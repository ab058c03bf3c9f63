"""A yes-or-no question that takes the input's place for a while. Knows no chat."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked and what follows."""

    prompt: str
    if_yes: Callable[[], None]
    if_no: Callable[[], None]


def parse_answer(text: str) -> bool | None:
    """Return whether `text` says yes, or None where it is no answer."""
    return {"y": True, "yes": True, "n": False, "no": False}.get(text.strip().lower())
