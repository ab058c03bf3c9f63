"""From a rendered prompt to token ids, keeping the ids that text already has. Knows parts of a prompt, not messages.

Text tokenised again rarely gives back the ids the model generated, and a prompt with other ids for the same text
misses the cache. So text that stands where known ids say exactly that text keeps those ids. The comparison goes
from one control token to the next, since no merge crosses those.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from turbospark_chat.chat.rendered_prompt import Control, Segment, Text


class PromptTokenizer(Protocol):
    """What encoding a prompt needs of a tokenizer."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Control tokens by spelling."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; spellings of control tokens are text too."""

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of ordinary text that goes on from other text."""

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """Return ids with the one BOS the model expects."""

    def decode(self, ids: Sequence[int], *, show_control: bool = False) -> str:
        """Return the text of ids, with `show_control` the spellings of control tokens too."""


@dataclass(frozen=True, slots=True)
class Ids:
    """A part of a prompt that is ids already, such as a reply as it was generated."""

    ids: tuple[int, ...]


PromptPart = Segment | Ids


def encode_prompt(
    parts: Sequence[PromptPart], tokenizer: PromptTokenizer, *, known_ids: Sequence[int] = ()
) -> list[int]:
    """Return the prompt's ids, with one BOS, taking over `known_ids` for as long as they say the same text."""
    bos = tokenizer.with_bos([])
    opening = parts[0] if parts else None
    writes_bos = isinstance(opening, Control) and [tokenizer.control_ids[opening.spelling]] == bos
    if bos and not writes_bos and list(known_ids[:1]) == bos:
        known_ids = known_ids[1:]  # the BOS that was put before a prompt which does not write its own
    control = frozenset(tokenizer.control_ids.values())
    walk = _KnownIds(known_ids, control, tokenizer)
    ids: list[int] = []
    for part in parts:
        if isinstance(part, Text):
            goes_on = ids and ids[-1] not in control
            encode = tokenizer.encode_continuation if goes_on else tokenizer.encode
            ids += walk.take(part.text) or encode(part.text)
            continue
        exact = part.ids if isinstance(part, Ids) else (tokenizer.control_ids[part.spelling],)
        walk.step_over(exact)
        ids += exact
    return tokenizer.with_bos(ids)


def ids_saying(text: str, sampled_ids: Sequence[int], tokenizer: PromptTokenizer) -> tuple[int, ...]:
    """Return ids that say exactly `text`: the sampled ones as far as they go, then the rest encoded.

    The two differ where a stop string or half a character was cut off the end of what was sampled.
    """
    end = len(sampled_ids)
    while not text.startswith(said := tokenizer.decode(sampled_ids[:end])):
        end -= 1
    encode = tokenizer.encode_continuation if end else tokenizer.encode
    return (*sampled_ids[:end], *encode(text[len(said) :]))


def is_saying(text: str, ids: Sequence[int], tokenizer: PromptTokenizer, *, n_known: int) -> bool:
    """Whether ids, of which a tokenizer knows the first `n_known`, say exactly `text`."""
    return all(0 <= token_id < n_known for token_id in ids) and tokenizer.decode(ids) == text


class _KnownIds:
    """A walk along known ids, part by part, that ends at the first difference."""

    def __init__(self, ids: Sequence[int], control: Set[int], tokenizer: PromptTokenizer) -> None:
        self._ids, self._control, self._tokenizer = ids, control, tokenizer
        self._at = 0

    def step_over(self, ids: Sequence[int]) -> None:
        """Pass these ids, or end the walk."""
        end = self._at + len(ids)
        self._at = end if tuple(self._ids[self._at : end]) == tuple(ids) else len(self._ids)

    def take(self, text: str) -> list[int]:
        """Return ids that say exactly `text` and begin with the known ones here; nothing, and the end, without.

        Where the known ids are at their end the text may go on: there a reply ended, and what the template writes
        after it is encoded by itself.
        """
        start, end = self._at, self._at
        while end < len(self._ids) and self._ids[end] not in self._control:
            end += 1
        run, self._at = list(self._ids[start:end]), len(self._ids)
        said = self._tokenizer.decode(run)
        if said == text:
            self._at = end
            return run
        if run and end == len(self._ids) and text.startswith(said):
            return run + self._tokenizer.encode_continuation(text[len(said) :])
        return []
