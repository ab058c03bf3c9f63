"""What each token id is, by metadata that may say it badly."""

from collections.abc import Mapping

import numpy as np
import pytest
from vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Metadata,
    byte_level,
    sentencepiece,
    without,
)

from turbospark_chat.errors import ModelFileError, ModelWarning, UnsupportedModelError
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary


def read(metadata: Metadata) -> Vocabulary:
    return read_vocabulary(metadata, source="m.gguf")


@pytest.mark.parametrize(
    ("metadata", "family"),
    [
        (byte_level({}), "byte_level"),
        (sentencepiece({}, ["▁", "a"]), "sentencepiece"),
        pytest.param(byte_level({}, model="llama"), "byte_level", id="B9-declared-llama-but-byte-level"),
        pytest.param(sentencepiece({}, ["▁a", "▁", "Ġ"], model="gpt2"), "sentencepiece", id="declared-gpt2"),
        pytest.param(sentencepiece({}, ["a"]), "sentencepiece", id="no-sign-so-as-declared"),
    ],
)
def test_family_is_told_by_the_pieces(metadata: Metadata, family: str) -> None:
    assert read(metadata).family == family


@pytest.mark.parametrize(
    ("piece", "token_type", "is_control"),
    [
        ("<x>", CONTROL, True),
        ("<unk>", UNKNOWN, True),
        ("<|im_start|>", NORMAL, True),
        ("<|im_start|>", USER_DEFINED, True),
        ("<|im_start|>", UNUSED, True),
        ("<|made_up|>", NORMAL, True),
        ("<｜User｜>", USER_DEFINED, True),
        ("<｜end▁of▁sentence｜>", NORMAL, True),
        ("<end_of_turn>", NORMAL, True),
        ("<think>", USER_DEFINED, True),
        ("<|>", NORMAL, False),
        ("<|a b|>", NORMAL, False),
        ("<s>", USER_DEFINED, False),  # HTML, in Gemma's vocabulary
        ("</s>", USER_DEFINED, False),
        ("<b>", USER_DEFINED, False),
        ("[PAD7]", UNUSED, False),
    ],
)
def test_control_tokens_are_those_flagged_and_those_named_so(
    piece: str, token_type: int, is_control: bool
) -> None:  # 16
    vocabulary = read(byte_level({piece: token_type}))
    assert (vocabulary.control_ids.get(piece) == 0) == is_control
    assert not is_control or 0 not in vocabulary.unused_ids


def test_a_token_that_a_key_names_is_control_without_types() -> None:
    special = {"<unk>": NORMAL, "<s>": NORMAL, "</s>": NORMAL}
    metadata = without(sentencepiece(special, ["▁", "a"], bos_token_id=1, eos_token_id=2), "token_type")
    assert read(metadata).control_ids == {"<s>": 1, "</s>": 2}


def test_a_line_feed_that_ends_sequences_stays_text() -> None:
    metadata = byte_level({})
    newline = read(metadata).pieces.index("Ċ")
    vocabulary = read(metadata | {"tokenizer.ggml.eos_token_id": newline})
    assert vocabulary.eos_ids == (newline,)
    assert vocabulary.normal_ids["Ċ"] == newline


@pytest.mark.parametrize("value", [-1, 2**32 - 1, None])
def test_no_bos_is_none(value: int | None) -> None:  # E13
    assert read(byte_level({"<s>": CONTROL}, bos_token_id=value)).bos_id is None


def test_bos_beyond_the_vocabulary_is_none_with_a_notice() -> None:  # C13
    with pytest.warns(ModelWarning, match=r"`tokenizer.ggml.bos_token_id` is 99999, .*: ignored"):
        assert read(byte_level({}, bos_token_id=99999)).bos_id is None


@pytest.mark.parametrize(
    ("metadata", "add_bos"),
    [
        (sentencepiece({"<s>": CONTROL}, ["▁"], bos_token_id=0), True),
        (sentencepiece({"<s>": CONTROL}, ["▁"], bos_token_id=0, add_bos_token=False), False),
        (byte_level({"<s>": CONTROL}, bos_token_id=0), False),
        (byte_level({"<s>": CONTROL}, bos_token_id=0, add_bos_token=True), True),
        (byte_level({"<s>": CONTROL}, bos_token_id=0, pre="llama-bpe"), True),
    ],
)
def test_whether_to_add_bos_has_a_default_for_each_kind(metadata: Metadata, add_bos: bool) -> None:
    assert read(metadata).add_bos == add_bos


