"""What a turn reports while it goes, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.receipt import Miss
from turbospark_chat.engine.completion import RawDecodeResult
from turbospark_chat.engine.progress import Prefill


@dataclass(frozen=True, slots=True)
class ReplyText:
    """Text that became visible, maybe none, now that the reply has `n_tokens` more than it began with.

    Where there is no text, `is_reasoning` says whether the model is thinking.
    """

    text: str
    is_reasoning: bool
    n_tokens: int


@dataclass(frozen=True, slots=True)
class TurnsDropped:
    """The oldest turns left the prompt so that it fits; they stay in the conversation."""

    n_turns: int
    n_tokens: int

    def __str__(self) -> str:
        """Say it as one line."""
        exchanges = counted(self.n_turns, "exchange")
        return f"{exchanges} dropped from the prompt to fit the context ({self.n_tokens} tokens)"


@dataclass(frozen=True, slots=True)
class NotKept:
    """The turn ended, but could not be stored; the chat goes on without."""

    problem: str

    def __str__(self) -> str:
        """Say it as one line."""
        return f"this turn is not stored: {self.problem}"


@dataclass(frozen=True, slots=True)
class StoredApart:
    """Another program has gone on with `branch` of the stored conversation; this one's is `stored_as` from now on."""

    branch: str
    stored_as: str

    def __str__(self) -> str:
        """Say it as one line."""
        return f"another program goes on with branch {self.branch} too: yours is stored as branch {self.stored_as}"


TurnEvent = Prefill | ReplyText | TurnsDropped | NotKept | StoredApart
TurnEventSink = Callable[[TurnEvent], None]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A finished turn. `turn` is None when nothing was kept: it was cut short before it said anything new.

    `n_ahead` of the reused tokens were computed before the message was sent, while the model was idle. `miss` says
    what kept the turn from reusing more, if anything did.
    """

    turn: Turn | None
    raw: RawDecodeResult
    n_dropped_turns: int
    n_dropped_tokens: int
    n_ahead: int = 0
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that was just added to the conversation, and how it came about: what a journal keeps."""

    turn: Turn
    raw: RawDecodeResult
    options: ChatOptions
