"""Splits a model's thinking from its answer while it streams, by a pair of tags. Knows only text.

What returns to the prompt: a reply is given back to the template as answer and thinking apart, and templates leave
the thinking out, so later prompts go without it, and it is computed anew from there. With `keep_reasoning` replies
return exactly as they were generated, thinking and tags included, and all of them is reused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turbospark_chat.errors import SettingError

KNOWN_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|think|>", "<|/think|>"),
    ("[THINK]", "[/THINK]"),
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What opens and closes a model's thinking.

    Raises:
        SettingError: a tag is empty or holds white space.
    """

    opening: str
    closing: str

    def __post_init__(self) -> None:
        """Check both tags."""
        for tag in (self.opening, self.closing):
            if tag.split() != [tag]:
                raise SettingError(
                    f"think_tags: {tag!r} is no tag; give two without white space in them, or none"
                )

    def __str__(self) -> str:
        """Spell the pair as a user types it."""
        return f"{self.opening} {self.closing}"


def find_tags(template: str) -> ReasoningTags | None:
    """Return the tags that a chat template mentions, if it knows any."""
    for opening, closing in KNOWN_TAGS:
        if closing in template:
            return ReasoningTags(opening, closing)
    return None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one kind."""

    text: str
    is_reasoning: bool


class ReasoningSplitter:
    """Sorts text into reasoning and answer; the tags themselves, and white space beside them, belong to neither.

    Only the opening of a reply can be thinking, which may be several thoughts in a row, as of a model that was made to
    end one: a tag further down is part of the answer. `inside` starts within, for a prompt that ends with the opening
    tag. Without tags everything is the answer.
    """

    def __init__(self, tags: ReasoningTags | None, *, inside: bool = False) -> None:
        self._tags = tags
        self._state = "answer" if tags is None else "reasoning" if inside else "start"
        self._held = ""
        self._skip_space = tags is not None and inside

    @property
    def is_thinking(self) -> bool:
        """Whether a thought was opened and is not closed."""
        return self._state == "reasoning"

    def push(self, text: str) -> list[Piece]:
        """Take new text and return what can be told apart so far."""
        pieces: list[Piece] = []
        self._held += text
        before = ("", "")
        while (self._state, self._held) != before:  # one thought may follow another
            before = self._state, self._held
            if self._state == "start":
                self._start()
            if self._state == "reasoning":
                self._reason(pieces)
        if self._state == "answer":
            self._emit(pieces, self._held, is_reasoning=False)
            self._held = ""
        return pieces

    def finish(self) -> list[Piece]:
        """Return what is still held; an unclosed thought stays one."""
        pieces: list[Piece] = []
        self._emit(pieces, self._held, is_reasoning=self._state == "reasoning")
        self._held = ""
        return pieces

    def _start(self) -> None:
        """Decide whether a thought begins here; hold while it may still."""
        assert self._tags is not None
        bare = self._held.lstrip()
        if bare.startswith(self._tags.opening):
            self._held = bare[len(self._tags.opening) :]
            self._state, self._skip_space = "reasoning", True
        elif not self._tags.opening.startswith(bare):
            self._state = "answer"

    def _reason(self, pieces: list[Piece]) -> None:
        assert self._tags is not None
        thought, closing, rest = self._held.partition(self._tags.closing)
        if closing:
            self._emit(pieces, thought.rstrip(), is_reasoning=True)
            self._held, self._state, self._skip_space = rest, "start", True
            return
        keep = _overlap(thought, self._tags.closing)
        keep = max(keep, len(thought) - len(thought[: len(thought) - keep].rstrip()))
        self._emit(pieces, thought[: len(thought) - keep], is_reasoning=True)
        self._held = thought[len(thought) - keep :]

    def _emit(self, pieces: list[Piece], text: str, *, is_reasoning: bool) -> None:
        if self._skip_space:
            text = text.lstrip()
        if text:
            self._skip_space = False
            pieces.append(Piece(text, is_reasoning))


def _overlap(text: str, tag: str) -> int:
    """Return the length of the longest suffix of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)


def split(text: str, tags: ReasoningTags | None, *, inside: bool = False) -> tuple[str, str]:
    """Return the reasoning and the answer of a whole reply."""
    splitter = ReasoningSplitter(tags, inside=inside)
    pieces = splitter.push(text) + splitter.finish()
    return join(pieces, is_reasoning=True), join(pieces, is_reasoning=False)


def join(pieces: Sequence[Piece], *, is_reasoning: bool) -> str:
    """Return the text of one kind."""
    return "".join(piece.text for piece in pieces if piece.is_reasoning == is_reasoning)
