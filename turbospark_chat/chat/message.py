"""One message of a conversation, as a value. Knows no template, no tokens and no turns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model asked for. `arguments` is an object, or the JSON text of one."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Message:
    """A role and what it said.

    `reasoning` is the thinking that came before the content. `complete` is False for a reply cut by a cancel
    or a limit. Content of None, which some files store with tool calls, becomes empty.

    Raises:
        ValueError: a role outside `ROLES`. Templates write it into control tokens, so it cannot be free text.
    """

    role: str
    content: str
    reasoning: str | None = None
    complete: bool = True
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        """Check the role and fill in missing content."""
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}: expected one of {', '.join(sorted(ROLES))}")
        if self.content is None:
            object.__setattr__(self, "content", "")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, thought or called."""
        return not (self.content.strip() or self.reasoning or self.tool_calls)
