"""All commands by name, in the order in which help and the README show them."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands import conversing, files, looking, settings, verifying, viewing
from turbospark_chat.terminal.commands.answer import show_rows
from turbospark_chat.terminal.commands.command import Command, command
from turbospark_chat.terminal.commands.context import CommandContext

ALIASES: Final = {"quit": "exit", "bye": "exit", "regen": "retry", "?": "help"}
"""What people try who come from other chats."""


@command()
def help_(context: CommandContext, argument: str) -> None:
    """Show the commands; `/keys` shows the keys."""
    show_rows(context, [(entry.usage, entry.help) for entry in COMMANDS.values()])


_ORDER = (
    help_, viewing.keys, viewing.exit_,
    conversing.retry, conversing.continue_, conversing.edit, conversing.undo, conversing.rewind,
    conversing.clear, conversing.new, conversing.forget, conversing.system,
    conversing.branch, conversing.branches, conversing.switch,
    looking.history, looking.search, looking.stats, looking.context_, looking.why,
    verifying.verify,
    settings.set_, settings.template, settings.show, settings.model, settings.models,
    files.attach, files.paste, files.copy, files.save, files.load, files.export,
    viewing.think, viewing.raw,
)  # fmt: skip

COMMANDS: Final[Mapping[str, Command]] = MappingProxyType({entry.name: entry for entry in _ORDER})


def parse_command(line: str) -> tuple[Command, str] | None:
    """Return the command a typed line names and its argument, or None for a message.

    A path is a message, and so is anything that begins with a slash after a space.

    Raises:
        UsageError: it begins like a command but is none, or one that takes no argument has one.
    """
    if not line.startswith("/") or "\n" in line.strip():
        return None
    name, _, argument = line[1:].partition(" ")
    name, argument = name.strip(), argument.strip()
    if "/" in name:
        return None
    found = COMMANDS.get(ALIASES.get(name, name))
    if found is None:
        close = get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean `/{close[0]}`?" if close else "`/help` lists them."
        if name.replace("-", "_") in OPTIONS:
            advice = f"`/set {name}` shows and changes that."
        raise UsageError(f"unknown command `/{name}`: {advice} A space before `/` sends it as a message")
    if argument and not found.arguments:
        raise UsageError(f"`/{name}` takes no argument: a space before `/` sends it as a message")
    return found, argument
