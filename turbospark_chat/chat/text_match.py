"""Finding text whatever its case, in any script, and showing what is around it."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

_BEFORE, _AFTER = 30, 60  # characters of a snippet around the match


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of text in one line; `text[start:end]` is what matched."""

    text: str
    start: int
    end: int


def find_folded(text: str, wanted: str) -> tuple[int, int] | None:
    """Return where in `text` the case-folded `wanted` first is, as start and end, None where it is not.

    >>> find_folded("in der STRASSE", "straße".casefold())
    (7, 14)
    >>> find_folded("Große Straße", "SS".casefold())
    (3, 4)
    """
    folded = text.casefold()
    start = folded.find(wanted)
    if start < 0:
        return None
    end = start + len(wanted)
    if len(folded) == len(text):
        return start, end
    # Folding made some characters longer, as ß becomes ss: count what each became.
    ends = list(accumulate(len(character.casefold()) for character in text))
    return bisect_right(ends, start), bisect_left(ends, end) + 1


def snippet_around(text: str, start: int, end: int) -> Snippet:
    """Return the surroundings of a match, with dots where there is more, white space and controls as blanks."""
    first, last = max(start - _BEFORE, 0), min(end + _AFTER, len(text))
    before, after = "…" if first else "", "…" if last < len(text) else ""
    shown = "".join(" " if _is_blank(character) else character for character in text[first:last])
    shift = len(before) - first
    return Snippet(f"{before}{shown}{after}", start + shift, end + shift)


def in_one_line(text: str, *, limit: int) -> str:
    """Return the first words of a text, single-spaced, cut at a word where possible if longer than `limit`."""
    words = "".join(" " if _is_blank(character) else character for character in text).split()
    line = " ".join(words)
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    return (cut[: cut.rfind(" ")] if " " in cut[limit // 2 :] else cut).rstrip() + "…"


def _is_blank(character: str) -> bool:
    """Whether it would not show: white space, a control, or half of a surrogate pair."""
    return (
        character.isspace()
        or character < " "
        or "\x7f" <= character <= "\x9f"
        or "\ud800" <= character <= "\udfff"
    )
