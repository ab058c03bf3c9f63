"""Find stop strings in streamed text and hold back what may yet become one.

Knows text only: no token ids, and no reason for ending but its own.
"""

from collections.abc import Sequence

from turbospark_chat.errors import SettingError


class StopMatcher:
    """Passes text through until a stop string is complete; the stop string and what follows are never shown.

    The match is the one completed first in the text, and of several completed by the same character the
    longest. However the text is cut into pushes, the visible total and the match are the same. Between pushes
    exactly the longest suffix that is a proper prefix of some stop string is held. One Knuth-Morris-Pratt
    automaton per stop string keeps the work linear in the text.

    >>> matcher = StopMatcher(["lmnop"])
    >>> [matcher.push(text) for text in ("kl", "mn", "opq")], matcher.matched
    (['k', '', ''], 'lmnop')
    """

    def __init__(self, stops: Sequence[str] | None) -> None:
        """Watch for `stops`; None or none at all lets everything through.

        Raises:
            SettingError: a stop string is empty.
        """
        self._stops = sorted(stops or (), key=len, reverse=True)
        if "" in self._stops:
            raise SettingError("stop is '': an empty stop string would end every reply; leave it out")
        self._borders = [_borders(stop) for stop in self._stops]
        self._progress = [0] * len(self._stops)  # characters of each stop string that end the text so far
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found, or None."""
        return self._matched

    def push(self, text: str) -> str:
        """Add text and return what may be shown now; "" after a match."""
        if self._matched is not None:
            return ""
        seen = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            self._matched = self._advance(character)
            if self._matched is not None:
                self._held = ""
                return seen[: end - len(self._matched)]
        cut = len(seen) - max(self._progress, default=0)
        self._held = seen[cut:]
        return seen[:cut]

    def finish(self) -> str:
        """Return the text still held, because no more will come; "" after a match."""
        held, self._held = self._held, ""
        self._progress = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str | None:
        """Move every automaton by one character and return the longest stop string it completes."""
        completed = None
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            n_matched = self._progress[index]
            while n_matched and stop[n_matched] != character:
                n_matched = borders[n_matched - 1]
            n_matched += stop[n_matched] == character
            self._progress[index] = n_matched
            if n_matched == len(stop) and completed is None:
                completed = stop
        return completed


def _borders(stop: str) -> list[int]:
    """Return for each prefix of `stop` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = borders[length - 1]
        length += stop[position] == stop[length]
        borders[position] = length
    return borders
