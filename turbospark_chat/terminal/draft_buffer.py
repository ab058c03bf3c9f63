"""The input's text: what prompt_toolkit's buffer does, with long texts folded and characters kept whole.

Between here and the rest of the program text is literal; within the buffer some characters stand for folded texts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prompt_toolkit.auto_suggest import AutoSuggest
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.history import History

from turbospark_chat.terminal.graphemes import grapheme_end, grapheme_start
from turbospark_chat.terminal.pastes import Pastes


@dataclass(frozen=True, slots=True)
class Draft:
    """An input set aside: what it held and where the cursor stood."""

    held: str
    cursor: int
    pasted_start: str


class DraftBuffer(Buffer):
    """The one buffer that is typed into. `on_send` is told when its text is to be sent, by whichever key."""

    def __init__(
        self,
        pastes: Pastes,
        *,
        on_send: Callable[[], None],
        history: History,
        completer: Completer,
        auto_suggest: AutoSuggest,
    ) -> None:
        self.pastes = pastes
        self._on_send = on_send
        self._pasted_start = ""
        self._places_enclosed: set[int] = set()
        super().__init__(multiline=True, history=history, completer=completer, auto_suggest=auto_suggest)
        self.on_text_changed += lambda _: self._look()

    # Literal text, in and out

    @property
    def draft(self) -> str:
        """The literal text: every label's text in its place."""
        return self.pastes.expand(self.text)

    @property
    def shown(self) -> str:
        """The text as it is shown, with labels for what is folded."""
        return "".join(map(self.pastes.label, self.text))

    def put(self, text: str) -> None:
        """Hold this literal text instead, the cursor at its end; what was a label before is one again."""
        self._hold(self.pastes.enclose_again(text))

    def put_before(self, text: str) -> None:
        """Put a message before what is there, on lines of its own; it stays one should it look like a command."""
        enclosed = self.pastes.enclose_again(text)
        self._hold(f"{enclosed}\n{self.text}" if self.text else enclosed)
        self._pasted_start = "".join(self.text.partition("\n")[:2])

    def take(self) -> tuple[str, bool]:
        """Return the literal text and whether its beginning was pasted, attached or given back; nothing is left."""
        text, is_pasted = self.draft, self._opens_with_paste
        self.reset()
        return text, is_pasted

    def remember(self, text: str) -> None:
        """Add literal text to the history, unless it is the same as the last."""
        if self.history.get_strings()[-1:] != [text]:
            self.history.append_string(text)

    def insert_paste(self, text: str) -> None:
        """Insert what was pasted, as one character if it is long."""
        self._insert_held(self.pastes.enclose(text, kind="paste"))

    def insert_label(self, label: str, text: str) -> str:
        """Insert a label for `text`; return the character that stands for it."""
        mark = self.pastes.fold(text, label)
        self._insert_held(mark)
        return mark

    def set_aside(self) -> Draft:
        """Return what is there, labels and all; nothing is left."""
        draft = Draft(self.text, self.cursor_position, self._pasted_start)
        self.reset()
        return draft

    def bring_back(self, draft: Draft) -> None:
        """Hold again what was set aside."""
        self.document = Document(draft.held, draft.cursor)
        self._pasted_start = draft.pasted_start

    # What prompt_toolkit calls

    def insert_text(
        self, data: str, overwrite: bool = False, move_cursor: bool = True, fire_event: bool = True
    ) -> None:
        """Insert literal text: what is typed, completed or suggested."""
        super().insert_text(self.pastes.enclose(data), overwrite, move_cursor, fire_event)

    def delete_before_cursor(self, count: int = 1) -> str:
        """Delete so many code points, and what more belongs to the same character."""
        start = grapheme_start(self.text, max(self.cursor_position - count, 0))
        return super().delete_before_cursor(self.cursor_position - start)

    def delete(self, count: int = 1) -> str:
        """Delete so many code points after the cursor, and what more belongs to the same character."""
        end = grapheme_end(self.text, min(self.cursor_position + count, len(self.text)))
        return super().delete(end - self.cursor_position)

    def validate_and_handle(self) -> None:
        """Send the text."""
        self._on_send()

    def reset(self, document: Document | None = None, append_to_history: bool = False) -> None:
        """Hold nothing, or the document."""
        self._pasted_start = ""
        self._places_enclosed.clear()
        super().reset(document)

    def _set_cursor_position(self, value: int) -> bool:
        """Never stand within a character: go on the way that the cursor was going."""
        whole = grapheme_start if value < self.cursor_position else grapheme_end
        return super()._set_cursor_position(whole(self.text, value))

    # Within

    @property
    def _opens_with_paste(self) -> bool:
        return self._pasted_start != "" and self.text.startswith(self._pasted_start)

    def _hold(self, held: str) -> None:
        self.document = Document(held, len(held))

    def _insert_held(self, held: str) -> None:
        if self.cursor_position == 0:
            self._pasted_start = held
        super().insert_text(held, fire_event=False)

    def _look(self) -> None:
        """Notice an emptied input, and an entry of the history that is shown for the first time: it is literal."""
        place = (
            len(self._working_lines) - self.working_index
        )  # the input itself is 1; older entries load meanwhile
        if place > 1 and place not in self._places_enclosed:
            self._places_enclosed.add(place)
            held = self.pastes.enclose(self.text)
            if held != self.text:
                self._hold(held)
        if not self.text:
            self._pasted_start = ""
