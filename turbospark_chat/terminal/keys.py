"""What the keys do in the chat. The docstrings are the help."""

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


def make_key_bindings(actions: KeyActions, buffer: Buffer) -> KeyBindings:
    """Return the bindings for the input `buffer`."""
    bindings = KeyBindings()
    is_empty = Condition(lambda: not buffer.text)
    pasted_start: list[str] = []  # the paste that the input begins with, if any

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        text = buffer.text
        if text.strip():
            is_pasted = bool(pasted_start) and text.startswith(pasted_start[0])
            buffer.append_to_history()
            buffer.reset()
            pasted_start.clear()
            actions.submit(text, is_pasted=is_pasted)

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _(event: KeyPressEvent) -> None:
        buffer.insert_text("\n")

    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        if not buffer.text:
            pasted_start[:] = [text]
        buffer.insert_text(text)

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
