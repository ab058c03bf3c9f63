"""A conversation: a system prompt and whole turns, never half a one. Knows no template and no tokenizer."""

from collections.abc import Iterable
from dataclasses import dataclass

from turbospark_chat.chat.message import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and its reply.

    `generated` is the reply's text as the model wrote it, thinking and tags included, and `generated_ids` are ids
    that say exactly this text: those that were sampled, but for what was cut off the end.
    """

    user: Message
    reply: Message
    generated: str
    generated_ids: tuple[int, ...]


class Conversation:
    """Turns in order. Every change swaps one tuple, so a reader on another thread sees all of it or none."""

    def __init__(self, *, system: str | None = None, turns: Iterable[Turn] = ()) -> None:
        self.system = system
        self._turns = tuple(turns)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, oldest first."""
        return self._turns

    def messages(self, *, first_turn: int = 0, n_turns: int | None = None) -> list[Message]:
        """Return the system prompt and the messages of the turns from `first_turn` to before `n_turns`."""
        messages = [Message("system", self.system)] if self.system else []
        for turn in self._turns[first_turn:n_turns]:
            messages += [turn.user, turn.reply]
        return messages

    def append(self, turn: Turn) -> None:
        """Add a finished turn."""
        self._turns = (*self._turns, turn)

    def replace_last(self, turn: Turn) -> None:
        """Put another turn in the last one's place."""
        self._turns = (*self._turns[:-1], turn)

    def undo(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Remove and return the newest turns, as many as there are."""
        keep = max(len(self._turns) - n_turns, 0)
        removed = self._turns[keep:]
        self._turns = self._turns[:keep]
        return removed

    def forget(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Remove and return the oldest turns, as many as there are."""
        removed = self._turns[: max(n_turns, 0)]
        self._turns = self._turns[len(removed) :]
        return removed

    def clear(self) -> None:
        """Remove every turn; the system prompt stays."""
        self._turns = ()
