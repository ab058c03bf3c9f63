"""A parser of keys that does not wait for ever for the end of a paste.

Where a connection was cut in the middle of one, its end never comes, and every key would be one more character of it.
It goes by silence; should the rest of a paste come after all, it is still one, and its lines are not sent.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress

SILENCE_SECONDS: Final = 2.0  # within a paste, until its end is no longer waited for
PAUSE_SECONDS: Final = 0.2  # before a Ctrl-C that is a key and no part of a paste
_BEGIN, _END, _CTRL_C = "\x1b[200~", "\x1b[201~", "\x03"


class PasteParser(Vt100Parser):
    """Ends a paste after a silence, or at a Ctrl-C that comes alone after a pause: it ends the paste and does no more.

    `on_silence` is called on the loop's thread when a paste was ended by silence: its key press is there to be fetched.
    """

    def __init__(
        self, feed_key_callback: Callable[[KeyPress], None], *, on_silence: Callable[[], None]
    ) -> None:
        super().__init__(feed_key_callback)
        self._on_silence = on_silence
        self._silence: asyncio.TimerHandle | None = None
        self._last_fed = 0.0
        self._has_given_up = False

    def feed(self, data: str) -> None:
        """Take in what was read; the paste that it begins or goes on with is waited for anew."""
        last_fed, self._last_fed = self._last_fed, time.monotonic()
        if not self._in_bracketed_paste:
            data = self._as_rest(data) if self._has_given_up else data
        elif data == _CTRL_C and self._last_fed - last_fed >= PAUSE_SECONDS:
            self._has_given_up, data = True, _END
        super().feed(data)
        self._wait()

    def _as_rest(self, data: str) -> str:
        """Return what was read as a paste, if it is the rest of the one given up: its lines are no messages."""
        is_rest = (_END in data or "\r" in data[:-1]) and _BEGIN not in data
        self._has_given_up = not is_rest and "\r" not in data  # who sends something has gone on
        return _BEGIN + data if is_rest else data

    def _wait(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self._in_bracketed_paste:
            self._silence = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._has_given_up = True
        self.feed(_END)
        self._on_silence()


def end_pastes_in_time(app: Application[Any]) -> None:
    """Have an application take what came of a paste whose end is missing, and its keys again."""
    keyboard = app.input

    def take_keys() -> None:
        if app.is_running and not app.is_done:
            app.key_processor.feed_multiple(keyboard.flush_keys())
            app.key_processor.process_keys()

    if isinstance(keyboard, Vt100Input):
        keyboard.vt100_parser = PasteParser(keyboard.vt100_parser.feed_key_callback, on_silence=take_keys)
