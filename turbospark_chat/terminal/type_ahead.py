"""Keys typed before the screen is there: kept as they are, and not echoed over whatever is shown meanwhile."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def type_ahead() -> Iterator[None]:
    """Have the keyboard's terminal keep what is typed while the block runs, for whoever reads it raw.

    Left alone, a terminal turns the Enter key into a line feed as it is pressed, and no reader can tell the two apart
    any more: a message typed early would never be sent. Ctrl-C works as always. What was set before is set again.
    """
    try:
        import termios
    except ImportError:  # not a system with such terminals
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = termios.tcgetattr(keyboard)
    changed[0] &= ~termios.ICRNL
    changed[3] &= ~(termios.ECHO | termios.ICANON)  # Ctrl-D and Backspace are keys for later, too
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may have gone
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
