"""What some commands need and not every chat has, a screen or a reply: it is returned, or said to be missing."""

from turbospark_chat.chat.message import Message
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.context import CommandContext, ScreenControls


def screen_of(context: CommandContext, name: str) -> ScreenControls:
    """Return the screen, which the command `name` needs.

    Raises:
        UsageError: there is none.
    """
    if context.screen is None:
        raise UsageError(f"`/{name}` needs a screen: run `ts chat` at a terminal")
    return context.screen


def last_reply(context: CommandContext) -> Message:
    """Return the last reply.

    Raises:
        UsageError: there is none yet.
    """
    turns = context.session.conversation.turns
    if not turns:
        raise UsageError("there is no reply yet")
    return turns[-1].reply