@pytest.mark.parametrize(
    ("metadata", "space_prefix"),
    [
        (sentencepiece({}, ["▁"]), True),
        (sentencepiece({}, ["▁"], add_space_prefix=False), False),
        (byte_level({}, add_space_prefix=True), False),  # llama.cpp encodes no such space either
    ],
)
def test_only_sentencepiece_puts_a_space_in_front(metadata: Metadata, space_prefix: bool) -> None:
    assert read(metadata).add_space_prefix == space_prefix


def test_numbers_may_come_as_arrays() -> None:
    plain = sentencepiece({"<s>": CONTROL}, ["▁", "a"], eos_token_id=0)
    arrays: dict[str, object] = {
        "tokenizer.ggml.token_type": np.array(plain["tokenizer.ggml.token_type"], "<i4"),
        "tokenizer.ggml.scores": np.array(plain["tokenizer.ggml.scores"], "<f4"),
        "tokenizer.ggml.eos_token_id": np.uint32(0),
    }
    vocabulary = read(plain | arrays)
    assert vocabulary.control_ids == {"<s>": 0}
    assert vocabulary.scores[-2:] == (0.0, -1.0)
    assert vocabulary.eos_ids == (0,)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"tokens": None}, "lacks `tokenizer.ggml.tokens`"),
        ({"tokens": []}, "lacks `tokenizer.ggml.tokens`"),
        ({"tokens": 7}, "`tokenizer.ggml.tokens` should be an array of strings: 7"),
        ({"tokens": ["a", 1]}, "should be an array of strings"),
        ({"model": None}, "lacks `tokenizer.ggml.model`"),
        ({"model": 3}, "`tokenizer.ggml.model` should be a string: 3"),
        ({"pre": ["x"]}, "`tokenizer.ggml.pre` should be a string"),
        ({"token_type": [1, 1]}, "`tokenizer.ggml.token_type` has 2 values for 257 tokens"),
        ({"token_type": ["1"] * 257}, "`tokenizer.ggml.token_type` should be an array of numbers"),
        ({"token_type": [1.5] * 257}, "should be an array of numbers"),
        ({"token_type": 1}, "should be an array of numbers: 1"),
        ({"merges": None}, "lacks both `tokenizer.ggml.merges` and `tokenizer.ggml.scores`"),
        ({"merges": None, "scores": np.zeros(258)}, "`tokenizer.ggml.scores` has 258 values for 257 tokens"),
        ({"merges": ["Ġ t", "Ġ xy"]}, "`tokenizer.ggml.merges` has a pair of unknown pieces at 1: 'Ġ xy'"),
        ({"merges": ["a b"]}, "unknown pieces at 0: 'a b'"),
        ({"merges": ["Ġt"]}, "unknown pieces at 0: 'Ġt'"),
        ({"merges": [1]}, "`tokenizer.ggml.merges` should be an array of strings"),
        ({"bos_token_id": "1"}, "`tokenizer.ggml.bos_token_id` should be a token id: '1'"),
        ({"eos_token_id": 1.5}, "should be a token id: 1.5"),
        ({"eot_token_id": True}, "should be a token id: True"),
        ({"eom_token_id": [2**70]}, "should be a token id"),
        ({"add_bos_token": 1}, "`tokenizer.ggml.add_bos_token` should be a boolean: 1"),
    ],
)
def test_damaged_metadata_is_told_in_one_line(broken: Mapping[str, object], told: str) -> None:
    metadata = byte_level({})
    for key, value in broken.items():
        metadata = without(metadata, key) | ({} if value is None else {f"tokenizer.ggml.{key}": value})
    with pytest.raises(ModelFileError) as caught:
        read(metadata)
    assert told in str(caught.value)
    assert str(caught.value).startswith("m.gguf: ")
    assert "\n" not in str(caught.value)


def test_another_kind_of_tokenizer_is_unsupported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`bert` \(supported: gpt2, llama\)"):
        read(byte_level({}, model="bert"))
