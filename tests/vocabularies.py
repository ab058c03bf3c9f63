"""Small vocabularies as GGUF metadata. Ids follow the order: special pieces, the bytes, the words."""

from collections.abc import Mapping, Sequence

from tokenizers.pre_tokenizers import ByteLevel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # values of `tokenizer.ggml.token_type`
BYTE_ALPHABET = sorted(ByteLevel.alphabet())  # the 256 characters that stand for bytes in byte-level pieces

Metadata = dict[str, object]


def byte_level(special: Mapping[str, int], words: Sequence[str] = ("Ġt",), **more: object) -> Metadata:
    """A byte-level vocabulary: special pieces with their types, every byte, `words` merged from the left."""
    pieces = dict(special) | dict.fromkeys(BYTE_ALPHABET, NORMAL)
    merges = []
    for word in words:
        for cut in range(1, len(word)):
            pair = f"{word[:cut]} {word[cut]}"
            if pair not in merges:
                merges.append(pair)
            pieces.setdefault(word[: cut + 1], NORMAL)
    return _metadata(
        {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": list(pieces),
            "token_type": list(pieces.values()),
            "merges": merges,
        }
        | more
    )


def sentencepiece(special: Mapping[str, int], normal: Sequence[str], **more: object) -> Metadata:
    """A SentencePiece vocabulary: special pieces with their types, every byte, `normal` by falling score."""
    pieces = dict(special) | {f"<0x{byte:02X}>": BYTE for byte in range(256)} | dict.fromkeys(normal, NORMAL)
    n_unscored = len(pieces) - len(normal)
    return _metadata(
        {
            "model": "llama",
            "pre": "default",
            "tokens": list(pieces),
            "token_type": list(pieces.values()),
            "scores": [0.0] * n_unscored + [float(-rank) for rank in range(len(normal))],
        }
        | more
    )


def _metadata(values: Mapping[str, object]) -> Metadata:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def without(metadata: Metadata, key: str) -> Metadata:
    """The metadata with one `tokenizer.ggml` key missing."""
    return {name: value for name, value in metadata.items() if name != f"tokenizer.ggml.{key}"}
