"""Long texts in the input, each folded to one character that is shown as a label and is its text again when read.

The characters are private ones of Unicode's last plane. One that was typed or pasted is folded too, under its own
look, so that within the input every such character stands for a text and none can be mistaken for another.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments

from turbospark_chat.chat.counted import counted
from turbospark_chat.terminal.harmless import harmless

MOST_LINES = 8
MOST_CHARACTERS = 1000
_FIRST, _LAST = 0x100000, 0x10FFFD
_MARKS = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


@dataclass(slots=True)
class _Folded:
    text: str
    label: str


class Pastes:
    """The folded texts of one input, by the character (mark) that stands for each.

    They last as long as the input does: what was cut may be put back after the message was sent.
    """

    def __init__(self) -> None:
        self._folded: dict[str, _Folded] = {}
        self._marks: dict[tuple[str, str], str] = {}  # by label and text
        self._n_folded = 0

    def fold(self, text: str, label: str) -> str:
        """Return the mark that stands for `text` from here on and is shown as `label`."""
        mark = self._new_mark()
        self._folded[mark] = _Folded(text, _one_line(label))
        return mark

    def relabel(self, mark: str, label: str) -> None:
        """Show another label for a text folded before."""
        self._folded[mark].label = _one_line(label)

    def label(self, mark: str) -> str:
        """Return how a mark is shown; any other character is shown as it is."""
        folded = self._folded.get(mark)
        return mark if folded is None else folded.label

    def enclose(self, text: str, *, kind: str = "text") -> str:
        """Return literal text as the input holds it: folded as a whole if it is long, `kind` saying what it is."""
        if is_long(text):
            return self._fold_once(text, describe(text, kind))
        return _MARKS.sub(lambda match: self._fold_once(match[0], match[0]), text)

    def enclose_again(self, text: str) -> str:
        """Return literal text as the input holds it, what was folded before under the label it had."""
        pieces = [text]  # literal text and marks by turns
        for mark, folded in reversed(self._folded.items()):
            if folded.text != folded.label:  # no character under its own look
                pieces = [
                    part
                    for number, piece in enumerate(pieces)
                    for part in ([piece] if number % 2 else _split(piece, folded.text, mark))
                ]
        return "".join(piece if number % 2 else self.enclose(piece) for number, piece in enumerate(pieces))

    def expand(self, held: str) -> str:
        """Return literal text for what the input holds; the folded texts themselves are not looked into."""
        return _MARKS.sub(lambda match: self._text(match[0]), held)

    def _text(self, mark: str) -> str:
        folded = self._folded.get(mark)
        return mark if folded is None else folded.text

    def _fold_once(self, text: str, label: str) -> str:
        """Fold it, or return the mark from last time: whoever goes through the history meets the same text often."""
        mark = self._marks.get((label, text))
        if mark is None or self._text(mark) != text:
            mark = self._marks[label, text] = self.fold(text, label)
        return mark

    def _new_mark(self) -> str:
        """Return the next mark; after 65,534 of them the oldest is forgotten."""
        mark = chr(_FIRST + self._n_folded % (_LAST - _FIRST + 1))
        self._n_folded += 1
        return mark


def _split(text: str, separator: str, mark: str) -> list[str]:
    """Return the pieces of a text, with a mark wherever the separator stood."""
    first, *others = text.split(separator) if separator else [text]
    return [first, *(piece for other in others for piece in (mark, other))]


def is_long(text: str) -> bool:
    """Return whether a text is folded in the input."""
    return len(text) > MOST_CHARACTERS or _n_lines(text) > MOST_LINES


def describe(text: str, kind: str) -> str:
    """Return the label of a text that has no other."""
    lines = counted(_n_lines(text), "line", is_grouped=True)
    characters = counted(len(text), "character", is_grouped=True)
    return f"[{kind}: {lines}, {characters}]"


def _n_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _one_line(label: str) -> str:
    return " ".join(harmless(label).split())


class LabelProcessor(Processor):
    """Shows labels in place of marks; the cursor steps over each as over one character."""

    def __init__(self, pastes: Pastes) -> None:
        self._pastes = pastes

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Return the line with its labels."""
        fragments = transformation_input.fragments
        if not _MARKS.search(fragment_list_to_text(fragments)):
            return Transformation(fragments)
        characters = explode_text_fragments(fragments)
        shown = []
        for style, character, *_ in characters:
            label = self._pastes.label(character)
            shown.append((style if label == character else f"{style} class:label", label))
        starts = list(accumulate((len(label) for _, label in shown), initial=0))
        n_characters, n_shown = len(shown), starts[-1]

        def to_shown(position: int) -> int:
            return starts[position] if position < n_characters else n_shown + position - n_characters

        def to_held(position: int) -> int:
            if position >= n_shown:
                return n_characters + position - n_shown
            return bisect_right(starts, position) - 1

        return Transformation(list(shown), source_to_display=to_shown, display_to_source=to_held)
