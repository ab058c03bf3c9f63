"""A conversation as the screen shows it, drawn as a picture."""

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.picture import draw_picture


def draw_conversation(conversation: Conversation, display: Display, *, width: int, bar: str) -> str:
    """Return an SVG of the messages and replies in a terminal `width` columns wide, the status bar below them."""
    rows: list[str] = []
    for turn in conversation.turns:
        message = "> " + "\n  ".join(harmless(turn.user.content).split("\n"))
        rows.append(display.painter.style(message, "message"))
        rows += [*display.draw_reply(turn.reply.content, width=width), ""]
    return draw_picture("\n".join([*rows, ">", bar]), title="ts chat", width=width)
