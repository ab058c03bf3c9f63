"""Ids in, text events out: what is shown with which token, and what comes as the tail."""

import pytest
from fakes import PieceTable
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.detokenizer import Detokenizer
from turbospark_chat.engine.progress import Tail, Token
from turbospark_chat.engine.stop_matcher import StopMatcher
from turbospark_chat.engine.token_sink import TokenSink
from turbospark_chat.errors import TokenIdError


def run(pieces, *, stops=(), strips_leading_space=False):
    """Commit one token for each piece; return the sink and the texts of its events, the tail apart."""
    table = PieceTable(dict(enumerate(pieces)), strips_leading_space=strips_leading_space)
    events = []
    sink = TokenSink(Detokenizer(table, vocab_size=len(pieces)), StopMatcher(stops), events.append)
    for token_id in range(len(pieces)):
        sink.commit(token_id)
    sink.finish()
    *tokens, tail = events
    assert [type(event) for event in events] == [*[Token] * len(pieces), Tail]
    assert [event.token_id for event in tokens] == list(range(len(pieces))) == list(sink.token_ids)
    return sink, [event.text for event in tokens], tail


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "tail", "matched"),
    [
        pytest.param([b"a", b"b"], [], ["a", "b"], Tail("", False), None, id="plain"),
        pytest.param([], [], [], Tail("", False), None, id="H14-nothing"),
        pytest.param([b"a", b"", b"b"], ["z"], ["a", "", "b"], Tail("", False), None, id="C5-empty-piece"),
        pytest.param(
            [b"\xf0\x9f", b"\x98\x80"],
            [],
            ["", "😀"],
            Tail("", False),
            None,
            id="8-character-over-two-tokens",
        ),
        pytest.param(
            [b"ok ", b"\xe9\xbe"], [], ["ok ", ""], Tail("\ufffd", True), None, id="8-unfinished-character"
        ),
        pytest.param(
            [b"a", b"\xff"], [], ["a", "\ufffd"], Tail("", False), None, id="B14-bad-byte-is-no-part"
        ),
        pytest.param(
            [b"ab", b"XY", b"Z"], ["XYZ\n##"], ["ab", "", ""], Tail("XYZ", False), None, id="11-held-prefix"
        ),
        pytest.param(
            [b"kl", b"mn", b"opq"],
            ["lmnop"],
            ["k", "", ""],
            Tail("", False),
            "lmnop",
            id="12-over-three-tokens",
        ),
        pytest.param(
            [b"END", b"later"], ["END"], ["", ""], Tail("", False), "END", id="C7-nothing-after-the-stop"
        ),
        pytest.param(
            [b"EN", b"\xe9\xbe"], ["END"], ["", ""], Tail("EN\ufffd", True), None, id="both-hold-something"
        ),
        pytest.param(
            [b"END\xe9"],
            ["END"],
            [""],
            Tail("", False),
            "END",
            id="half-a-character-after-the-stop-is-dropped",
        ),
        pytest.param(
            [b"aE\xe9"], ["E\ufffd"], ["a"], Tail("", False), "E\ufffd", id="what-is-held-completes-a-stop"
        ),
        pytest.param(
            [b"a\xe9"], ["\ufffd"], ["a"], Tail("", False), "\ufffd", id="the-replacement-completes-a-stop"
        ),
    ],
)
def test_what_is_shown_when(pieces, stops, shown, tail, matched):
    sink, texts, end = run(pieces, stops=stops)
    assert (texts, end, sink.stop_string) == (shown, tail, matched)


def test_the_leading_space_goes_once():  # case 9
    _, texts, _ = run([b" ", b" x"], strips_leading_space=True)
    assert texts == ["", " x"]


def test_an_id_outside_the_vocabulary_is_named_and_not_committed():  # B4
    events = []
    sink = TokenSink(Detokenizer(PieceTable.of_bytes(), vocab_size=256), StopMatcher(None), events.append)
    with pytest.raises(TokenIdError, match="256"):
        sink.commit(256)
    assert (sink.token_ids, events) == ((), [])


@given(st.lists(st.binary(max_size=3), max_size=12))
def test_tokens_and_tail_together_are_the_decoded_bytes(pieces):
    _, texts, tail = run(pieces, stops=["no such text"])
    assert "".join(texts) + tail.text == b"".join(pieces).decode("utf-8", "replace")
