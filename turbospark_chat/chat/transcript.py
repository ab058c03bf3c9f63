"""A conversation to be read or kept elsewhere, as a value: what was said, by which model, when, and with what settings.

Knows no form of file and no tokens: the ids of a reply mean something to one tokenizer only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, repeat
from typing import Self

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.message import Message

TURN_KEYS = frozenset({"user", "reply", "reasoning", "complete"})


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """A user message, its reply, and what is known of the turn besides: values that JSON can say, by name.

    Raises:
        ValueError: messages of other roles or with tool calls, or a detail named as one of `TURN_KEYS`.
    """

    user: Message
    reply: Message
    details: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that it is what every form of file can hold."""
        if self.user != Message("user", self.user.content):
            raise ValueError(f"not a user's message of text alone: {self.user!r}")
        if self.reply.role != "assistant" or self.reply.tool_calls:
            raise ValueError(f"not a model's reply of text alone: {self.reply!r}")
        if taken := self.details.keys() & TURN_KEYS:
            raise ValueError(f"details cannot be named {', '.join(sorted(taken))}")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole conversation, its current branch alone. An empty `title` or `model` is one that is not known."""

    title: str
    model: str
    created: datetime | None = None
    system: str | None = None
    turns: tuple[TranscriptTurn, ...] = ()

    @classmethod
    def of(
        cls,
        conversation: Conversation,
        *,
        title: str,
        model: str,
        created: datetime | None = None,
        details: Iterable[Mapping[str, object]] = (),
    ) -> Self:
        """Return the transcript of a conversation. `details` are those of its turns in order, maybe of fewer."""
        turns = zip(conversation.turns, chain(details, repeat({})), strict=False)
        return cls(
            title, model, created, conversation.system,
            tuple(TranscriptTurn(turn.user, turn.reply, known) for turn, known in turns),
        )  # fmt: skip

    @property
    def heading(self) -> str:
        """The title as one line."""
        return " ".join(self.title.split()) or "Conversation"

    @property
    def byline(self) -> str:
        """The model and the time in one line; empty where neither is known."""
        created = self.created.isoformat(" ", "minutes") if self.created else ""
        return ", ".join(filter(None, (" ".join(self.model.split()), created)))


def encodable(text: str) -> str:
    """Return text that UTF-8 can hold: a surrogate that stands alone becomes U+FFFD, a pair its character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
