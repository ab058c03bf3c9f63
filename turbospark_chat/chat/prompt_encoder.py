"""From a rendered prompt to token ids, keeping the ids that text already has. Knows segments, not messages.

Text tokenised again rarely gives back the ids the model generated, and a prompt with other ids for the same text
misses the cache. So text that stands where known ids say exactly that text keeps those ids. The comparison goes
from one control token to the next, since no merge crosses those.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from turbospark_chat.chat.template import Control, RenderedPrompt, Segment, Text


class PromptTokenizer(Protocol):
    """What encoding a prompt needs of a tokenizer."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Control tokens by spelling."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; spellings of control tokens are text too."""

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """Return ids with the one BOS the model expects."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens left out."""


def encode_prompt(
    prompt: RenderedPrompt, tokenizer: PromptTokenizer, *, known_ids: Sequence[int] = ()
) -> list[int]:
    """Return the prompt's ids, with one BOS, taking over `known_ids` for as long as they say the same text."""
    bos = tokenizer.with_bos([])
    opening = prompt.segments[0] if prompt.segments else None
    writes_bos = isinstance(opening, Control) and [tokenizer.control_ids[opening.spelling]] == bos
    if bos and not writes_bos and list(known_ids[:1]) == bos:
        known_ids = known_ids[1:]  # the BOS that was put before a prompt which does not write its own
    return tokenizer.with_bos(encode_segments(prompt.segments, tokenizer, known_ids=known_ids))


def encode_segments(
    segments: Sequence[Segment], tokenizer: PromptTokenizer, *, known_ids: Sequence[int] = ()
) -> list[int]:
    """Return the ids of segments, as `encode_prompt` does but for BOS."""
    walk = _KnownIds(known_ids, tokenizer)
    ids: list[int] = []
    for segment in segments:
        if isinstance(segment, Control):
            token_id = tokenizer.control_ids[segment.spelling]
            walk.step_over(token_id)
            ids.append(token_id)
        else:
            ids += walk.take(segment.text) or tokenizer.encode(segment.text)
    return ids


def segments_after(prompt: RenderedPrompt, mark: str) -> tuple[Segment, ...]:
    """Return what follows the text `mark`, or nothing where it does not stand exactly once."""
    for index, segment in enumerate(prompt.segments):
        if isinstance(segment, Text) and mark in segment.text:
            rest = segment.text.partition(mark)[2]
            following = ((Text(rest),) if rest else ()) + tuple(prompt.segments[index + 1 :])
            return following if prompt.text.count(mark) == 1 else ()
    return ()


class _KnownIds:
    """A walk along known ids, segment by segment, that ends at the first difference."""

    def __init__(self, ids: Sequence[int], tokenizer: PromptTokenizer) -> None:
        self._ids, self._tokenizer = ids, tokenizer
        self._control = frozenset(tokenizer.control_ids.values())
        self._at = 0

    def step_over(self, token_id: int) -> None:
        """Pass one control token, or end the walk."""
        if self._at < len(self._ids) and self._ids[self._at] == token_id:
            self._at += 1
        else:
            self._stop()

    def take(self, text: str) -> list[int]:
        """Return the known ids that say exactly `text`, or nothing, and end the walk."""
        end = self._at
        while end < len(self._ids) and self._ids[end] not in self._control:
            end += 1
        run = list(self._ids[self._at : end])
        # The walk stays at `end` only for equal text; U+FFFD could stand for bytes that differ.
        if run and "\ufffd" not in text and self._tokenizer.decode(run) == text:
            self._at = end
            return run
        self._stop()
        return []

    def _stop(self) -> None:
        self._at = len(self._ids)
