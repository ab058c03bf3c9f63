"""What the keys do in the chat; they ask, `KeyActions` does it. `KEY_HELP` is what `/keys` shows.

Only the chat's own keys are bound here, the same ones in emacs and vi mode; all others are prompt_toolkit's.
"""

from collections.abc import Callable
from typing import Protocol

from prompt_toolkit.filters import Condition, FilterOrBool, emacs_mode, is_searching, vi_navigation_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import SearchDirection, start_search, stop_search

from turbospark_chat.terminal.draft_buffer import DraftBuffer

KEY_HELP = (
    ("Enter", "send the message"),
    ("Ctrl-J, Alt-Enter", "new line in the message (Alt-Enter not in vi mode)"),
    ("Ctrl-C", "stop the reply; otherwise clear the input"),
    ("Ctrl-D", "leave, when the input is empty"),
    ("Ctrl-T", "show the model's thinking"),
    ("Ctrl-G", "while the model thinks: answer now"),
    ("Tab, Shift-Tab", "complete a command or its argument; go through the choices"),
    ("Right, Ctrl-E, Ctrl-F", "take the suggestion behind the cursor"),
    ("Up, Down", "earlier and later inputs; Up first takes back a message that waits"),
    ("Ctrl-R, Ctrl-S", "search in earlier inputs; Enter takes one, Ctrl-G gives up"),
    ("Ctrl-X Ctrl-E", "write the message in $VISUAL or $EDITOR (in vi mode `v` too)"),
    ("Ctrl-_", "undo (in vi mode `u`)"),
    ("Ctrl-K, Ctrl-U, Ctrl-W, Ctrl-Y", "cut to the end, to the start, the last word; put it back"),
    ("Ctrl-Z", "suspend to the shell"),
)


class KeyActions(Protocol):
    """What the keys ask for."""

    @property
    def is_asking(self) -> bool:
        """Whether a question waits: what is typed is its answer, and nothing to remember or to complete."""

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits until the reply has ended."""

    def submit(self, text: str, *, shown: str, is_pasted: bool) -> None:
        """Take a whole input, which was `shown` with labels for long texts.

        `is_pasted` when it begins with what was pasted, attached or given back.
        """

    def draft_changed(self) -> None:
        """Take note that what is typed has changed."""

    def take_back(self) -> None:
        """Put the message that waits last back into the input."""

    def interrupt(self) -> None:
        """Stop what runs, or clear what is typed."""

    def leave(self) -> None:
        """End the chat."""

    def show_thinking(self) -> None:
        """Show the model's thinking."""

    def answer_now(self) -> None:
        """Have a model that thinks answer; do nothing where none does."""


def send(actions: KeyActions, buffer: DraftBuffer) -> None:
    """Submit what the buffer holds, unless it is blank, and remember it, unless it is an answer."""
    is_answer = actions.is_asking
    if buffer.draft.strip():
        shown = buffer.shown
        text, is_pasted = buffer.take()
        if not is_answer:
            buffer.remember(text)
        actions.submit(text, shown=shown, is_pasted=is_pasted)


def make_key_bindings(
    actions: KeyActions,
    buffer: DraftBuffer,
    *,
    compose: Callable[[], None],
    suspend: Callable[[], None],
    is_lent: Callable[[], bool],
) -> KeyBindings:
    """Return the bindings for the input `buffer`.

    `compose` opens its text in an editor, `suspend` gives the terminal back to the shell; `is_lent` tells whether
    another program has the terminal meanwhile.
    """
    bindings = KeyBindings()
    _bind_typing(bindings, buffer)
    _bind_completion(bindings, buffer)
    _bind_ends(bindings, actions, buffer, suspend=suspend, is_lent=is_lent)
    _bind_thinking(bindings, actions, buffer)
    _bind_search(bindings, buffer)
    _bind_editor(bindings, compose)
    return bindings


def _bind_typing(bindings: KeyBindings, buffer: DraftBuffer) -> None:
    _bind(bindings, "enter", do=buffer.validate_and_handle, when=~is_searching)
    _bind(bindings, "c-j", do=lambda: buffer.insert_text("\n"), when=~is_searching)
    # Not in vi mode: Escape alone would have to wait there for what follows.
    _bind(bindings, "escape", "enter", do=lambda: buffer.insert_text("\n"), when=emacs_mode & ~is_searching)
    # The mouse is never asked for: what looks like its report is pasted colour codes, and is passed over.
    _bind(bindings, Keys.Vt100MouseEvent, do=lambda: None)

    @bindings.add(Keys.BracketedPaste, filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        buffer.insert_paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))


def _bind_completion(bindings: KeyBindings, buffer: DraftBuffer) -> None:
    def take_choice() -> None:
        buffer.complete_state = None

    is_chosen = Condition(
        lambda: buffer.complete_state is not None and buffer.complete_state.complete_index is not None
    )
    _bind(bindings, "enter", do=take_choice, when=is_chosen & ~is_searching)
    _bind(bindings, "c-g", do=buffer.cancel_completion, when=_is_completing(buffer) & ~is_searching)


def _bind_ends(
    bindings: KeyBindings,
    actions: KeyActions,
    buffer: DraftBuffer,
    *,
    suspend: Callable[[], None],
    is_lent: Callable[[], bool],
) -> None:
    is_empty = Condition(lambda: not buffer.text)
    _bind(bindings, "c-c", do=actions.interrupt, when=~is_searching)
    _bind(
        bindings, "<sigint>", do=actions.interrupt, when=~Condition(is_lent)
    )  # an editor's Ctrl-C is its own
    _bind(bindings, "c-d", do=actions.leave, when=is_empty & ~is_searching)
    _bind(
        bindings,
        "up",
        do=actions.take_back,
        when=is_empty & Condition(lambda: actions.has_waiting) & ~is_searching,
    )

    _bind(bindings, "c-z", do=suspend)


def _bind_thinking(bindings: KeyBindings, actions: KeyActions, buffer: DraftBuffer) -> None:
    _bind(bindings, "c-t", do=actions.show_thinking, when=~is_searching)
    _bind(bindings, "c-g", do=actions.answer_now, when=~_is_completing(buffer) & ~is_searching)


def _bind_search(bindings: KeyBindings, buffer: DraftBuffer) -> None:
    """Have a search that is given up leave the input as it was; searching on, as Ctrl-R Ctrl-R does, moves it."""
    before = {"working_index": buffer.working_index, "cursor_position": buffer.cursor_position}

    def begin(direction: SearchDirection) -> None:
        before.update({name: getattr(buffer, name) for name in before})
        start_search(direction=direction)

    def give_up() -> None:
        stop_search()
        buffer.working_index, buffer.cursor_position = before["working_index"], before["cursor_position"]

    _bind(bindings, "c-r", do=lambda: begin(SearchDirection.BACKWARD), when=~is_searching)
    _bind(bindings, "c-s", do=lambda: begin(SearchDirection.FORWARD), when=~is_searching)
    for key in ("c-g", "c-c"):
        _bind(bindings, key, do=give_up, when=is_searching)


def _bind_editor(bindings: KeyBindings, compose: Callable[[], None]) -> None:
    _bind(bindings, "c-x", "c-e", do=compose, when=~is_searching)
    _bind(bindings, "v", do=compose, when=vi_navigation_mode & ~is_searching)


def _bind(bindings: KeyBindings, *keys: str, do: Callable[[], None], when: FilterOrBool = True) -> None:
    bindings.add(*keys, filter=when)(lambda event: do())


def _is_completing(buffer: DraftBuffer) -> Condition:
    return Condition(lambda: buffer.complete_state is not None)
