"""A reply is kept as it was shown, with the ids that say it."""

import pytest
from fakes import ChatBytes
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.reasoning import ReasoningSplitter, ReasoningTags
from turbospark_chat.chat.reply import Closing, Reply
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent
from turbospark_chat.engine.detokenizer import Detokenizer
from turbospark_chat.engine.progress import Prefill, Progress, Tail
from turbospark_chat.engine.stop_matcher import StopMatcher
from turbospark_chat.engine.token_sink import TokenSink

TOKENIZER = ChatBytes(("<end>", "<think>", "</think>"), visible=("<think>", "</think>"), pieces=("ha", "nz"))
TAGS = ReasoningTags("<think>", "</think>")
USER = Message("user", "question")
END, THINK, UNTHINK = TOKENIZER.control_ids.values()


class Run:
    """A run that samples given ids into a reply."""

    def __init__(
        self, *, tags: ReasoningTags | None = TAGS, inside: bool = False, begun: Turn | None = None
    ) -> None:
        self.events: list[TurnEvent] = []
        self.reply = Reply(ReasoningSplitter(tags, inside=inside), TOKENIZER, self.events.append, begun)

    def sample(self, ids: list[int], *, stop: str | None = None, complete: bool = True) -> Turn:
        stops = StopMatcher([stop] if stop else None)
        sink = TokenSink(Detokenizer(TOKENIZER, vocab_size=TOKENIZER.n_tokens), stops, self.reply.take)
        for token_id in ids:
            sink.commit(token_id)
        sink.finish()
        return self.reply.finished(USER, complete=complete)

    @property
    def shown(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, ReplyText) and not e.is_reasoning)

    @property
    def thought(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, ReplyText) and e.is_reasoning)


def spell(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=True)


@given(st.lists(st.integers(0, TOKENIZER.n_tokens - 1), max_size=12), st.booleans())
def test_what_is_shown_is_what_is_kept_and_what_its_ids_say(ids: list[int], inside: bool) -> None:  # B16
    run = Run(inside=inside)
    turn = run.sample(ids)
    assert (run.shown, run.thought) == (turn.reply.content, turn.reply.reasoning or "")
    assert turn.generated == TOKENIZER.decode(ids)
    assert turn.generated_ids == tuple(ids)


def test_thinking_and_answer_are_shown_and_kept_apart() -> None:
    run = Run()
    turn = run.sample(spell("<think>why</think>\nso"))
    assert (run.thought, run.shown) == ("why", "so")
    assert turn.reply == Message("assistant", "so", reasoning="why")
    assert turn.generated == "<think>why</think>\nso"


@pytest.mark.parametrize(
    ("text", "thought", "shown"),
    [("<thi", "", "<thi"), ("  ", "", "  "), ("<think>a </th", "a </th", ""), ("<think>a\n", "a\n", "")],
)
def test_what_is_held_back_at_the_end_is_shown_and_kept(text: str, thought: str, shown: str) -> None:  # C9
    run = Run()
    turn = run.sample(spell(text))
    assert (run.thought, run.shown) == (thought, shown)
    assert (turn.reply.reasoning or "", turn.reply.content) == (thought, shown)


def test_each_token_is_counted_when_it_is_reported_also_without_text() -> None:
    run = Run()
    run.reply.take(Prefill(1, 2, 0))
    run.sample([THINK, ord("a"), UNTHINK, 0xC3, 0xA9])
    assert run.events == [
        Prefill(1, 2, 0),
        ReplyText("", True, 1),
        ReplyText("a", True, 2),
        ReplyText("", False, 3),
        ReplyText("", False, 4),
        ReplyText("é", False, 5),
        ReplyText("", False, 5),
    ]


@pytest.mark.parametrize(
    ("text", "complete", "shown", "kept"),
    [
        pytest.param(b"ok \xe9\xbe", False, "ok \ufffd", "ok ", id="H4 cut inside a character"),
        pytest.param(b"ok \xe9\xbe", True, "ok \ufffd", "ok \ufffd", id="8 ended inside a character"),
        pytest.param(
            b"ok\x98\xe9", False, "ok\ufffd\ufffd", "ok\ufffd", id="H4 only the half that may go on"
        ),
        pytest.param(b"ok\xc5\xdf", False, "ok\ufffd\ufffd", "ok", id="a half in front of a half"),
        pytest.param(b"ok\x98", False, "ok\ufffd", "ok\ufffd", id="H4 a byte that is no half"),
        pytest.param("ok\ufffd".encode(), False, "ok\ufffd", "ok\ufffd", id="H4 the character U+FFFD"),
    ],
)
@pytest.mark.parametrize("is_thought", [True, False], ids=["in a thought", "in the answer"])
def test_half_a_character_at_a_cut_is_not_kept(
    text: bytes, complete: bool, shown: str, kept: str, is_thought: bool
) -> None:
    run = Run(inside=is_thought)
    turn = run.sample(list(text), complete=complete)
    assert (run.thought if is_thought else run.shown) == shown
    assert ((turn.reply.reasoning or "") if is_thought else turn.reply.content) == kept
    assert turn.generated == kept == TOKENIZER.decode(turn.generated_ids)
    assert turn.generated_ids == tuple(text)[: len(turn.generated_ids)]


