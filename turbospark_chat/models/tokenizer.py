"""Text to token ids and ids to bytes, for a vocabulary read from GGUF. Knows no templates and no streaming.

The merging is done by the tokenizers library; this file states the vocabulary in its terms, and keeps control
tokens out of its reach, so that ordinary text cannot become one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, models, normalizers

from turbospark_chat.models.vocabulary import BYTE_VALUES, SPACE, Family, Vocabulary

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Encodes and decodes with one vocabulary. Immutable, so any thread may use it.

    Where the vocabulary asks for it, text gets a space in front, at the start and after each control token,
    and decoding takes it away again. Bytes for which there is no piece are dropped, as the models' own
    tokenizers do: some lack bytes that never occurred in training. A lone surrogate is encoded as U+FFFD.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build the merge table; takes about a second for a quarter of a million pieces without merges."""
        self._vocabulary = vocabulary
        self._merger = _build_merger(vocabulary)
        self._special_bytes = _special_bytes(vocabulary)
        self._control_id_set = frozenset(vocabulary.control_ids.values())
        longest_first = sorted(vocabulary.control_ids, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces and their kinds."""
        return self._vocabulary

    @property
    def n_tokens(self) -> int:
        """How many ids are known; a model's logits may be longer."""
        return len(self._vocabulary.pieces)

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Control tokens by spelling."""
        return self._vocabulary.control_ids

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space is the encoder's, so that decoding drops it."""
        return self._vocabulary.add_space_prefix

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of `text`, without BOS.

        Spellings of control tokens are ordinary text; with `parse_special` each becomes its id, the leftmost
        first and the longest of those that begin there.
        """
        if not parse_special:
            return self._encode_text(text)
        parts = self._controls.split(text)  # text and control spellings by turns
        ids = self._encode_text(parts[0])
        for control, following in zip(parts[1::2], parts[2::2], strict=True):
            ids += [self._vocabulary.control_ids[control], *self._encode_text(following)]
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of text that goes on from other text: as `encode`, but never with a space in front."""
        return self._merger.encode(_SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """Return ids with BOS in front if the model wants one and they do not begin with it already."""
        bos_id = self._vocabulary.bos_id
        if bos_id is None or not self._vocabulary.add_bos or list(ids[:1]) == [bos_id]:
            return list(ids)
        return [bos_id, *ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that an id adds to a text.

        Empty for ids beyond the vocabulary and for control tokens, except for `visible_control_ids`.
        """
        if not 0 <= token_id < self.n_tokens:
            return b""
        special = self._special_bytes.get(token_id)
        if special is not None:
            return special
        return _text_bytes(self._vocabulary.pieces[token_id], self._vocabulary.family)

    def decode(self, ids: Sequence[int], *, show_control: bool = False) -> str:
        """Return the text of ids, equal to what streaming them gives.

        Each maximal part that is not UTF-8 becomes one U+FFFD. With `show_control` control tokens appear as
        their spelling, so that what `encode` made of a prompt comes back whole.
        """
        if not show_control:
            return self._decode_run(ids)
        texts = []
        start = 0
        for at, token_id in enumerate(ids):
            if token_id in self._control_id_set:
                texts += [self._decode_run(ids[start:at]), self._vocabulary.pieces[token_id]]
                start = at + 1
        return "".join([*texts, self._decode_run(ids[start:])])

    def spelling(self, token_id: int | None) -> str:
        """Return how a token is written in a template; "" for None and for ids beyond the vocabulary."""
        if token_id is None or not 0 <= token_id < self.n_tokens:
            return ""
        if token_id in self._control_id_set:
            return self._vocabulary.pieces[token_id]
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        return self.encode_continuation(" " + text if self._vocabulary.add_space_prefix else text)

    def _decode_run(self, ids: Iterable[int]) -> str:
        data = b"".join(map(self.token_bytes, ids))
        return data.removeprefix(b" " if self.strips_leading_space else b"").decode("utf-8", "replace")


def _build_merger(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Return the library's tokenizer for ordinary text: every kind of piece but control and unused ones."""
    rule = vocabulary.pre_tokenizer
    ids = {**vocabulary.normal_ids, **vocabulary.user_defined_ids, **vocabulary.byte_ids}
    merges = list(vocabulary.merges or _merges_by_score(vocabulary))
    ignore_merges = rule is not None and rule.ignore_merges
    merger = tokenizers.Tokenizer(
        models.BPE(ids, merges, byte_fallback=rule is None, ignore_merges=ignore_merges)
    )
    if rule is None:
        merger.normalizer = normalizers.Replace(" ", SPACE)
    else:
        merger.pre_tokenizer = rule.build()
    merger.add_tokens([AddedToken(spelling, normalized=False) for spelling in vocabulary.user_defined_ids])
    return merger


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the merges that scores stand for: any two pieces that make a third, the best score first.

    Of equal pieces in overlapping places SentencePiece makes the leftmost, which ranks of pairs cannot say.
    """
    normal, scores = vocabulary.normal_ids, vocabulary.scores
    by_score = sorted(normal, key=lambda piece: -scores[normal[piece]])
    return [
        (left, right)
        for piece in by_score
        for cut in range(1, len(piece))
        if (right := piece[cut:]) in normal and (left := piece[:cut]) in normal
    ]


def _special_bytes(vocabulary: Vocabulary) -> dict[int, bytes]:
    """Return the bytes of every id whose piece is not simply merged text."""
    visible = vocabulary.visible_control_ids
    return {
        **dict.fromkeys(vocabulary.unused_ids, b""),
        **{i: spelling.encode() if i in visible else b"" for spelling, i in vocabulary.control_ids.items()},
        **{i: spelling.encode() for spelling, i in vocabulary.user_defined_ids.items()},
        **{i: bytes([BYTE_VALUES[spelling]]) for spelling, i in vocabulary.byte_ids.items()},
    }


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte for each character of byte-level pieces, as GPT-2 laid down.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100 and up.
    """
    printable = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


def _text_bytes(piece: str, family: Family) -> bytes:
    if family == "sentencepiece":
        return piece.replace(SPACE, " ").encode()
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:  # an added piece in plain text
        return piece.encode()
