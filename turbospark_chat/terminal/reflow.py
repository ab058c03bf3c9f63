"""An application for terminals that lay their rows out anew when they get narrower, and which terminals do.

There each row longer than the new width has become several, so the way back to the first row drawn is longer than
prompt_toolkit thinks. Terminals that do not reflow cut such rows off, and its own count is right.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.renderer import Renderer

# What runs within another terminal inherits the other's variables, so these are asked in order.
_EMBEDDED = ("NVIM", "VIM_TERMINAL", "INSIDE_EMACS", "ZELLIJ")  # do not, or differently
_REFLOWING = (
    "VTE_VERSION",  # GNOME Terminal, Tilix, xfce4-terminal and others
    "KITTY_WINDOW_ID",
    "WEZTERM_EXECUTABLE",
    "ALACRITTY_WINDOW_ID",
    "GHOSTTY_RESOURCES_DIR",
    "ITERM_SESSION_ID",
    "WT_SESSION",  # Windows Terminal
)
_REFLOWING_PROGRAMS = ("iTerm.app", "Apple_Terminal", "WezTerm", "ghostty", "vscode")
_REFLOWING_TYPES = (
    "tmux",
    "xterm-kitty",
    "alacritty",
    "wezterm",
    "xterm-ghostty",
    "foot",
)  # all that ssh passes on

SETTLING_SECONDS = 0.3  # tmux tells the size at most every 0.25 s; until then it and the program disagree


def reflows(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal that these variables tell of lays out its rows anew when it gets narrower.

    In doubt it does not: rows left behind are ugly, rows erased that are not ours are lost.
    """
    if any(environment.get(name) for name in _EMBEDDED):
        return False
    if environment.get("TMUX"):
        return True
    if environment.get("STY") or environment.get("XTERM_VERSION"):  # GNU screen, xterm
        return False
    return (
        any(environment.get(name) for name in _REFLOWING)
        or environment.get("TERM_PROGRAM", "") in _REFLOWING_PROGRAMS
        or environment.get("TERM", "").startswith(_REFLOWING_TYPES)
    )


def n_extra_rows(rows: Sequence[Sequence[int]], cursor_column: int, n_columns: int) -> int:
    """Return how many rows more a terminal of `n_columns` needs from the first of `rows` to the cursor in the last.

    A row is the widths of its characters, as drawn. Beyond the end of its row the cursor stays on the row's last part.
    """
    *above, own = rows
    cells = 0
    n_before = 0  # the characters of its own row before the cursor
    for width in own:
        cells += width
        if cells > cursor_column:
            break
        n_before += 1
    up_to_cursor = own[: n_before + 1]
    return sum(_n_rows(row, n_columns) - 1 for row in (*above, up_to_cursor))


def _n_rows(widths: Sequence[int], n_columns: int) -> int:
    """Return how many rows the characters take; a wide one that would be cut in two goes to the next."""
    n_rows, column = 1, 0
    for width in widths:
        if column + width > n_columns:
            n_rows, column = n_rows + 1, 0
        column += width
    return n_rows


class ReflowRenderer(Renderer):
    """Finds the way back to its first row after the terminal has laid out all of them anew."""

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Take away what is drawn, wherever it is by now."""
        if self._last_screen is not None and self._last_size is not None:
            n_columns = max(self.output.get_size().columns, 1)
            if n_columns < self._last_size.columns:
                rows = [self._widths(y) for y in range(self._cursor_pos.y + 1)]
                self.output.cursor_up(n_extra_rows(rows, self._cursor_pos.x, n_columns))
        super().erase(leave_alternate_screen)

    def _widths(self, y: int) -> list[int]:
        """Return the widths of what was drawn in a row: prompt_toolkit leaves out plain blanks at its end."""
        if self._last_screen is None:
            return []
        row = self._last_screen.data_buffer[y]
        last = max((x for x, cell in row.items() if self._is_drawn(cell)), default=-1)
        widths, x = [], 0
        while x <= last:
            widths.append(row[x].width or 1)
            x += widths[-1]
        return widths

    def _is_drawn(self, cell: Char) -> bool:
        has_style = self._style_string_has_style
        return cell.char != " " or (has_style is not None and has_style[cell.style])


class ReflowApplication(Application[int]):
    """Draws nothing from a change of size until sizes have settled: rows drawn for a width the terminal no longer has
    would be cut off, not laid out anew, and nobody could tell how many there are.

    `on_settled` is called when it may draw again, with nothing drawn.
    """

    def __init__(self, *, on_settled: Callable[[], None], **settings: Any) -> None:
        super().__init__(**settings)
        self.renderer = ReflowRenderer(self.renderer.style, self.output)
        self._on_settled = on_settled
        self._size_drawn: Size | None = None
        self._settling: asyncio.TimerHandle | None = None

    def is_settling(self) -> bool:
        """Whether nothing may be drawn just now; it also looks whether the size has changed."""
        if self._size_drawn not in (None, self.output.get_size()) and self._settling is None:
            self._on_resize()
        return self._settling is not None

    def _on_resize(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(SETTLING_SECONDS, self._settle)

    def _settle(self) -> None:
        self._settling = None
        self._size_drawn = None
        if self._is_running and not self._running_in_terminal:
            self.renderer.erase(leave_alternate_screen=False)
            self._on_settled()
            self._redraw()

    def _redraw(self, render_as_done: bool = False) -> None:
        if render_as_done or not self.is_settling():
            self._size_drawn = self.output.get_size()
            super()._redraw(render_as_done)
