"""A turn is had whole or not at all, says what a cold engine says, and stores what was shown.

Each turn is also held to what `sessions.Chat` checks: it kept the longest common prefix, its prompt says what the
template renders, what was shown is what is kept, and a cold run of the same ids gives the same reply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from chat_templates import CHATML, FAMILIES, QWEN3
from hypothesis import given
from hypothesis import strategies as st
from sessions import (
    NEVER,
    CancelAfter,
    CancelAtToken,
    Chat,
    hash_chat,
    hash_runner,
    load_template,
    scripted_chat,
)
from vocabularies import CONTROL, UNKNOWN, sentencepiece

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.producer import Logits, ScriptedProducer
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.errors import (
    MemoryOverflowError,
    NoFiniteLogitsError,
    SettingError,
    TemplateError,
    UsageError,
)
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import read_vocabulary


def prompt_text(chat: Chat) -> str:
    """The record, spelled out."""
    return chat.tokenizer.decode(chat.record, show_control=True)


# Cancelling


@pytest.mark.parametrize("n_looks", [0, 1], ids=["at once", "after the prompt"])
def test_cancelled_before_the_first_token_nothing_is_kept_and_the_question_is_not_asked_again(
    n_looks: int,
) -> None:  # H4
    chat = hash_chat(CHATML)
    chat.say("first")
    before = chat.session.conversation.turns
    result = chat.say("old question", CancelAfter(n_looks))
    assert result.turn is None and result.raw.reason is StopReason.CANCELLED
    assert chat.session.conversation.turns == before
    prompt = chat.tokenizer.decode(chat.prompt_ids(chat.say("new question")))
    assert "new question" in prompt and "old question" not in prompt


def test_cancelled_after_some_tokens_they_are_kept_as_an_unfinished_reply() -> None:  # H4, T4
    chat = scripted_chat(CHATML, "Hello there", "ok")
    result = chat.say("hi", CancelAtToken(3))
    assert result.raw.reason is StopReason.CANCELLED
    assert chat.session.conversation.messages()[-1] == Message("assistant", "Hel", complete=False)
    chat.say("and?")
    assert "assistant\nHel<|im_end|>\n<|im_start|>user\nand?" in prompt_text(chat)


@pytest.mark.parametrize("said", [b"", b" \n", b"\xf0\x9f"], ids=["nothing", "space", "half a character"])
def test_cancelled_before_it_said_anything_visible_no_empty_reply_is_kept(said: bytes) -> None:  # H4, traps
    chat = scripted_chat(CHATML, [*said, *b"later"], "ok")
    cancel = CancelAtToken(len(said)) if said else CancelAfter(1)
    assert chat.say("hi", cancel).turn is None
    assert chat.session.conversation.messages() == []
    chat.say("again")
    assert "hi" not in chat.tokenizer.decode(chat.record)


def test_half_a_character_at_the_cut_is_not_stored_and_the_reply_goes_on_whole() -> None:  # H4
    chat = scripted_chat(CHATML, "aé".encode(), "é!".encode())
    chat.say("hi", CancelAtToken(2))
    assert chat.shown == "a\ufffd" and chat.turns == [("hi", "a")]
    chat.go_on()
    assert chat.turns == [("hi", "aé!")]
    assert "\ufffd" not in prompt_text(chat)


def test_retry_replaces_the_reply_only_once_there_is_another() -> None:  # H4
    chat = scripted_chat(CHATML, "one", "two", "three", "four")
    chat.say("a")
    chat.say("b", CancelAtToken(2))
    before = chat.session.conversation.turns
    assert chat.retry(CancelAfter(0)).turn is None
    assert chat.session.conversation.turns == before
    chat.retry()
    assert chat.turns == [("a", "one"), ("b", "three")]
    assert chat.session.conversation.turns[-1].reply.complete


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n_looks", range(7))
def test_after_any_cancel_the_next_turn_can_be_rendered(name: str, n_looks: int) -> None:  # T8, E4
    chat = hash_chat(FAMILIES[name], system="S.")
    for text in ("one", "two"):
        chat.say(text, CancelAfter(n_looks))
    assert chat.say("three").turn is not None
    roles = [message.role for message in chat.session.conversation.messages()][1:]
    assert roles == ["user", "assistant"] * (len(roles) // 2)


# Faults


class FaultAt:
    """Raises at the n-th boundary of a forward pass."""

    def __init__(self, n_boundaries: int) -> None:
        self._left = n_boundaries

    def __call__(self, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError(name)


@pytest.mark.parametrize("take", ["say", "retry", "go_on"])
@pytest.mark.parametrize("n_boundaries", range(24))
def test_a_fault_at_any_point_of_a_forward_pass_loses_nothing(take: str, n_boundaries: int) -> None:  # 3, T56
    chat = hash_chat(CHATML)
    completion = replace(chat.session.options.completion, chunk_size=16)
    chat.session.options = replace(chat.session.options, completion=completion)
    chat.say("one")
    chat.say("two")
    before, options = chat.session.conversation.turns, chat.session.options
    model = chat.producer._model  # type: ignore[attr-defined]
    model.on_boundary = FaultAt(n_boundaries)
    with pytest.raises(RuntimeError):
        chat.say("three") if take == "say" else getattr(chat, take)()
    assert (chat.session.conversation.turns, chat.session.options) == (before, options)
    assert len(chat.record) == len(chat.producer.state)  # type: ignore[attr-defined]
    model.on_boundary = lambda name: None
    chat.say("four")
    assert [user for user, _ in chat.turns] == ["one", "two", "four"]


class NothingFinite(ScriptedProducer):
    """Gives no finite logit where its script says 0."""

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Logits | None:
        logits = super().produce_chunk(tokens, position, need_logits=need_logits)
        return None if logits is None else np.full_like(logits, -np.inf) if logits[0] == 0 else logits


def test_a_model_that_gives_nothing_finite_fails_the_turn_and_no_more() -> None:
    chat = scripted_chat(CHATML, "fine", [*b"abc", 0], "also fine", kind=NothingFinite)
    chat.say("one")
    with pytest.raises(NoFiniteLogitsError):
        chat.say("two")
    assert chat.turns == [("one", "fine")]
    assert chat.events[-1] == ReplyText("", False, 3)  # the tail, so that the screen is complete
    chat.say("three")
    assert chat.turns == [("one", "fine"), ("three", "also fine")]


def test_a_template_that_refuses_a_message_fails_the_turn_and_no_more() -> None:  # E4, T73
    source = (
        "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no ' + m.content) }}{% endif %}"
        "{% endfor %}" + CHATML.source
    )
    chat = hash_chat(replace(CHATML, source=source))
    chat.say("one")
    before, record = chat.session.conversation.turns, chat.record
    with pytest.raises(TemplateError, match="no bad words"):
        chat.say("bad words")
    assert (chat.session.conversation.turns, chat.record, chat.events) == (before, record, [])
    assert chat.say("good words").turn is not None


def test_a_listener_that_fails_loses_nothing() -> None:
    chat = hash_chat(CHATML)
    chat.say("one")
    for n_events in range(10):
        before, left = chat.session.conversation.turns, iter(range(n_events))

        def listen(event: TurnEvent, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            chat.session.send("two", cancel=NEVER, on_event=listen)
        assert chat.session.conversation.turns == before
    chat.say("three")
    assert [user for user, _ in chat.turns] == ["one", "three"]


def test_memory_refused_before_the_prompt_is_computed_leaves_everything_as_it_was() -> None:  # G6
    asked, is_full = [], False

    def check_memory(n_positions: int) -> None:
        asked.append(n_positions)
        if is_full:
            raise MemoryOverflowError("a KV cache", 2 * 10**9, 10**9, advice="shorten it")

    chat = hash_chat(CHATML, check_memory=check_memory, context_length=200, max_tokens="8")
    raw = chat.say("one").raw
    assert asked == [raw.prompt_tokens + 8]
    before, record, is_full = chat.session.conversation.turns, chat.record, True
    with pytest.raises(MemoryOverflowError):
        chat.say("two")
    assert (chat.session.conversation.turns, chat.record) == (before, record)
    is_full = False
    chat.say("two")
    chat.session.set_option("max_tokens", "none")
    raw = chat.say("three").raw
    assert asked[-1] == raw.prompt_tokens  # it may grow as far as it comes


# What is said, shown and stored


@given(st.lists(st.sampled_from([*b"abc \n", 0xC3, 0xA9, 0xF0, 257, 259]), min_size=1, max_size=12))
def test_chat_completion_events_and_store_say_the_same(ids: list[int]) -> None:  # B16, B12
    chat = scripted_chat(CHATML, ids, ids)
    answered = chat.say("hi")
    completed = chat.session.complete("raw", cancel=NEVER, on_event=chat.events.append)
    assert answered.turn is not None and completed.turn is not None
    said = chat.tokenizer.decode(answered.raw.token_ids)
    assert chat.turns[0][1] == answered.turn.reply.content == completed.turn.reply.content == said
    assert chat.shown == said + said
    assert answered.raw.token_ids == completed.raw.token_ids


def test_a_raw_completion_uses_no_template_and_no_conversation() -> None:
    chat = scripted_chat(CHATML, "one", " time")
    chat.say("hi")
    result = chat.session.complete("<|im_start|>Once upon a", cancel=NEVER, on_event=lambda event: None)
    assert prompt_text(chat) == "<|im_start|>Once upon a time"
    assert chat.record[0] == 257  # the control token, not its letters
    assert result.turn is not None and result.turn.reply.content == " time"
    assert chat.turns == [("hi", "one")]


def test_events_are_the_prompt_then_each_token_then_the_tail() -> None:
    chat = scripted_chat(CHATML, "ok")
    result = chat.say("hi")
    n_prompt = result.raw.prompt_tokens
    assert chat.events == [
        Prefill(n_prompt, n_prompt, 0),
        ReplyText("o", False, 1),
        ReplyText("k", False, 2),
        ReplyText("", False, 2),
    ]


def test_an_empty_reply_that_ended_by_itself_is_a_reply() -> None:  # H14
    chat = scripted_chat(CHATML, "", "ok")
    result = chat.say("hi")
    assert result.turn is not None and result.raw.new_tokens == 0
    chat.say("and?")
    assert chat.turns == [("hi", ""), ("and?", "ok")]


def test_thinking_is_shown_and_stored_apart_from_the_answer() -> None:  # T25
    chat = scripted_chat(CHATML_WITH_TAGS, "<think>why\n</think>\n\nso", "ok")
    chat.say("hi")
    assert (chat.thought, chat.shown) == ("why", "so")
    assert chat.session.conversation.messages()[-1] == Message("assistant", "so", reasoning="why")
    chat.say("and?")
    assert "why" not in prompt_text(chat)


CHATML_WITH_TAGS = replace(
    CHATML,
    source="{# </think> #}" + CHATML.source,
    control_spellings=(*CHATML.control_spellings, "<think>", "</think>"),
)


def test_a_thought_that_the_prompt_opens_needs_no_tag_of_its_own() -> None:  # T74
    chat = scripted_chat(QWEN3, "why</think>so", "why not</think>so what")
    for _ in range(2):
        chat.say("hi")
        assert chat.thought.startswith("why") and chat.shown.startswith("so")


def test_a_message_that_ends_with_the_opening_tag_opens_no_thought() -> None:  # T74
    # The template writes only a control token, which is no text, between the message and the reply.
    source = "{# </think> #}{% for m in messages %}{{ m.content }}{{ '<|im_end|>' }}{% endfor %}{{ '<|im_start|>' }}"
    chat = scripted_chat(replace(CHATML_WITH_TAGS, source=source), "so")
    chat.say("what is <think>")
    assert (chat.thought, chat.shown) == ("", "so")


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_reply_cut_inside_a_thought_goes_on_inside_it(cut: int) -> None:  # C9, T69
    reply = "why</think>so"
    tokenizer = scripted_chat(QWEN3).tokenizer
    ids = tokenizer.encode(reply, parse_special=True)
    chat = scripted_chat(QWEN3, ids[:cut], ids[cut:], max_tokens=str(cut))
    if cut < len(ids):
        chat.say("hi")
        chat.session.set_option("max_tokens", "none")
        chat.go_on()
        reply_message = chat.session.conversation.turns[0].reply
        assert reply_message == Message("assistant", "so", reasoning="why")
        # The ids go on as they were generated: the tag is still a control token.
        assert list(chat.record[-len(ids) :]) == ids


def test_a_stop_string_ends_the_reply_before_it_and_the_next_prompt_too() -> None:  # C7
    chat = hash_chat(CHATML, max_tokens="40")
    whole = chat.say("one")
    assert whole.turn is not None
    stop = whole.turn.reply.content[5:7]
    at = whole.turn.reply.content.index(stop)
    chat.session.undo()
    chat.session.set_option("stop", f'"{stop}"' if "\n" not in stop else stop.replace("\n", "\\n"))
    stopped = chat.say("one")
    assert stopped.raw.reason is StopReason.STOP_STRING
    assert chat.turns[0][1] == whole.turn.reply.content[:at]
    assert chat.session.conversation.turns[0].reply.complete
    assert chat.say("two").raw.reused_prefix_tokens == stopped.raw.prompt_tokens + at


def test_a_model_without_a_template_ends_its_reply_where_it_writes_chatmls_end_as_text() -> None:
    said = ("yes<|im_end|>\n<|im_start|>user\nand now I ask", "no")
    chat = scripted_chat(replace(FAMILIES["gemma"], source=None), *said)
    assert chat.say("well?").raw.reason is StopReason.STOP_STRING
    chat.say("really?")
    assert chat.turns == [("well?", "yes"), ("really?", "no")]


def test_only_a_reply_that_was_cut_short_can_be_continued() -> None:
    chat = scripted_chat(CHATML, "ok")
    for take in (chat.retry, chat.go_on):
        with pytest.raises(UsageError, match="no reply yet"):
            take()
    chat.say("hi")
    with pytest.raises(UsageError, match="ended by itself"):
        chat.go_on()
    assert chat.turns == [("hi", "ok")]


def test_a_continued_reply_is_the_one_that_was_not_cut() -> None:  # T69
    whole = hash_chat(CHATML, max_tokens="24")
    whole.say("hi")
    chat = hash_chat(CHATML, max_tokens="8")
    chat.say("hi")
    assert chat.go_on(CancelAfter(0)).turn is None  # before it went on: nothing changes
    chat.go_on()
    result = chat.go_on()
    assert chat.turns == whole.turns
    assert result.turn is not None and not result.turn.reply.complete
    assert result.raw.reused_prefix_tokens == result.raw.prompt_tokens - 1


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_reply_that_goes_on_is_penalised_for_all_of_it(penalty: str) -> None:
    whole = hash_chat(CHATML, max_tokens="24", **{penalty: "2"})
    chat = hash_chat(CHATML, max_tokens="8", **{penalty: "2"})
    whole.cold = chat.cold = None  # a cold run knows no penalties
    whole.say("hi")
    chat.say("hi")
    chat.go_on()
    chat.go_on()
    assert chat.turns == whole.turns


def test_a_continued_reply_keeps_the_space_it_goes_on_with() -> None:
    # SentencePiece's decoder drops a text's first space; a continuation is not a text's beginning.
    vocabulary = read_vocabulary(
        sentencepiece(
            {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}, ["▁a", "▁b", "▁x", "▁", "x"], eos_token_id=2
        ),
        source="test",
    )
    tokenizer = Tokenizer(vocabulary)
    a, b = vocabulary.normal_ids["▁a"], vocabulary.normal_ids["▁b"]
    producer = ScriptedProducer([[a, b], [b]], vocab_size=tokenizer.n_tokens, end_id=2)
    template = load_template("{% for m in messages %}{{ m.content }}</s>{% endfor %}", ("<s>", "</s>"))
    chat = Chat(producer, tokenizer, template, max_tokens="1", stop_ids={2: StopReason.EOS})
    chat.say("x")
    assert chat.turns == [("x", "a")]
    chat.go_on()
    assert chat.turns == [("x", "a b")]


# Options, and the same replies


def test_an_option_holds_from_the_next_turn_and_a_wrong_one_changes_nothing() -> None:
    chat = hash_chat(CHATML)
    chat.session.set_option("max-tokens", "3")
    assert chat.say("hi").raw.new_tokens == 3
    before = chat.session.options
    for name, text in (("max_tokens", "-1"), ("nonsense", "1"), ("logit_bias", "'':1")):
        with pytest.raises(SettingError):
            chat.session.set_option(name, text)
    assert chat.session.options == before


def test_a_bias_by_text_is_spelled_out_without_a_space_of_its_own() -> None:  # D13
    vocabulary = read_vocabulary(
        sentencepiece({"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}, ["▁a", "a", "▁"]), source="test"
    )
    tokenizer = Tokenizer(vocabulary)
    producer = ScriptedProducer([], vocab_size=tokenizer.n_tokens, end_id=2)
    chat = Chat(producer, tokenizer, load_template("{{ messages[0].content }}", ("<s>", "</s>")))
    chat.session.set_option("logit_bias", "'a':-5,' a':5,7:1")
    ids = vocabulary.normal_ids
    assert chat.session.options.completion.sampling.logit_bias == {ids["a"]: -5, ids["▁a"]: 5, 7: 1}


def test_a_bias_beyond_the_vocabulary_is_refused_before_anything_is_computed() -> None:  # D13
    chat = hash_chat(CHATML)
    chat.say("one")
    chat.session.set_option("logit_bias", "100000:1")
    record = chat.record
    with pytest.raises(SettingError, match="logit_bias names token id 100000"):
        chat.say("two")
    assert (len(chat.turns), chat.record) == (1, record)


def test_cold_and_warm_give_the_same_reply() -> None:  # T55, A15; Chat compares each with a cold run
    chat = hash_chat(CHATML, max_tokens="30")
    for text in ("one", "two", "three"):
        chat.say(text)
    warm = chat.turns
    cold = hash_chat(CHATML, max_tokens="30", reuse="off")
    for text in ("one", "two", "three"):
        assert cold.say(text).raw.reused_prefix_tokens == 0
    assert cold.turns == warm


def test_without_reuse_a_seeded_turn_repeats_exactly() -> None:  # T61, D11
    replies = []
    for temperature in ("0", "1.5"):
        chat = hash_chat(CHATML, temperature="0", reuse="off", seed="42", max_tokens="20")
        chat.cold = None  # sampled, not greedy
        chat.session.set_option("temperature", temperature)
        first = chat.say("one").raw
        again = chat.retry().raw
        assert first.token_ids == again.token_ids
        assert (first.reused_prefix_tokens, again.reused_prefix_tokens) == (0, 0)
        replies.append(first.token_ids)
    assert replies[0] != replies[1]


def test_two_conversations_on_one_model_do_not_touch_each_other() -> None:  # A15
    producer = hash_runner()
    ours = hash_chat(CHATML, system="A", max_tokens="20", producer=producer)
    theirs = hash_chat(FAMILIES["zephyr"], producer=producer)
    for text in ("one", "two"):
        ours.say(text)
        theirs.say(text)
    ours.session.set_option("temperature", "0.0")
    ours.session.conversation.system = "B"
    ours.say("three")
    assert (len(ours.turns), len(theirs.turns)) == (3, 2)


def test_the_system_prompt_is_sent_once_and_not_fed_again() -> None:  # traps
    chat = hash_chat(CHATML, system="Be brief and kind.")
    first, second = chat.say("one").raw, chat.say("two").raw
    assert prompt_text(chat).count("Be brief and kind.") == 1
    assert second.reused_prefix_tokens == first.prompt_tokens + first.new_tokens - 1
