"""What is stored of a conversation and its turns, as values. Knows no database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.chat.turn_result import EndedTurn


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """How a turn came about. `ended` is in seconds since the epoch; None means that it is not known.

    `settings` has every option by name, spelled as a user would type it, and `seed` is the one that was asked for.
    """

    ended: float
    system: str | None = None
    model: str | None = None
    arithmetic: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    reason: str | None = None
    prompt_tokens: int | None = None
    reused_prefix_tokens: int | None = None
    prefilled_tokens: int | None = None
    new_tokens: int | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None

    @classmethod
    def of(
        cls, ended: EndedTurn, *, at: float, system: str | None, model: str, arithmetic: str
    ) -> "TurnDetails":
        """Return the details of a turn that ended just now, `at` seconds since the epoch."""
        raw, options = ended.raw, ended.options
        return cls(
            ended=at,
            system=system,
            model=model,
            arithmetic=arithmetic or None,
            settings={name: option.show(options) for name, option in OPTIONS.items()},
            seed=options.completion.sampling.seed,
            reason=raw.reason.value,
            prompt_tokens=raw.prompt_tokens,
            reused_prefix_tokens=raw.reused_prefix_tokens,
            prefilled_tokens=raw.prefilled_tokens,
            new_tokens=raw.new_tokens,
            prefill_seconds=raw.prefill_seconds,
            decode_seconds=raw.decode_seconds,
        )

    def known(self) -> dict[str, object]:
        """Return what is known, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn and where it hangs in the tree: under `parent_id`, `depth` turns from the start of its line."""

    row_id: int
    parent_id: int | None
    depth: int
    turn: Turn
    details: TurnDetails


@dataclass(frozen=True, slots=True)
class BranchEnds:
    """The rows a branch begins and ends with; both None where it has no turns."""

    first_id: int | None
    last_id: int | None

    @classmethod
    def of(cls, line: Sequence[StoredTurn]) -> "BranchEnds":
        """Return the ends of a branch with these turns."""
        return cls(line[0].row_id, line[-1].row_id) if line else cls(None, None)


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation as it was loaded. Times are seconds since the epoch.

    `conversation` is ready to go on with, and `details` goes with the turns of its branch in use. `lines` has the turns
    of every stored branch for the journal.
    """

    id: int
    name: str | None
    title: str
    model: str | None
    created: float
    used: float
    conversation: Conversation
    details: tuple[TurnDetails, ...]
    lines: Mapping[str, tuple[StoredTurn, ...]]


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """One line of a list of conversations. `n_turns` counts those of the branch in use."""

    id: int
    name: str | None
    title: str
    model: str | None
    n_turns: int
    created: float
    used: float


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Where a text was found: in the message or the reply of a turn, or in the title.

    `turn` counts from 1 on `branch`; both are None for a title. `snippet[start:end]` is what matched. `reference`
    loads the conversation as far as this turn, or, where the turn is on another branch than that in use, this branch.
    """

    id: int
    turn: int | None
    branch: str | None
    role: str
    title: str
    snippet: str
    start: int
    end: int
    time: float
    reference: str
