"""How many tokens the draft has, counted on a thread of its own: a long text must not hold up the keys."""

import threading
from collections.abc import Callable


class DraftCounter:
    """Counts whatever text was asked for last; texts asked for meanwhile and typed over are passed over.

    `on_change` is called on that thread, when a count is there.
    """

    def __init__(self, count: Callable[[str], int], *, on_change: Callable[[], None]) -> None:
        self._count, self._on_change = count, on_change
        self._wanted: str | None = None
        self._known: tuple[str, int | None] = ("", 0)
        self._n_forgotten = 0  # so that a count under way then is not taken for a new one
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def tokens(self, text: str) -> int | None:
        """Return how many tokens `text` has, or None as long as it is being counted, or cannot be."""
        with self._changed:
            known_text, n_tokens = self._known
            if text == known_text:
                self._wanted = None
                return n_tokens
            if text != self._wanted and not self._is_closed:
                self._wanted = text
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="draft-counter", daemon=True)
                    self._thread.start()
        return None

    def forget(self) -> None:
        """Count anew what is asked for next: another model says the same text in other tokens."""
        with self._changed:
            self._wanted = None
            self._known = ("", 0)
            self._n_forgotten += 1

    def close(self) -> None:
        """Count nothing more. A count under way ends unheard."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            text, n_forgotten = job
            try:
                n_tokens = self._count(text)
            except Exception:  # a figure for the bar: sending the same text says what is wrong with it
                n_tokens = None
            with self._changed:
                if self._is_closed:
                    return
                if n_forgotten != self._n_forgotten:
                    continue
                self._known = (text, n_tokens)
                if self._wanted == text:
                    self._wanted = None
            self._on_change()

    def _next(self) -> tuple[str, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._wanted is not None)
            return None if self._is_closed or self._wanted is None else (self._wanted, self._n_forgotten)
