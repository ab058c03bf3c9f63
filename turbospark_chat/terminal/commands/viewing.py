"""Commands that change how the chat looks and what its keys do, and the one that leaves it."""

from collections.abc import Iterable

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.answer import say, show_rows
from turbospark_chat.terminal.commands.command import Completions, command
from turbospark_chat.terminal.commands.context import CommandContext
from turbospark_chat.terminal.commands.needs import screen_of
from turbospark_chat.terminal.interface_options import Editing, Thinking
from turbospark_chat.terminal.keys import KEY_HELP


def _one_of(*choices: str) -> Completions:
    def offer(context: CommandContext, typed: str) -> Iterable[str]:
        return (choice for choice in choices if choice.startswith(typed))

    return offer


@command("[show|fold|hide]", completes=_one_of(*Thinking))
def think(context: CommandContext, argument: str) -> None:
    """Choose how the model's thinking is shown: written out, folded to a line, or not at all."""
    screen = screen_of(context, "think")
    if argument:
        if argument not in tuple(Thinking):
            raise UsageError(f"`/think` takes {', '.join(Thinking)}, not `{argument[:20]}`")
        screen.thinking = Thinking(argument)
    say(context, f"thinking: {screen.thinking}")


@command()
def raw(context: CommandContext, argument: str) -> None:
    """Show replies as they are written, or as Markdown again."""
    screen = screen_of(context, "raw")
    screen.is_markdown = not screen.is_markdown
    say(context, "replies show as Markdown" if screen.is_markdown else "replies show as they are written")


@command("[emacs|vi]", completes=_one_of(*Editing))
def keys(context: CommandContext, argument: str) -> None:
    """Show the keys, or edit the input as emacs or vi does."""
    screen = screen_of(context, "keys")
    if not argument:
        show_rows(context, KEY_HELP)
    elif argument in tuple(Editing):
        screen.editing = Editing(argument)
    else:
        raise UsageError(f"`/keys` takes {' or '.join(Editing)}, not `{argument[:20]}`")
    if argument:
        say(context, f"keys: {screen.editing}")


@command()
def exit_(context: CommandContext, argument: str) -> None:
    """Leave, as Ctrl-D does."""
    context.leave()
