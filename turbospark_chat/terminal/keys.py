"""What the keys do in the chat; they ask, `KeyActions` does it. `KEY_HELP` is what `/help` shows."""

from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

KEY_HELP = (
    ("Enter", "send the message"),
    ("Alt-Enter, Ctrl-J", "new line in the message"),
    ("Ctrl-C", "stop the reply; otherwise clear the input"),
    ("Ctrl-D", "leave, when the input is empty"),
    ("Up, Down", "earlier and later inputs"),
    ("Ctrl-Z", "suspend to the shell"),
)


class KeyActions(Protocol):
    """What the keys ask for."""

    def submit(self, text: str, *, is_pasted: bool) -> None:
        """Take a whole input; `is_pasted` when it begins with pasted text."""

    def interrupt(self) -> None:
        """Stop what runs, or clear what is typed."""

    def leave(self) -> None:
        """End the chat."""


class _PastedStart:
    """Remembers the paste that the input began with, until the input is empty again."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._text = ""
        buffer.on_text_changed += self._look

    def note(self, text: str) -> None:
        """Take notice of a paste that is about to be inserted."""
        if self._buffer.cursor_position == 0:
            self._text = text

    def opens(self, text: str) -> bool:
        """Whether `text` still begins with that paste."""
        return self._text != "" and text.startswith(self._text)

    def forget(self) -> None:
        """Note that the input is empty."""
        self._text = ""

    def _look(self, buffer: Buffer) -> None:
        if not buffer.text:
            self.forget()


def make_key_bindings(actions: KeyActions, buffer: Buffer) -> KeyBindings:
    """Return the bindings for the input `buffer`."""
    bindings = KeyBindings()
    is_empty = Condition(lambda: not buffer.text)
    pasted_start = _PastedStart(buffer)

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        text = buffer.text
        if text.strip():
            is_pasted = pasted_start.opens(text)
            buffer.append_to_history()
            buffer.reset()
            pasted_start.forget()
            actions.submit(text, is_pasted=is_pasted)

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _(event: KeyPressEvent) -> None:
        buffer.insert_text("\n")

    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        pasted_start.note(text)
        buffer.insert_text(text)

    @bindings.add(Keys.Vt100MouseEvent)
    def _(event: KeyPressEvent) -> None:
        # The mouse is never asked for: what looks like its report is pasted colour codes, and is passed over.
        return

    @bindings.add("c-c")
    @bindings.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        actions.interrupt()

    @bindings.add("c-d", filter=is_empty)
    def _(event: KeyPressEvent) -> None:
        actions.leave()

    @bindings.add("c-z")
    def _(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    return bindings
