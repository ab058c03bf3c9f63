"""The slash commands: one table that makes help and dispatch, and the README's list by test.

A handler gets a small context and the rest of the line, never the application. Its docstring is the help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import OPTIONS, find_option
from turbospark_chat.chat.template import read_template
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.keys import KEY_HELP


class CommandContext(Protocol):
    """What a command may use."""

    @property
    def session(self) -> ChatSession:
        """The conversation and its options."""

    def show(self, content: RenderableType) -> None:
        """Print above the input."""

    def statistics(self) -> RenderableType:
        """Return what the turns so far cost."""

    def retry(self) -> None:
        """Start answering the last message again."""

    def continue_reply(self) -> None:
        """Start going on with the last reply."""

    def conversation_changed(self) -> None:
        """Note that turns were taken away."""

    def leave(self) -> None:
        """End the chat."""


Handler = Callable[[CommandContext, str], None]


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table. One that changes the conversation waits until no reply is running."""

    name: str
    arguments: str
    run: Handler
    needs_idle: bool

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.arguments}".strip()

    @property
    def help(self) -> str:
        """What it does, in one sentence."""
        return (self.run.__doc__ or "").strip()


COMMANDS: Final[dict[str, Command]] = {}


def _command(arguments: str = "", *, needs_idle: bool = False) -> Callable[[Handler], Handler]:
    """Enter a handler into the table under its own name."""

    def enter(run: Handler) -> Handler:
        name = run.__name__.strip("_")
        COMMANDS[name] = Command(name, arguments, run, needs_idle)
        return run

    return enter


def parse_command(line: str) -> tuple[Command, str] | None:
    """Return the command a typed line names and its argument, or None for a message.

    A message may begin with a slash after a space.

    Raises:
        UsageError: it begins like a command but is none.
    """
    if not line.startswith("/") or "\n" in line.strip():
        return None
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name.strip())
    if command is None:
        close = get_close_matches(name.strip(), COMMANDS, n=1)
        advice = f"did you mean `/{close[0]}`?" if close else "`/help` lists them."
        raise UsageError(
            f"unknown command `/{name.strip()}`: {advice} A space before `/` sends it as a message"
        )
    return command, argument.strip()


def _count(argument: str, usage: str) -> int:
    if not argument:
        return 1
    if not argument.isdecimal() or len(argument) > 9 or int(argument) < 1:
        raise UsageError(f"`{usage}` takes a whole number above 0, not `{argument[:20]}`")
    return int(argument)


def _turns(n_turns: int) -> str:
    return "1 turn" if n_turns == 1 else f"{n_turns} turns"


@_command()
def help_(context: CommandContext, argument: str) -> None:
    """Show the commands and keys."""
    table = Table.grid(padding=(0, 2))
    for command in COMMANDS.values():
        table.add_row(Text(command.usage, "bar.model"), command.help)
    table.add_row()
    for key, meaning in KEY_HELP:
        table.add_row(Text(key, "bar.model"), meaning)
    context.show(table)


@_command(needs_idle=True)
def clear(context: CommandContext, argument: str) -> None:
    """Begin a new conversation; the system prompt and the settings stay."""
    n_turns = len(context.session.conversation.turns)
    context.session.clear()
    context.conversation_changed()
    context.show(Text(f"cleared {_turns(n_turns)}", "notice"))


@_command(needs_idle=True)
def retry(context: CommandContext, argument: str) -> None:
    """Answer the last message again."""
    context.retry()


@_command(needs_idle=True)
def continue_(context: CommandContext, argument: str) -> None:
    """Go on with a reply that was stopped or reached its limit."""
    context.continue_reply()


@_command("[N]", needs_idle=True)
def undo(context: CommandContext, argument: str) -> None:
    """Take back the last N turns, 1 if not given."""
    removed = context.session.undo(_count(argument, COMMANDS["undo"].usage))
    context.conversation_changed()
    context.show(Text(f"took back {_turns(len(removed))}" if removed else "nothing to take back", "notice"))


@_command("[N]", needs_idle=True)
def forget(context: CommandContext, argument: str) -> None:
    """Take the oldest N turns out of the conversation, to make room."""
    removed = context.session.forget(_count(argument, COMMANDS["forget"].usage))
    context.conversation_changed()
    context.show(Text(f"forgot {_turns(len(removed))}" if removed else "nothing to forget", "notice"))


@_command()
def history(context: CommandContext, argument: str) -> None:
    """Show the conversation so far."""
    lines: list[RenderableType] = []
    for message in context.session.conversation.messages():
        mark = "" if message.complete else " [stopped]"
        lines.append(
            Text.assemble((f"{message.role}: ", "bar.model"), harmless(message.content), (mark, "notice"))
        )
    context.show(Group(*lines) if lines else Text("nothing said yet", "notice"))


@_command()
def stats(context: CommandContext, argument: str) -> None:
    """Show what the turns so far cost, and what reuse saved."""
    context.show(context.statistics())


@_command("[NAME [VALUE]]")
def set_(context: CommandContext, argument: str) -> None:
    """Show the settings, or change one from the next turn on."""
    name, _, value = argument.partition(" ")
    if value.strip():
        context.session.set_option(name, value)
    rows = [find_option(name)] if name else list(OPTIONS.values())
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(
            Text(row.name, "bar.model"), row.show(context.session.options), Text(row.help, "notice")
        )
    context.show(table)


@_command("[FILE]", needs_idle=True)
def template(context: CommandContext, argument: str) -> None:
    """Show the chat template, or use another from a file."""
    if argument:
        context.session.set_template(read_template(argument))
        context.conversation_changed()
        context.show(Text(f"using the template in {argument}", "notice"))
    else:
        context.show(Text(harmless(context.session.template.source)))


@_command()
def exit_(context: CommandContext, argument: str) -> None:
    """Leave, as Ctrl-D does."""
    context.leave()
