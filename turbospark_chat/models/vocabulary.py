"""A model's token ids and what each one is, gathered from GGUF metadata. Knows neither encoding nor decoding.

Every piece is of one kind. Control pieces give a prompt its structure and never come from ordinary text;
user-defined ones are matched in text before anything else; byte pieces stand for one byte each; normal ones
are merged from smaller.
"""

import reprlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Never, get_args

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.errors import ModelFileError, ModelWarning, UnsupportedModelError
from turbospark_chat.models.control_names import VISIBLE_NAMES, is_control_name
from turbospark_chat.models.pre_tokenizer import PreTokenizerRule, find_rule

Family = Literal["byte_level", "sentencepiece"]

SPACE = "▁"  # what SentencePiece writes for a space
BYTE_VALUES = {f"<0x{byte:02X}>": byte for byte in range(256)}  # its pieces for single bytes

_Kind = Literal["normal", "user_defined", "control", "byte", "unused"]
_FAMILIES: Mapping[str, Family] = {"gpt2": "byte_level", "llama": "sentencepiece"}
# Values of `tokenizer.ggml.token_type`: ggml-org/llama.cpp, include/llama.h. Others are ordinary.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_NO_TOKEN = (-1, 2**32 - 1)  # how files say that there is no such token


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The pieces by id, and the ids by spelling for each kind; of equal spellings the first counts."""

    pieces: tuple[str, ...]
    family: Family
    normal_ids: Mapping[str, int]
    user_defined_ids: Mapping[str, int]
    control_ids: Mapping[str, int]
    byte_ids: Mapping[str, int]
    unused_ids: frozenset[int]
    scores: Sequence[float]  # by id, the highest is merged first; empty where the file gives merges
    merges: Sequence[tuple[str, str]]  # of normal pieces, the first is merged first
    pre_tokenizer: PreTokenizerRule | None  # None for SentencePiece, which merges across words
    add_space_prefix: bool
    add_bos: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    eot_ids: tuple[int, ...]
    eom_ids: tuple[int, ...]

    @property
    def visible_control_ids(self) -> frozenset[int]:
        """Control tokens whose spelling belongs to a reply's text."""
        return frozenset(self.control_ids[name] for name in VISIBLE_NAMES if name in self.control_ids)


def read_vocabulary(metadata: Mapping[str, object], *, source: Path | str) -> Vocabulary:
    """Gather the vocabulary from the `tokenizer.ggml` keys; `source` is the file that messages name.

    Warns with ModelWarning of special ids beyond the vocabulary and of an unknown pre-tokenizer.

    Raises:
        ModelFileError: a key is missing, of the wrong type, or at odds with another.
        UnsupportedModelError: a tokenizer of another kind.
    """
    read = _Reader(metadata, source)
    pieces = read.pieces()
    family = _find_family(pieces, read.declared_family())
    rule = find_rule(read.text("pre")) if family == "byte_level" else None
    bos_ids, eos_ids, eot_ids, eom_ids = (
        read.ids(f"{name}_token_id", len(pieces)) for name in ("bos", "eos", "eot", "eom")
    )
    named_ids = {*bos_ids, *eos_ids, *eot_ids, *eom_ids}
    ids = _sort_pieces(pieces, read.token_types(len(pieces)), family, named_ids)
    merges = read.merges(pieces, ids["normal"])
    return Vocabulary(
        pieces=tuple(pieces),
        family=family,
        normal_ids=MappingProxyType(ids["normal"]),
        user_defined_ids=MappingProxyType(ids["user_defined"]),
        control_ids=MappingProxyType(ids["control"]),
        byte_ids=MappingProxyType(ids["byte"]),
        unused_ids=frozenset(ids["unused"].values()),
        scores=() if merges else read.scores(len(pieces)),
        merges=merges,
        pre_tokenizer=rule,
        add_space_prefix=rule is None and read.flag("add_space_prefix", default=True),
        add_bos=read.flag("add_bos_token", default=rule is None or rule.adds_bos),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=eos_ids,
        eot_ids=eot_ids,
        eom_ids=eom_ids,
    )


def known_ids(ids: Sequence[int], *, n_tokens: int, named_by: str) -> tuple[int, ...]:
    """Return the ids that are in the vocabulary; warn of the others, except of -1, which means no token."""
    known = tuple(token_id for token_id in ids if 0 <= token_id < n_tokens)
    for token_id in ids:
        if token_id not in known and token_id not in _NO_TOKEN:
            warnings.warn(
                f"{named_by} is {token_id}, but the vocabulary has {n_tokens} tokens: ignored",
                ModelWarning,
                stacklevel=2,
            )
    return known


def _find_family(pieces: Sequence[str], declared: Family) -> Family:
    """Judge by how the pieces write spaces: files exist that declare one kind and hold the other."""
    n_byte_level = sum(piece.startswith(("Ġ", "Ċ")) for piece in pieces)
    n_sentencepiece = sum(SPACE in piece for piece in pieces)
    if n_byte_level == n_sentencepiece:
        return declared
    return "byte_level" if n_byte_level > n_sentencepiece else "sentencepiece"


