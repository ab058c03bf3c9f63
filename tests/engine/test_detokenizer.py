"""Streaming detokenizing: always equal to decoding everything at once, and as early as can be."""

from itertools import pairwise

import numpy as np
import pytest
from fakes import PieceTable
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.detokenizer import Detokenizer
from turbospark_chat.errors import TokenIdError


def stream(pieces, *, strips_leading_space=False):
    """Return the text shown after each piece, and then by finish."""
    table = PieceTable(dict(enumerate(pieces)), strips_leading_space=strips_leading_space)
    detokenizer = Detokenizer(table, vocab_size=len(pieces))
    return [detokenizer.push(token_id) for token_id in range(len(pieces))], detokenizer.finish()


@pytest.mark.parametrize(
    ("pieces", "shown", "tail"),
    [
        pytest.param([b"\xf0\x9f", b"\x98\x80"], ["", "😀"], "", id="8.1-two-halves"),
        pytest.param([b"\xeb", b"\xb7", b"\x81"], ["", "", "뷁"], "", id="8.2-three-bytes"),
        pytest.param([b"\xf0\x9f", b"\x20\x61"], ["", "\ufffd a"], "", id="8.3-broken-off"),
        pytest.param([b"ok ", b"\xe9\xbe"], ["ok ", ""], "\ufffd", id="8.4-cut-at-the-end"),
        pytest.param([b"\x98", b"a"], ["\ufffd", "a"], "", id="8.5-lone-byte"),
        pytest.param(
            ["\ufffd".encode(), b"after"], ["\ufffd", "after"], "", id="10-literal-replacement-character"
        ),
        pytest.param([b"    ", b"."], ["    ", "."], "", id="B7-no-cleanup"),
        pytest.param([b"a", b" ,", b"b"], ["a", " ,", "b"], "", id="B7-no-cleanup-comma"),
        pytest.param([b"do", b" n", b"'t"], ["do", " n", "'t"], "", id="B7-no-cleanup-apostrophe"),
        pytest.param([b"", b"hello", b"", b""], ["", "hello", "", ""], "", id="B12-control-tokens"),
        pytest.param(
            [b"\xf0\x9f", b"", b"\x98\x80"], ["", "", "😀"], "", id="B12-control-token-inside-a-character"
        ),
        pytest.param([b"a", b"\xff", b"b"], ["a", "\ufffd", "b"], "", id="B14-invalid-byte-is-shown"),
        pytest.param(
            [*(c.encode() for c in "👨\u200d👩\u200d👧"), b" x"],
            [*"👨\u200d👩\u200d👧", " x"],
            "",
            id="B15-family",
        ),
        pytest.param(
            ["\u27a1".encode(), "\ufe0f".encode()], ["\u27a1", "\ufe0f"], "", id="B15-variation-selector"
        ),
    ],
)
def test_pieces_become_text(pieces, shown, tail):
    assert stream(pieces) == (shown, tail)


@pytest.mark.parametrize(
    ("pieces", "strips", "total"),
    [
        pytest.param([b" Hello", b" world"], True, "Hello world", id="strip"),
        pytest.param([b" ", b" x"], True, " x", id="strip-once"),
        pytest.param([b"", b" ", b"", b" x"], True, " x", id="strip-once-after-control-token"),
        pytest.param([b"x", b" y"], True, "x y", id="strip-only-at-the-start"),
        pytest.param([b"  y"], True, " y", id="strip-only-one"),
        pytest.param([b"\n", b" y"], True, "\n y", id="strip-only-a-space"),
        pytest.param([b" Hi"], False, " Hi", id="no-strip"),
    ],
)
def test_leading_space_is_dropped_once_and_only_where_the_encoder_adds_it(pieces, strips, total):  # case 9
    shown, tail = stream(pieces, strips_leading_space=strips)
    assert "".join(shown) + tail == total


broken = [b"\x80", b"\xff", b"\xc0", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x80", b"\xf4\x90"]
fragments = [character.encode() for character in "a é뷁😀"] + broken


def test_ten_thousand_random_splits_equal_decoding_at_once():  # case 8
    rng = np.random.default_rng(8)
    for _ in range(10_000):
        whole = b"".join(fragments[index] for index in rng.integers(len(fragments), size=6))
        cuts = [0, *np.sort(rng.integers(len(whole) + 1, size=4)).tolist(), len(whole)]
        shown, tail = stream([whole[start:end] for start, end in pairwise(cuts)])
        assert "".join(shown) + tail == whole.decode("utf-8", "replace")


@given(pieces=st.lists(st.one_of(st.binary(max_size=3), st.sampled_from(fragments))), strips=st.booleans())
def test_streamed_text_equals_all_bytes_decoded_at_once(pieces, strips):  # cases B16, T43
    shown, tail = stream(pieces, strips_leading_space=strips)
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert "".join(shown) + tail == (whole.removeprefix(" ") if strips else whole)


@given(text=st.text(max_size=40))
def test_encoded_text_comes_back_byte_by_byte_without_a_replacement_in_between(text):  # case T42
    table = PieceTable.of_bytes()
    detokenizer = Detokenizer(table, vocab_size=256)
    shown = [detokenizer.push(token_id) for token_id in table.encode(text)]
    assert "".join(shown) == text and detokenizer.finish() == ""


def test_endless_lone_bytes_are_shown_at_once_and_cost_one_look_up_each():  # case 10
    asked = []

    class CountingTable(PieceTable):
        def token_bytes(self, token_id):
            asked.append(token_id)
            return super().token_bytes(token_id)

    detokenizer = Detokenizer(CountingTable({0: b"\x80"}), vocab_size=1)
    assert [detokenizer.push(0) for _ in range(2_000)] == ["\ufffd"] * 2_000
    assert len(asked) == 2_000


def test_every_letter_is_shown_as_it_comes():  # case B8
    letters = [bytes([code]) for code in range(ord("A"), ord("A") + 50)]
    shown, tail = stream(letters)
    assert [len(text) for text in shown] == [1] * 50 and tail == ""


def test_id_the_pieces_do_not_know_is_no_text_and_the_stream_goes_on():  # case B4
    detokenizer = Detokenizer(PieceTable({0: b"a"}), vocab_size=151_936)
    assert [detokenizer.push(token_id) for token_id in (0, 151_900, 151_935, 0)] == ["a", "", "", "a"]


@pytest.mark.parametrize("token_id", [-1, 151_936])
def test_id_outside_the_vocabulary_is_an_error_that_names_it(token_id):  # case B4
    detokenizer = Detokenizer(PieceTable({0: b"\xe9", -1: b"x"}), vocab_size=151_936)
    detokenizer.push(0)
    with pytest.raises(TokenIdError, match=f"{token_id} .* 151936"):
        detokenizer.push(token_id)
    assert detokenizer.finish() == "\ufffd"


def test_partial_character_is_reported_while_its_bytes_are_held():  # case H4
    detokenizer = Detokenizer(PieceTable.of_bytes(), vocab_size=256)
    seen = [detokenizer.has_partial_character]
    for token_id in "é".encode() + b"\xe9":
        detokenizer.push(token_id)
        seen.append(detokenizer.has_partial_character)
    assert [*seen, detokenizer.finish(), detokenizer.has_partial_character] == [
        False,
        True,
        False,
        True,
        "\ufffd",
        False,
    ]
    assert detokenizer.finish() == ""
