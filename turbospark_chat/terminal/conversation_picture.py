"""A conversation as the screen shows it, drawn as a picture."""

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.picture import draw_picture
from turbospark_chat.terminal.reply_view import ReplyView

_NO_LIMIT = 100_000  # rows of a block; nothing scrolls in a picture


def draw_conversation(conversation: Conversation, *, painter: Painter, width: int, bar: str) -> str:
    """Return an SVG of the messages and replies in a terminal `width` columns wide, the status bar below them."""
    rows: list[str] = []
    for turn in conversation.turns:
        message = "> " + "\n  ".join(harmless(turn.user.content).split("\n"))
        rows.append(painter.style(message, "message"))
        view = ReplyView(painter, is_markdown=True)
        reply = view.push(harmless(turn.reply.content), width=width, height=_NO_LIMIT) + view.finish(
            width=width
        )
        rows += [reply.rstrip("\n"), ""]
    return draw_picture("\n".join([*rows, ">", bar]), title="ts chat", width=width)
