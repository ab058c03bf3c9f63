"""The one prompt_toolkit application that owns the terminal: live text, input line, status bar.

Finished text goes above it, into the scrollback, and is never touched again. Knows no chat.
"""

import asyncio
import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.completion import Completer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import merge_key_bindings
from prompt_toolkit.key_binding.bindings.auto_suggest import load_auto_suggest_bindings
from prompt_toolkit.key_binding.vi_state import InputMode
from prompt_toolkit.layout import Layout
from prompt_toolkit.styles import Style

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.draft_buffer import Draft, DraftBuffer
from turbospark_chat.terminal.editor import edit_text
from turbospark_chat.terminal.frame_output import FrameOutput
from turbospark_chat.terminal.job_control import JobControl
from turbospark_chat.terminal.keys import KeyActions, make_key_bindings, send
from turbospark_chat.terminal.paste_parser import end_pastes_in_time
from turbospark_chat.terminal.pastes import Pastes
from turbospark_chat.terminal.reflow import ReflowApplication, reflows
from turbospark_chat.terminal.screen_layout import ScreenLayout
from turbospark_chat.terminal.suggestions import HistorySuggestions

Editing = Literal["emacs", "vi"]

# No colours: they would have to suit a background nobody knows, and NO_COLOR may be set.
_STYLE = Style.from_dict(
    {
        "auto-suggestion": "noinherit dim",
        "label": "bold",
        "menu": "dim",
        "menu.chosen": "bold",
        "search-toolbar": "noinherit dim",
        "search": "noinherit underline",
        "incsearch": "noinherit underline",
    }
)
_SECONDS_AFTER_ESCAPE = 0.1  # that the rest of an escape sequence may take
_VI_MODES = {
    InputMode.INSERT: "insert",
    InputMode.INSERT_MULTIPLE: "insert",
    InputMode.NAVIGATION: "normal",
    InputMode.REPLACE: "replace",
    InputMode.REPLACE_SINGLE: "replace",
}