def test_a_stop_string_is_neither_kept_nor_among_the_ids() -> None:  # C7
    ha, nz = TOKENIZER.piece_ids.values()
    turn = Run().sample([ha, nz, ord("i"), ord("!")], stop="zi")
    assert turn.reply.content == turn.generated == "han"
    assert turn.generated_ids == (ha, ord("n"))


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "</th", "ink>", "a", " ", "é"]), max_size=8).map(
        "".join
    ),
    st.data(),
    st.booleans(),
)
def test_a_reply_cut_anywhere_and_continued_is_as_if_never_cut(
    text: str, data: st.DataObject, inside: bool
) -> None:  # C9
    ids = spell(text)
    cut = data.draw(st.integers(0, len(ids)))
    whole = Run(inside=inside).sample(ids)

    first = Run(inside=inside)
    begun = first.sample(ids[:cut], complete=False)
    rest = Run(inside=inside, begun=begun)
    turn = rest.sample(ids[len(begun.generated_ids) :])

    assert turn == whole
    # What is shown the second time follows on what was shown, but for what could not yet be told apart.
    assert whole.reply.content.endswith(rest.shown)
    assert (whole.reply.reasoning or "").endswith(rest.thought)


def test_a_continued_reply_counts_its_own_tokens() -> None:
    begun = Run().sample(spell("abc"), complete=False)
    rest = Run(begun=begun)
    rest.sample(spell("de"))
    assert [event.n_tokens for event in rest.events if isinstance(event, ReplyText)] == [1, 2, 2]


def test_an_invisible_control_token_is_no_text_but_stays_among_the_ids() -> None:  # B12
    turn = Run().sample([ord("a"), END, ord("b")])
    assert (turn.reply.content, turn.generated_ids) == ("ab", (ord("a"), END, ord("b")))


CLOSING = Closing.of(TAGS, TOKENIZER)


def test_a_closing_tag_that_is_a_token_is_that_token_and_another_is_text() -> None:
    newline = ord("\n")
    assert CLOSING == Closing("\n</think>\n\n", (newline, UNTHINK, newline, newline))
    other = Closing.of(ReasoningTags("<a>", "</a>"), TOKENIZER)
    assert (other.text, other.ids) == ("\n</a>\n\n", tuple(b"\n</a>\n\n"))


@pytest.mark.parametrize(
    ("thinking", "answer", "shown", "thought", "kept_ids"),
    [
        pytest.param(b"why", b"so", "so", "why", b"why", id="in the middle"),
        pytest.param(b"why\n", b"so", "so", "why", b"why\n", id="after a line"),
        pytest.param(b"a \xf0\x9f", b"so", "so", "a", b"a ", id="in half a character"),
        pytest.param(b"why </th", b"so", "so", "why </th", b"why </th", id="in half a tag"),
        pytest.param(b"why", b"\n\nso\xf0", "so\ufffd", "why", b"why", id="space before the answer"),
        pytest.param(b"", b"so", "so", "", b"", id="at once"),
    ],
)
def test_a_thought_that_is_ended_is_shown_kept_and_told_apart_as_if_the_model_had_closed_it(
    thinking: bytes, answer: bytes, shown: str, thought: str, kept_ids: bytes
) -> None:
    run = Run()
    tails: list[Tail] = []

    def keep_tail(event: Progress) -> None:
        tails.append(event) if isinstance(event, Tail) else run.reply.take(event)

    def commit(ids: list[int], sink: TokenSink) -> None:
        for token_id in ids:
            sink.commit(token_id)
        sink.finish()

    def sink(take) -> TokenSink:  # type: ignore[no-untyped-def]
        return TokenSink(Detokenizer(TOKENIZER, vocab_size=TOKENIZER.n_tokens), StopMatcher(None), take)

    commit([THINK, *thinking], sink(keep_tail))
    run.reply.end_thought(CLOSING, tails[0])
    assert not run.reply.is_thinking
    assert list(run.reply.token_ids) == [THINK, *kept_ids, *CLOSING.ids]
    commit(list(answer), sink(run.reply.take))
    turn = run.reply.finished(USER, complete=True)
    assert (run.thought, run.shown) == (thought, shown) == (turn.reply.reasoning or "", turn.reply.content)
    assert turn.generated == TOKENIZER.decode(turn.generated_ids)
    counts = [event.n_tokens for event in run.events if isinstance(event, ReplyText)]
    assert counts == sorted(counts) and counts[-1] == 1 + len(kept_ids) + len(CLOSING.ids) + len(answer)


def test_a_thought_that_the_tail_closes_gets_no_second_tag() -> None:
    run = Run(inside=True)
    run.reply.end_thought(CLOSING, Tail("why</think>so", has_partial_character=False))
    assert (run.thought, run.shown) == ("why", "so")
