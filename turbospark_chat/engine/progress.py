"""What a run reports while it goes: prompt progress, tokens with their text, and the held-back tail."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the cache, the first `reused` of them from earlier."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token and the text that became visible with it, which may be empty or belong to earlier tokens."""

    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Text held back until the end. With `has_partial_character` its last U+FFFD stands for an unfinished one."""

    text: str
    has_partial_character: bool


Progress = Prefill | Token | Tail
ProgressSink = Callable[[Progress], None]