class Screen:
    """The running application. Its methods belong on its own thread, but for `invalidate`.

    `live_text` gets the width and the most rows there is room for, `status` the width; both return rows of text, each
    of which ends the styles it begins, best without blanks at its end. Without `has_bar`, `status` is never asked.
    """

    def __init__(
        self,
        actions: KeyActions,
        *,
        live_text: Callable[[int, int], str],
        prompt: Callable[[], str],
        status: Callable[[int], str],
        history: History,
        completer: Completer,
        output: FrameOutput,
        on_error: Callable[[BaseException], None],
        is_vi: bool = False,
        has_bar: bool = True,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._output, self._on_error, self._environment = output, on_error, environment
        self._is_aside = False
        self._loan: asyncio.Task[str] | None = None  # of the terminal, to an editor
        self._held: list[str] = []  # finished text from meanwhile
        self._buffer = DraftBuffer(
            Pastes(),
            on_send=lambda: send(actions, self._buffer),
            history=history,
            completer=completer,
            auto_suggest=HistorySuggestions(lambda: actions.is_asking),
        )
        self._buffer.on_text_changed += lambda _: actions.draft_changed()
        layout = ScreenLayout(
            self._buffer,
            live_text=live_text,
            prompt=prompt,
            status=status if has_bar else None,
            get_size=output.get_size,
            is_hidden=lambda: self._is_aside,
        )
        bindings = make_key_bindings(
            actions, self._buffer, compose=self._begin_composing, suspend=self._suspend, is_lent=self._is_lent
        )
        settings: dict[str, Any] = {
            "layout": Layout(layout.container, focused_element=layout.input_window),
            "key_bindings": merge_key_bindings([load_auto_suggest_bindings(), bindings]),
            "style": _STYLE,
            "include_default_pygments_style": False,
            "editing_mode": EditingMode.VI if is_vi else EditingMode.EMACS,
            "before_render": lambda _: layout.measure(),
            "after_render": lambda _: output.release(),
            "output": output,
            "erase_when_done": True,
        }
        self._app: Application[int] = (
            ReflowApplication(on_settled=self._write_held, **settings)
            if reflows(environment)
            else Application(**settings)
        )
        self._job_control = JobControl(self._app, is_lent=self._is_lent, before_stop=output.release)

    @property
    def size(self) -> Size:
        """The terminal's size."""
        return self._output.get_size()

    # The input

    @property
    def input_text(self) -> str:
        """What is typed and not yet sent, with the text of every label in its place.

        Set, it is replaced, and a long text is folded to a label.
        """
        return self._buffer.draft

    @input_text.setter
    def input_text(self, text: str) -> None:
        self._buffer.put(text)

    def put_before(self, text: str) -> None:
        """Put a message before what is typed, on lines of its own; it stays one should it look like a command."""
        self._buffer.put_before(text)

    def set_aside(self) -> Draft:
        """Empty the input and return what it held, labels and all, for `bring_back`."""
        return self._buffer.set_aside()

    def bring_back(self, draft: Draft) -> None:
        """Put what was set aside in the place of what is typed."""
        self._buffer.bring_back(draft)

    def attach(self, label: str, text: str) -> str:
        """Insert a label that stands for `text` at the cursor; return its name for `relabel`."""
        return self._buffer.insert_label(label, text)

    def relabel(self, attached: str, label: str) -> None:
        """Give what was attached another label."""
        self._buffer.pastes.relabel(attached, label)
        self._app.invalidate()

    @property
    def editing(self) -> Editing:
        """Whose keys the input has."""
        return "vi" if self._app.editing_mode is EditingMode.VI else "emacs"

    @editing.setter
    def editing(self, editing: Editing) -> None:
        self._app.vi_state.reset()
        self._app.editing_mode = EditingMode.VI if editing == "vi" else EditingMode.EMACS
        self._app.invalidate()

    @property
    def vi_mode(self) -> str:
        """What vi's keys do just now: insert, normal, replace or visual; empty with emacs keys."""
        if self.editing == "emacs":
            return ""
        return "visual" if self._buffer.selection_state else _VI_MODES[self._app.vi_state.input_mode]

    # Running

    async def run(self, on_start: Callable[[asyncio.AbstractEventLoop], None]) -> int:
        """Own the terminal until `close`; return the exit code given there.

        SIGTERM and SIGHUP close it too, with 128 and their number: killed outright, it would leave the terminal raw.
        """
        loop = asyncio.get_running_loop()
        self._app.ttimeoutlen = _SECONDS_AFTER_ESCAPE
        end_pastes_in_time(self._app)
        gets_signals = threading.current_thread() is threading.main_thread()
        if gets_signals:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.close, 128 + number)

        def begin() -> None:
            if gets_signals:
                self._job_control.listen(loop)
            on_start(loop)

        loop.set_exception_handler(self._report)
        try:
            return await self._app.run_async(pre_run=begin, set_exception_handler=False)
        finally:
            self._output.release()  # the last picture may have failed

    def close(self, exit_code: int) -> None:
        """End `run`."""
        self._end(lambda: self._app.exit(result=exit_code))

    def fail(self, error: Exception) -> None:
        """End `run` by raising `error` from it."""
        self._end(lambda: self._app.exit(exception=error))

    def invalidate(self) -> None:
        """Draw again soon; any thread may ask."""
        with contextlib.suppress(RuntimeError):  # it may just be ending, and its loop with it
            self._app.invalidate()

    # Above the input, and elsewhere

    def write_above(self, text: str) -> None:
        """Put finished text, escape codes included, above the input; it must end in a newline.

        While an editor has the terminal, or the terminal is changing its size, it is held back.
        """
        self._held.append(text)
        if self._loan is None and not (isinstance(self._app, ReflowApplication) and self._app.is_settling()):
            self._hold()
            self._app.renderer.erase(leave_alternate_screen=False)
            self._write_held()
            self._app.invalidate()

    def write_sequence(self, sequence: str) -> None:
        """Send the terminal an escape sequence that shows nothing and moves nothing."""
        self._output.write_raw(sequence)
        self._output.flush()

    async def edit(self, text: str) -> str:
        """Return what the user makes of `text` in an editor, which has the terminal meanwhile.

        Raises:
            UsageError: there is no editor, it failed, or one is open already.
        """
        if self._loan is not None:
            raise UsageError("an editor is open already; close it first")
        context = (
            None if self._app.context is None else self._app.context.copy()
        )  # whoever asks may have none
        self._loan = asyncio.get_running_loop().create_task(self._lend(text), context=context)
        try:
            return await self._loan
        finally:
            self._loan = None
            if self._held:
                self.write_above("")

    def stand_aside(self) -> None:
        """Draw nothing until `come_back`, and leave the cursor where something else may write whole lines."""
        if not self._is_aside:
            self._is_aside = True
            self._app.renderer.erase(leave_alternate_screen=False)
            self._output.release()

    def come_back(self) -> None:
        """Draw again, below what was written meanwhile."""
        self._is_aside = False
        self._app.invalidate()

    # Within

    def _hold(self) -> None:
        """Have what is written next shown with the next picture, unless there is none to come."""
        if self._app.is_running and not self._is_aside:
            self._output.hold(asyncio.get_running_loop())

    def _write_held(self) -> None:
        text = "".join(self._held)
        self._held.clear()
        self._output.write_raw(text.replace("\n", "\r\n"))
        self._output.flush()

    def _is_lent(self) -> bool:
        return self._loan is not None

    def _suspend(self) -> None:
        self._job_control.stop()

    def _begin_composing(self) -> None:
        self._app.create_background_task(self._compose())

    async def _compose(self) -> None:
        """Have the draft edited. What comes to the input meanwhile, such as a message given back, goes before it."""
        draft = self.set_aside()
        text = self._buffer.pastes.expand(draft.held)
        edited = text
        try:
            edited = await self.edit(text)
        except Exception as error:  # whatever it was, the draft survives it
            self._on_error(error)
        meanwhile = self.input_text
        if edited == text:
            self.bring_back(draft)
        else:
            self.input_text = edited
        if meanwhile:
            self.put_before(meanwhile)

    async def _lend(self, text: str) -> str:
        async with in_terminal():
            self._output.release()
            return await edit_text(text, self._environment, terminal=self._descriptor())

    def _descriptor(self) -> int | None:
        try:
            return self._output.fileno()
        except (io.UnsupportedOperation, NotImplementedError):  # it paints on no file
            return None

    def _end(self, exit_app: Callable[[], None]) -> None:
        """End the application; an editor first, or it would leave the terminal to nobody."""
        if self._loan is not None and not self._loan.done():
            self._loan.add_done_callback(lambda _: self._end(exit_app))
            self._loan.cancel()
        elif self._app.is_running and not self._app.is_done:
            exit_app()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show an error nobody caught; prompt_toolkit's own handler would ask for a key and keep all others."""
        error = context.get("exception")
        self._on_error(error if error is not None else RuntimeError(context["message"]))
