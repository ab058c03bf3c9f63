"""From a rendered prompt to token ids, keeping the ids that text already has. Knows parts of a prompt, not messages.

Text tokenised again rarely gives back the ids the model generated, and a prompt with other ids for the same text
misses the cache. So text that stands where known ids say exactly that text keeps those ids, and only what comes after
is encoded. The comparison goes from one control token to the next, since no merge crosses those.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from turbospark_chat.chat.rendered_prompt import Control, Segment, Text

_MOST_IDS_A_CHARACTER = 4  # one for each byte


class PromptTokenizer(Protocol):
    """What encoding a prompt needs of a tokenizer."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Control tokens by spelling."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id."""

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
    parts: Sequence[PromptPart], tokenizer: PromptTokenizer, *, known: Sequence[Sequence[int]] = ()
) -> list[int]:
    """Return the prompt's ids, with one BOS, taking over `known` ones for as long as they say the same text.

    Args:
        known: ids that were said, as whole prompts with their replies, those to be preferred first.
    """
    bos = tokenizer.with_bos([])
    opening = parts[0] if parts else None
    writes_bos = isinstance(opening, Control) and [tokenizer.control_ids[opening.spelling]] == bos
    if bos and not writes_bos:  # the BOS that is put before a prompt which does not write its own
        known = [ids[1:] if list(ids[:1]) == bos else ids for ids in known]
    control = frozenset(tokenizer.control_ids.values())
    walk = _KnownIds(known, control, tokenizer)
    ids: list[int] = []
    for part in parts:
        if isinstance(part, Text):
            goes_on = bool(ids) and ids[-1] not in control
            encode = tokenizer.encode_continuation if goes_on else tokenizer.encode
            ids += walk.take(part.text, encode) or encode(part.text)
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


def whole_characters(ids: Sequence[int], tokenizer: PromptTokenizer) -> Sequence[int]:
    """Return ids without half a character at their end, which would read as U+FFFD and say something else."""
    for end in range(len(ids), max(len(ids) - _MOST_IDS_A_CHARACTER, 0), -1):
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(map(tokenizer.token_bytes, ids[max(end - _MOST_IDS_A_CHARACTER, 0) : end])))
        if not decoder.getstate()[0]:
            return ids[:end]
    return ids[: max(len(ids) - _MOST_IDS_A_CHARACTER, 0)]


def without_half_characters(
    text: str, ids: tuple[int, ...], tokenizer: PromptTokenizer
) -> tuple[str, tuple[int, ...]]:
    """Return a text and the ids that say it without the halves of characters at its end, each of which is U+FFFD there.

    In front of one there may be another, and what is said next could make a character of it that the text has not.
    """
    while text.endswith("\ufffd") and len(whole_characters(ids, tokenizer)) < len(ids):
        text = text[:-1]
        ids = ids_saying(text, ids, tokenizer)
    return text, ids


def is_saying(text: str, ids: Sequence[int], tokenizer: PromptTokenizer, *, n_known: int) -> bool:
    """Whether ids, of which a tokenizer knows the first `n_known`, say exactly `text`."""
    return all(0 <= token_id < n_known for token_id in ids) and tokenizer.decode(ids) == text


class _KnownIds:
    """A walk along known ids, part by part. Of several it follows those that agree with all it has passed."""

    def __init__(self, known: Sequence[Sequence[int]], control: Set[int], tokenizer: PromptTokenizer) -> None:
        self._known, self._control, self._tokenizer = list(known), control, tokenizer
        self._at = 0

    def step_over(self, ids: Sequence[int]) -> None:
        """Pass these ids, and leave those behind that have others here."""
        end = self._at + len(ids)
        self._known = [known for known in self._known if tuple(known[self._at : end]) == tuple(ids)]
        self._at = end

    def take(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Pass ids that say exactly `text`, the known ones here, and return them; nothing, and the end, without.

        Where known ids are at their end the text may go on: there a reply ended.
        """
        runs = [self._run(known) for known in self._known]
        for run in runs:
            if run and self._tokenizer.decode(run) == text:
                self.step_over(run)
                return run
        for run, known in zip(runs, self._known, strict=True):
            if run and self._at + len(run) == len(known) and (longer := self._gone_on(run, text, encode)):
                self.step_over(longer)
                return longer
        self._known = []
        return []

    def _run(self, known: Sequence[int]) -> list[int]:
        """Return the known ids up to the next control token."""
        end = self._at
        while end < len(known) and known[end] not in self._control:
            end += 1
        return list(known[self._at : end])

    def _gone_on(self, run: list[int], text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the ids of a text that begins with what `run` says, if nothing can merge across its end.

        That is so where the whole text, encoded at once, has a boundary there: every merge then lies on one side.
        """
        said = self._tokenizer.decode(run)
        if not text.startswith(said):
            return []
        rest = self._tokenizer.encode_continuation(text[len(said) :])
        return run + rest if [*encode(said), *rest] == encode(text) else []
