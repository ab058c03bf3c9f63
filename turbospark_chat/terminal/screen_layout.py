"""What stands where on the screen: live rows, input, search or completion rows, status bar; each gets what is left.

Measured once before each drawing, so that all of it agrees. Knows no chat and writes nothing.
"""

from collections.abc import Callable

from prompt_toolkit.application.current import get_app
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import AppendAutoSuggestion, TabsProcessor
from prompt_toolkit.widgets import SearchToolbar

from turbospark_chat.terminal.completion_rows import completion_rows
from turbospark_chat.terminal.draft_buffer import DraftBuffer
from turbospark_chat.terminal.pastes import LabelProcessor

MOST_INPUT_ROWS = 10


class ScreenLayout:
    """The rows of one screen. `container` draws what the last `measure` found."""

    def __init__(
        self,
        buffer: DraftBuffer,
        *,
        live_text: Callable[[int, int], str],
        prompt: Callable[[], str],
        status: Callable[[int], str] | None,
        get_size: Callable[[], Size],
        is_hidden: Callable[[], bool],
    ) -> None:
        self._buffer = buffer
        self._live_text, self._prompt, self._status, self._get_size = live_text, prompt, status, get_size
        self._live, self._menu, self._bar = _StyledRows(), _Rows(), _StyledRows()
        self._most_input_rows = MOST_INPUT_ROWS
        search = SearchToolbar(
            ignore_case=True,
            forward_search_prompt="search later: ",
            backward_search_prompt="search earlier: ",
        )
        self.input_window = Window(
            BufferControl(
                buffer,
                search_buffer_control=search.control,
                preview_search=True,
                input_processors=[
                    LabelProcessor(buffer.pastes),
                    TabsProcessor(char1=" ", char2=" "),
                    AppendAutoSuggestion(),
                ],
            ),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=self._most_input_rows),
            get_line_prefix=self._line_prefix,
        )
        rows = [self._live.window, self.input_window, search.container, self._menu.window, self._bar.window]
        self.container = ConditionalContainer(HSplit(rows, align=VerticalAlign.TOP), ~Condition(is_hidden))

    def measure(self) -> None:
        """Ask for what is shown, and divide the terminal's rows: the input first, then the bar, the menu, live rows."""
        size = self._get_size()
        n_left = size.rows - 1
        n_left -= self._bar.show(self._status(size.columns) if self._status else "", most=n_left)
        n_left -= min(int(get_app().layout.is_searching), n_left)
        n_left -= self._menu.show(
            completion_rows(self._buffer.complete_state, width=size.columns), most=n_left
        )
        self._most_input_rows = min(MOST_INPUT_ROWS, n_left + 1)
        n_left -= self.input_window.preferred_height(size.columns, size.rows).preferred - 1
        self._live.show(self._live_text(size.columns, n_left) if n_left > 0 else "", most=n_left)

    def _line_prefix(self, line_number: int, wrap_count: int) -> StyleAndTextTuples:
        prompt = self._prompt()
        return [("", prompt if line_number == wrap_count == 0 else " " * len(prompt))]


class _Rows:
    """Some rows of the screen, as many as it is given; without any it is not there."""

    def __init__(self) -> None:
        self._rows: list[StyleAndTextTuples] = []
        self.window = ConditionalContainer(
            Window(FormattedTextControl(self._text), height=lambda: Dimension.exact(len(self._rows))),
            Condition(lambda: bool(self._rows)),
        )

    def show(self, rows: list[StyleAndTextTuples], *, most: int) -> int:
        """Show these, or the first `most`; return how many."""
        self._rows = rows[: max(most, 0)]
        return len(self._rows)

    def _text(self) -> StyleAndTextTuples:
        return [fragment for row in self._rows for fragment in (*row, ("", "\n"))][:-1]


class _StyledRows:
    """Rows given as text with escape codes, each of which ends its own styles."""

    def __init__(self) -> None:
        self._rows = _Rows()
        self._read: dict[str, StyleAndTextTuples] = {}  # those of the last time: most of them stay
        self.window = self._rows.window

    def show(self, text: str, *, most: int) -> int:
        """Show its rows, or the last `most` of them; return how many."""
        texts = text.removesuffix("\n").split("\n")[-most:] if text and most > 0 else []
        self._read = {text: self._read.get(text) or to_formatted_text(ANSI(text)) for text in texts}
        return self._rows.show([self._read[text] for text in texts], most=most)
