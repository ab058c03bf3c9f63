"""Where one character as people see it ends and the next begins: emoji of several code points, accents, flags.

Works on a window around a place, so that it costs the same in a text of a megabyte.
"""

from rich.cells import split_graphemes

_WINDOW = 64  # code points to each side: no character that people see is longer
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)  # two of them are one flag


def grapheme_start(text: str, position: int) -> int:
    """Return the last place at or before `position` that does not lie within a character."""
    return _around(text, position)[0]


def grapheme_end(text: str, position: int) -> int:
    """Return the first place at or after `position` that does not lie within a character."""
    return _around(text, position)[1]


def _around(text: str, position: int) -> tuple[int, int]:
    if not 0 < position < len(text) or text[position].isascii():  # which nothing joins to what is before it
        return position, position
    start = position - 1
    while start > max(position - _WINDOW, 0) and not text[start].isascii():
        start -= 1
    boundaries = _boundaries(text[start : position + _WINDOW])
    before = max(place for place in boundaries if start + place <= position)
    after = min(place for place in boundaries if start + place >= position)
    return start + before, start + after


def _boundaries(text: str) -> list[int]:
    """Return where characters begin, and the end; rich knows all of them but flags."""
    boundaries = []
    is_half_flag = False
    for start, _, _ in split_graphemes(text)[0]:
        is_letter = ord(text[start]) in _FLAG_LETTERS
        if not (is_letter and is_half_flag):
            boundaries.append(start)
        is_half_flag = is_letter and not is_half_flag
    return [*boundaries, len(text)]
