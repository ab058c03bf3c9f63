"""A conversation: branches of whole turns, each under its system prompt. Knows no template and no tokenizer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from turbospark_chat.chat.message import Message
from turbospark_chat.errors import UsageError

MAIN: Final = "main"  # the branch every conversation begins with


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and its reply.

    `generated` is the reply's text as the model wrote it, thinking and tags included, and `generated_ids` are ids
    that say exactly this text: those that were sampled, but for what was cut off the end. Two turns may say the same;
    `identity` tells them apart, and stays where `dataclasses.replace` spells a turn in another tokenizer's ids.
    """

    user: Message
    reply: Message
    generated: str
    generated_ids: tuple[int, ...]
    identity: object = field(default_factory=object, compare=False, repr=False, kw_only=True)


class Conversation:
    """Turns in order, on the branch in use; other branches wait, and share the turns they began with.

    Every change swaps one value, so a reader on another thread sees all of it or none.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        turns: Iterable[Turn] = (),
        branch: str = MAIN,
        branches: Mapping[str, Iterable[Turn]] = MappingProxyType({}),
        systems: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Begin on `branch`, with `turns` where `branches`, which are all of them in order, does not name it.

        `systems` are the system prompts of branches that have another one than `system`.
        """
        all_turns = {name: tuple(its_turns) for name, its_turns in branches.items()}
        all_turns.setdefault(branch, tuple(turns))
        self._at = branch, all_turns, {**dict.fromkeys(all_turns, system), **systems, branch: system}

    @property
    def system(self) -> str | None:
        """The system prompt of the branch in use."""
        branch, _, systems = self._at
        return systems[branch]

    @system.setter
    def system(self, system: str | None) -> None:
        branch, branches, systems = self._at
        self._at = branch, branches, {**systems, branch: system}

    @property
    def systems(self) -> Mapping[str, str | None]:
        """The system prompt of every branch, by name."""
        return MappingProxyType(self._at[2])

    @property
    def branch(self) -> str:
        """The name of the branch in use."""
        return self._at[0]

    @property
    def branches(self) -> Mapping[str, tuple[Turn, ...]]:
        """The turns of every branch, the one in use among them, by name."""
        return MappingProxyType(self._at[1])

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns of the branch in use, oldest first."""
        branch, branches, _ = self._at
        return branches[branch]

    def messages(self, *, first_turn: int = 0, n_turns: int | None = None) -> list[Message]:
        """Return the system prompt and the messages of the turns from `first_turn` to before `n_turns`."""
        messages = [Message("system", self.system)] if self.system else []
        for turn in self.turns[first_turn:n_turns]:
            messages += [turn.user, turn.reply]
        return messages

    def append(self, turn: Turn) -> None:
        """Add a finished turn."""
        self._replace_turns((*self.turns, turn))

    def replace_last(self, turn: Turn) -> None:
        """Put another turn in the last one's place."""
        self._replace_turns((*self.turns[:-1], turn))

    def undo(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Remove and return the newest turns.

        Raises:
            UsageError: there are not so many.
        """
        self._check_count(n_turns, "take back")
        return self.rewind(len(self.turns) - n_turns)

    def rewind(self, n_turns: int) -> tuple[Turn, ...]:
        """Keep the oldest turns; remove and return the others.

        Raises:
            UsageError: there are not so many.
        """
        self._check_count(n_turns, "keep")
        removed = self.turns[n_turns:]
        self._replace_turns(self.turns[:n_turns])
        return removed

    def forget(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Remove and return the oldest turns.

        Raises:
            UsageError: there are not so many.
        """
        self._check_count(n_turns, "forget")
        removed = self.turns[:n_turns]
        self._replace_turns(self.turns[n_turns:])
        return removed

    def branch_off(self, name: str) -> None:
        """Begin a branch with the present turns, and go there.

        Raises:
            UsageError: there is one of that name, or the name is blank.
        """
        branch, branches, systems = self._at
        if not name.strip():
            raise UsageError("a branch needs a name")
        if name in branches:
            raise UsageError(f"there is a branch `{name}` already; `/switch {name}` goes there")
        self._at = name, {**branches, name: branches[branch]}, {**systems, name: systems[branch]}

    def switch(self, name: str) -> None:
        """Go to another branch.

        Raises:
            UsageError: there is none of that name.
        """
        _, branches, systems = self._at
        if name not in branches:
            known = ", ".join(f"`{branch}`" for branch in branches)
            raise UsageError(f"there is no branch `{name}`; there is {known}; `/branch {name}` begins it")
        self._at = name, branches, systems

    def clear(self) -> None:
        """Remove every turn and every other branch; the system prompt stays."""
        self._at = MAIN, {MAIN: ()}, {MAIN: self.system}

    def _replace_turns(self, turns: tuple[Turn, ...]) -> None:
        branch, branches, systems = self._at
        self._at = branch, {**branches, branch: turns}, systems

    def _check_count(self, n_turns: int, what: str) -> None:
        n_there = len(self.turns)
        if n_turns > 0 == n_there:
            raise UsageError(f"nothing to {what}: there is no turn yet")
        if not 0 <= n_turns <= n_there:
            raise UsageError(f"cannot {what} {n_turns} turns: the conversation has {n_there}")