def _sort_pieces(
    pieces: Sequence[str], token_types: Sequence[int], family: Family, named_ids: set[int]
) -> dict[_Kind, dict[str, int]]:
    """Return the ids by spelling for each kind of piece; `named_ids` are those that a metadata key names."""
    ids: dict[_Kind, dict[str, int]] = {kind: {} for kind in get_args(_Kind)}
    is_sentencepiece = family == "sentencepiece"
    for token_id, (piece, token_type) in enumerate(zip(pieces, token_types, strict=True)):
        if is_sentencepiece and piece in BYTE_VALUES:
            kind: _Kind = "byte"
        else:
            kind = _kind_of(piece, token_type, is_named=token_id in named_ids)
        if is_sentencepiece and kind == "user_defined":
            piece = piece.replace(SPACE, " ")  # these are matched in the text as it is written
        ids[kind].setdefault(piece, token_id)
    return ids


def _kind_of(piece: str, token_type: int, *, is_named: bool) -> _Kind:
    if not piece:
        return "unused"
    if token_type in (_CONTROL, _UNKNOWN) or is_control_name(piece):
        return "control"
    if is_named and len(piece) > 1:  # a base model may end its text at a plain line feed
        return "control"
    if token_type == _USER_DEFINED:
        return "user_defined"
    return "unused" if token_type == _UNUSED else "normal"


class _Reader:
    """Reads `tokenizer.ggml.{key}` with the file's name and the key on every complaint."""

    def __init__(self, metadata: Mapping[str, object], source: Path | str) -> None:
        self._metadata = metadata
        self._source = source

    def declared_family(self) -> Family:
        model = self.text("model")
        if model is None:
            self._fail("metadata lacks `tokenizer.ggml.model`")
        if model not in _FAMILIES:
            supported = ", ".join(_FAMILIES)
            raise UnsupportedModelError(
                self._source, f"unsupported tokenizer: `{model}` (supported: {supported})"
            )
        return _FAMILIES[model]

    def pieces(self) -> list[str]:
        return self._strings("tokens") or self._fail("metadata lacks `tokenizer.ggml.tokens`")

    def token_types(self, n_tokens: int) -> Sequence[int]:
        types = self._numbers("token_type", "iu", n_tokens)
        return [_NORMAL] * n_tokens if types is None else types.tolist()

    def scores(self, n_tokens: int) -> Sequence[float]:
        scores = self._numbers("scores", "iuf", n_tokens)
        if scores is None:
            self._fail("metadata lacks both `tokenizer.ggml.merges` and `tokenizer.ggml.scores`")
        return tuple(scores.tolist())

    def merges(self, pieces: Sequence[str], normal_ids: Mapping[str, int]) -> Sequence[tuple[str, str]]:
        """Return the pairs to merge; one that would build a control piece is left out."""
        merges = []
        known = frozenset(pieces)
        for index, line in enumerate(self._strings("merges")):
            cut = line.find(" ", 1)  # from 1, because a piece may itself begin with a space
            left, right = line[:cut], line[cut + 1 :]
            if left in normal_ids and right in normal_ids and left + right in normal_ids:
                merges.append((left, right))
            elif not known.issuperset((left, right, left + right)):
                self._fail(f"`tokenizer.ggml.merges` has a pair of unknown pieces at {index}: {line!r}")
        return tuple(merges)

    def ids(self, key: str, n_tokens: int) -> tuple[int, ...]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return ()
        ids = np.atleast_1d(np.asarray(value))
        if ids.dtype.kind not in "iu":
            self._wrong(key, "a token id")
        return known_ids(ids.tolist(), n_tokens=n_tokens, named_by=f"`tokenizer.ggml.{key}`")

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, bool) else self._wrong(key, "a boolean")

    def text(self, key: str) -> str | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if value is None or isinstance(value, str) else self._wrong(key, "a string")

    def _strings(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            self._wrong(key, "an array of strings")
        return value

    def _numbers(self, key: str, kinds: str, n_tokens: int) -> NDArray[Any] | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        numbers = np.asarray(value)
        if numbers.ndim != 1 or numbers.dtype.kind not in kinds:
            self._wrong(key, "an array of numbers")
        if len(numbers) != n_tokens:
            self._fail(f"`tokenizer.ggml.{key}` has {len(numbers)} values for {n_tokens} tokens")
        return numbers

    def _wrong(self, key: str, expected: str) -> Never:
        value = reprlib.repr(self._metadata[f"tokenizer.ggml.{key}"])
        self._fail(f"`tokenizer.ggml.{key}` should be {expected}: {value}")

    def _fail(self, problem: str) -> Never:
        raise ModelFileError(self._source, problem)
