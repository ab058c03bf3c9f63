"""Styled text broken into rows, where plain text breaks."""

from rich.text import Text

from turbospark_chat.terminal.live_text import LiveText


def wrap(text: Text, *, width: int) -> list[Text]:
    """Return rows of at most `width` columns, each without spaces at its end. Tabs must be spaces already."""
    live = LiveText()
    rows = live.push(text.plain, width=width).split("\n")
    rows[-1] = live.finish()
    offsets: list[int] = []
    position = 0
    for row in rows:  # all that wrapping leaves out is spaces and newlines
        start = text.plain.index(row, position)
        position = start + len(row)
        offsets += (start, position)
    return list(text.divide(offsets))[1::2]
