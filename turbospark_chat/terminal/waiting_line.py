"""A line that was typed while something ran, and waits for its turn."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """What was typed, how it is shown, and what takes it once it is its turn."""

    text: str
    shown: str
    take: Callable[[], None]
    is_command: bool
