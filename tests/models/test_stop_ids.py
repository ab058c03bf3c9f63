"""Which ids end a reply, from metadata, from elsewhere and from names."""

from collections.abc import Iterable
from typing import Any

import pytest
from vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_level, sentencepiece

from turbospark_chat.errors import ModelWarning
from turbospark_chat.models.stop_ids import StopIds, gather_stop_ids
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary


def with_specials(*names: str, **keys: Any) -> Vocabulary:
    return read_vocabulary(byte_level(dict.fromkeys(names, CONTROL), **keys), source="m.gguf")


def stop_ids(*, turn: Iterable[int] = (), sequence: Iterable[int] = (), tools: Iterable[int] = ()) -> StopIds:
    return StopIds(frozenset(turn), frozenset(sequence), frozenset(tools))


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        pytest.param(
            with_specials("<|endoftext|>", "<|im_start|>", "<|im_end|>", eos_token_id=0),
            stop_ids(turn={2}, sequence={0}),
            id="13-qwen-eos-is-endoftext",
        ),
        pytest.param(
            with_specials("<|endoftext|>", "<|im_start|>", "<|im_end|>", eos_token_id=2),
            stop_ids(turn={2}, sequence={0}),
            id="13-qwen-eos-is-im_end",
        ),
        pytest.param(
            with_specials("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", eos_token_id=0),
            stop_ids(turn={2}, sequence={0}, tools={1}),
            id="13-C15-llama-3-with-base-eos",
        ),
        pytest.param(
            with_specials("<A>", "<B>", "<C>", eos_token_id=0, eot_token_id=1, eom_token_id=2),
            stop_ids(turn={1}, sequence={0}, tools={2}),
            id="13-unknown-names-mean-what-the-key-says",
        ),
        pytest.param(
            with_specials("<A>", "<B>", eos_token_id=[0, 1]), stop_ids(sequence={0, 1}), id="13-list-of-eos"
        ),
        pytest.param(
            with_specials("<|return|>", "<|call|>", "<|end|>", eos_token_id=0),
            stop_ids(turn={0}, tools={1}),
            id="end-of-message-is-no-end-of-turn",
        ),
        pytest.param(
            with_specials("<|endoftext|>", "<|end|>", eos_token_id=0),
            stop_ids(turn={1}, sequence={0}),
            id="phi-3",
        ),
    ],
)
def test_stop_ids_come_from_keys_and_names(vocabulary: Vocabulary, expected: StopIds) -> None:
    assert gather_stop_ids(vocabulary) == expected
    assert expected.all == expected.end_of_turn | expected.end_of_sequence | expected.tool_calls


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(1, {1, 107}), ([1, 106], {1, 106, 107}), ((1, 1, 106), {1, 106, 107}), (None, {107}), ([], {107})],
)
def test_declared_ids_join_the_metadata_and_never_replace_it(
    declared: int | list[int] | None, expected: set[int]
) -> None:
    vocabulary = with_specials(*(f"<A{n}>" for n in range(108)), eos_token_id=107)  # case 13
    assert gather_stop_ids(vocabulary, declared=declared).all == expected


def test_markup_in_the_vocabulary_is_no_stop() -> None:
    # Gemma's pieces for HTML: </s> ends what is struck through.
    special = {"<eos>": CONTROL, "<end_of_turn>": CONTROL, "</s>": USER_DEFINED}
    vocabulary = read_vocabulary(sentencepiece(special, ["a"], eos_token_id=0), source="m.gguf")
    assert gather_stop_ids(vocabulary) == stop_ids(turn={1}, sequence={0})


def test_unflagged_end_of_turn_is_a_stop() -> None:  # 16
    vocabulary = read_vocabulary(
        byte_level({"<|endoftext|>": CONTROL, "<|im_end|>": NORMAL}, eos_token_id=0), source="m.gguf"
    )
    assert gather_stop_ids(vocabulary).end_of_turn == {1}


@pytest.mark.parametrize(
    ("names", "told", "expected"),
    [
        (["<|im_end|>", "<|endoftext|>"], "stopping at <|im_end|>, <|endoftext|>", {0, 1}),
        (["<A>"], "token limit only", set()),
    ],
)
def test_missing_end_of_sequence_falls_back_to_names_with_a_notice(  # C12
    names: list[str], told: str, expected: set[int]
) -> None:
    vocabulary = with_specials(*names)
    with pytest.warns(ModelWarning, match=told.replace("|", r"\|")):
        assert gather_stop_ids(vocabulary).all == expected


def test_ids_beyond_the_vocabulary_are_ignored_with_a_notice() -> None:  # C13
    with pytest.warns(ModelWarning, match=r"`tokenizer.ggml.eot_token_id` is 40000, but .* has 258 tokens"):
        vocabulary = with_specials("<eos>", eos_token_id=0, eot_token_id=40000)
    with pytest.warns(ModelWarning, match="a declared stop id is 258"):
        assert gather_stop_ids(vocabulary, declared=[258, -1]).all == {0}
