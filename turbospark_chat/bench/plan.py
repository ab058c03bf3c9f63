"""What is measured: work to ask a subject for, and how its seconds become a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["tok/s", "ms", "s", "MB", "GB/s"]

DECODE_STEPS = 32
N_TURNS = 20
TURNS_SHOWN = (1, 2, 5, 10, 20)
TURN_MESSAGE = "Tell me one more thing about the sea, in a few short words, please."
TURN_TOKENS = 16  # of each reply
ONE_SHOT = ("Say hi.", 1)  # a prompt, and the tokens of its reply


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a subject, answered by its seconds."""

    name: str
    call: Literal["prefill", "extend", "decode"]
    arguments: tuple[int, ...]
    n_tokens: int
    n_positions: int  # that the context has to hold

    def rate(self, seconds: float) -> float:
        """Return tokens a second."""
        return self.n_tokens / seconds


def _prefill(n_tokens: int) -> Task:
    return Task(f"prefill of {n_tokens}", "prefill", (n_tokens,), n_tokens, n_tokens)


def _decode(context: int) -> Task:
    name, n_positions = f"decode at context {context}", context + DECODE_STEPS
    return Task(name, "decode", (context, DECODE_STEPS), DECODE_STEPS, n_positions)


TASKS: Final[Sequence[Task]] = (
    *map(_prefill, (32, 512, 2048)),
    Task("prefill of 20 more at context 512", "extend", (512, 20), 20, 532),
    *map(_decode, (0, 512, 4096)),
)


def spread_ids(n_tokens: int, vocab_size: int) -> list[int]:
    """Return ids spread over a vocabulary; speed does not depend on which."""
    return [(1 + index * 7919) % vocab_size for index in range(n_tokens)]
