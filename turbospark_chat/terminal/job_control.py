"""Stopping and going on: by Ctrl-Z, by signals from outside, under a shell that has the terminal meanwhile.

Knows nothing of what is on the screen; the application takes it away and draws it again.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import run_in_terminal

_OWN_GROUP: Final = 0  # as `kill` has it


class JobControl:
    """Leaves the terminal as the shell wants it whenever the program stops, and takes it again afterwards.

    `is_lent` tells whether another program has the terminal: that one settles it with the shell itself. `before_stop`
    writes what is still to be written.
    """

    def __init__(
        self, app: Application[Any], *, is_lent: Callable[[], bool], before_stop: Callable[[], None]
    ) -> None:
        self._app, self._is_lent, self._before_stop = app, is_lent, before_stop
        self._is_stopping = False

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the signals to stop and to go on, in the application's context and on the main thread."""
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # whoever started us has no job control
            loop.add_signal_handler(signal.SIGTSTP, self._stop, os.getpid())
        loop.add_signal_handler(signal.SIGCONT, self._take_terminal_again)

    def stop(self) -> None:
        """Stop, and with this program all others of its pipeline, as Ctrl-Z does."""
        self._stop(_OWN_GROUP)

    def _stop(self, target: int) -> None:
        if self._is_lent():
            self._send_stop(target)
        elif not self._is_stopping:
            self._is_stopping = True
            run_in_terminal(partial(self._send_stop, target))

    def _send_stop(self, target: int) -> None:
        """Stop here, and return once the program goes on."""
        loop = asyncio.get_running_loop()
        handled = [
            number for number in (signal.SIGTSTP, signal.SIGCONT) if loop.remove_signal_handler(number)
        ]
        self._before_stop()
        os.kill(target, signal.SIGTSTP)
        if handled:
            self.listen(loop)
        self._is_stopping = False

    def _take_terminal_again(self) -> None:
        """Make the terminal raw again: a shell that stopped this program unasked has made it its own meanwhile."""
        if not self._is_lent():  # otherwise it is the other program that was stopped, and that goes on
            self._app.input.raw_mode().__enter__()  # the application restores what was there at its own start
            self._app.renderer.reset()
            self._app.invalidate()
