"""What a slash command is: one row of the table that makes dispatch, help, completion and the README's list."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from turbospark_chat.terminal.commands.context import CommandContext

Handler = Callable[[CommandContext, str], None]
Completions = Callable[[CommandContext, str], Iterable[str]]


def no_completions(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer nothing."""
    return ()


def paths(context: CommandContext, typed: str) -> Iterable[str]:
    """Stand for the paths of files: the completer knows this one and lists them itself."""
    return ()


@dataclass(frozen=True, slots=True)
class Command:
    """One row. One that changes the conversation waits until no reply is running.

    `completes` offers whole arguments that go on from what is typed behind the name and a space.
    """

    name: str
    arguments: str
    run: Handler
    needs_idle: bool
    completes: Completions

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.arguments}".strip()

    @property
    def help(self) -> str:
        """What it does, in one sentence."""
        return (self.run.__doc__ or "").strip()


def command(
    arguments: str = "", *, needs_idle: bool = False, completes: Completions = no_completions
) -> Callable[[Handler], Command]:
    """Make a handler the command of its name; its docstring is the help."""

    def enter(run: Handler) -> Command:
        name: Any = getattr(run, "__name__", "")
        return Command(name.strip("_"), arguments, run, needs_idle, completes)

    return enter
