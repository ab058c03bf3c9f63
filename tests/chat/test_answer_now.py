"""Thinking is ended on request or at its budget, and the answer follows in the same turn, all of it reused.

Where a model is scripted, its second script is what it says once its thinking was ended.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from chat_templates import CHATML, QWEN3, Family
from sessions import NEVER, CancelAfter, Chat, greedy, hash_chat, hash_runner, scripted_chat

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnResult
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.engine.raw_completion import CancelFlag

TAG = "\n</think>\n\n"
# Opens its thoughts itself, where QWEN3's prompt does.
OPENS = replace(
    CHATML,
    source="{# </think> #}" + CHATML.source,
    control_spellings=(*CHATML.control_spellings, "<think>", "</think>"),
)
both_openings = pytest.mark.parametrize(
    ("family", "opening"),
    [
        pytest.param(QWEN3, "", id="T74 the prompt opens it"),
        pytest.param(OPENS, "<think>", id="the model does"),
    ],
)


def closing_ids(chat: Chat) -> tuple[int, ...]:
    return tuple(chat.tokenizer.encode(TAG, parse_special=True))


def take(
    chat: Chat,
    *,
    ask_at: int | None = None,
    cancel_at: int | None = None,
    cancel: CancelFlag | None = None,
    generate: Callable[..., TurnResult] | None = None,
) -> TurnResult:
    """Take a turn in which an answer is asked for, or the turn cancelled, at the n-th token."""
    raised = threading.Event()
    chat.events, cancel = [], cancel or raised

    def on_event(event: TurnEvent) -> None:
        chat.events.append(event)
        if isinstance(event, ReplyText):
            if event.n_tokens == ask_at:
                chat.session.answer_now()
            if event.n_tokens == cancel_at:
                raised.set()

    if generate is None:
        return chat.session.send("hi", cancel=cancel, on_event=on_event)
    return generate(cancel=cancel, on_event=on_event)


@both_openings
@pytest.mark.parametrize("ask_at", [2, 5])
def test_asked_for_an_answer_the_model_ends_its_thought_and_answers(
    family: Family, opening: str, ask_at: int
) -> None:
    chat = scripted_chat(family, opening + "because of it", "so.")
    raw = take(chat, ask_at=ask_at).raw
    thought = "because of it"[: ask_at - len(opening[:1])]
    assert chat.session.conversation.messages()[-1] == Message("assistant", "so.", reasoning=thought)
    assert (chat.thought, chat.shown) == (thought, "so.")
    turn = chat.session.conversation.turns[-1]
    assert turn.generated == opening + thought + TAG + "so."
    assert (
        turn.generated_ids
        == raw.token_ids
        == tuple(chat.tokenizer.encode(turn.generated, parse_special=True))
    )
    # One turn: what the first run read and kept, what both said, and where the second ended.
    n_prompt = raw.prompt_tokens
    assert (raw.new_tokens, raw.reason) == (ask_at + len(closing_ids(chat)) + 3, StopReason.END_OF_TURN)
    assert raw.kv_backed_token_ids == chat.record
    assert chat.record[n_prompt:] == raw.token_ids and raw.prefilled_tokens == n_prompt
    counts = [event.n_tokens for event in chat.events if isinstance(event, ReplyText)]
    assert counts == sorted(counts) and counts[-1] == raw.new_tokens
    assert [event for event in chat.events if isinstance(event, Prefill)] == [Prefill(n_prompt, n_prompt, 0)]


def test_nothing_is_computed_twice_to_answer_now() -> None:
    chat = scripted_chat(QWEN3, "why not ask?", "so.")
    raw = take(chat, ask_at=3).raw
    assert chat.producer.fed == list(chat.record)  # type: ignore[attr-defined]
    assert len(chat.record) == raw.prompt_tokens + raw.new_tokens


def test_what_follows_an_ended_thought_is_what_a_cold_engine_says() -> None:
    chat = hash_chat(QWEN3, max_tokens="20")
    raw = take(chat, ask_at=6).raw
    prompt, ids, closing = chat.prompt_ids(TurnResult(None, raw, 0, 0)), raw.token_ids, closing_ids(chat)
    assert ids[6 : 6 + len(closing)] == closing
    assert list(ids[:6]) == greedy(hash_runner(), prompt, 6)
    answer = ids[6 + len(closing) :]
    assert list(answer) == greedy(hash_runner(), (*prompt, *ids[:6], *closing), len(answer))
    assert (len(ids), raw.reason) == (20, StopReason.MAX_TOKENS)  # over both runs
    chat.say("and?")


@pytest.mark.parametrize("keep_reasoning", ["off", "on"])
def test_the_next_prompt_holds_the_ended_thought_only_where_thinking_is_kept(keep_reasoning: str) -> None:
    chat = scripted_chat(QWEN3, "why not", "so", "x</think>y", keep_reasoning=keep_reasoning)
    take(chat, ask_at=3)
    held = len(chat.record)
    result = chat.say("and?")
    text = chat.tokenizer.decode(chat.record, show_control=True)
    assert ("why" + TAG + "so<|im_end|>" in text) == (keep_reasoning == "on")
    assert (result.raw.reused_prefix_tokens == held) == (keep_reasoning == "on")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("</think>so", id="asked at the very token that closes the thought"),
        pytest.param("x</think>so", id="asked after it"),
        pytest.param("so and so", id="a reply without a thought"),
    ],
)
def test_asked_for_what_it_is_doing_already_the_model_goes_on(reply: str) -> None:
    chat = scripted_chat(QWEN3 if "think" in reply else OPENS, reply, "second")
    take(chat, ask_at=3 if "x<" in reply else 1)
    assert chat.turns == [("hi", reply.partition("</think>")[2] or reply)]
    assert chat.session.conversation.turns[0].generated == reply


def test_a_request_is_for_the_reply_under_way_and_no_other() -> None:
    chat = scripted_chat(QWEN3, "one</think>1", "two</think>2", "three</think>3")
    chat.session.answer_now()  # before there is any
    chat.say("a")
    take(chat, ask_at=5)  # while it answers
    chat.session.answer_now()  # between two turns
    chat.say("c")
    assert [turn.reply.reasoning for turn in chat.session.conversation.turns] == ["one", "two", "three"]


def test_asked_while_the_prompt_is_read_it_answers_once_it_has_begun_to_think() -> None:
    chat = scripted_chat(QWEN3, "why not", "so")
    completion = replace(chat.session.options.completion, chunk_size=4)
    chat.session.options = replace(chat.session.options, completion=completion)

    def on_event(event: TurnEvent) -> None:
        chat.events.append(event)
        chat.session.answer_now()

    raw = chat.session.send("hi", cancel=NEVER, on_event=on_event).raw
    read = [event.done for event in chat.events if isinstance(event, Prefill)]
    assert len(read) > 2 and read[-1] == raw.prompt_tokens
    assert chat.session.conversation.turns[0].generated == "w" + TAG + "so"


def test_without_tags_nothing_is_a_thought() -> None:
    chat = scripted_chat(CHATML, "<think>why", "second")
    take(chat, ask_at=9)
    assert chat.turns == [("hi", "<think>why")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_tokens": "3"}, StopReason.MAX_TOKENS), ({"stop": "y"}, StopReason.STOP_STRING)],
)
def test_a_run_that_ends_by_itself_at_that_token_has_ended(
    options: dict[str, str], reason: StopReason
) -> None:
    chat = scripted_chat(QWEN3, "why not", "second", **options)
    raw = take(chat, ask_at=3).raw
    assert (raw.reason, chat.shown) == (reason, "")


def test_the_users_cancel_at_the_same_token_wins() -> None:
    chat = scripted_chat(QWEN3, "why not", "second")
    raw = take(chat, ask_at=3, cancel_at=3).raw
    assert (raw.reason, raw.new_tokens) == (StopReason.CANCELLED, 3)
    assert chat.session.conversation.messages()[-1] == Message(
        "assistant", "", reasoning="why", complete=False
    )


def test_cancelled_while_it_answers_the_reply_goes_on_behind_the_tag() -> None:
    chat = scripted_chat(QWEN3, "why not", "so be it", " be it")
    n_tokens = 3 + len(closing_ids(chat)) + 2
    raw = take(chat, ask_at=3, cancel_at=n_tokens).raw
    assert (raw.reason, raw.new_tokens) == (StopReason.CANCELLED, n_tokens)
    assert raw.kv_backed_token_ids == chat.record
    chat.go_on()
    assert chat.turns == [("hi", "so be it")]
    assert chat.session.conversation.turns[0].generated == "why" + TAG + "so be it"


def test_cancelled_before_the_tag_is_read_the_reply_goes_on_behind_it_too() -> None:
    chat = scripted_chat(QWEN3, "why not", "so be it")
    # Looks at the prompt's one chunk, after it, and at three tokens; the next is at the second run's prompt.
    raw = take(chat, ask_at=3, cancel=CancelAfter(5)).raw
    assert (raw.reason, raw.token_ids) == (StopReason.CANCELLED, (*b"why", *closing_ids(chat)))
    assert raw.kv_backed_token_ids == chat.record
    assert len(chat.record) == raw.prompt_tokens + 2  # what the first run had fed
    chat.go_on()
    assert chat.session.conversation.turns[0].generated == "why" + TAG + "so be it"


def test_a_reply_cut_inside_its_thought_goes_on_and_may_then_be_asked_to_answer() -> None:
    chat = scripted_chat(QWEN3, "why", " not", "so", max_tokens="3")
    chat.say("hi")
    chat.session.set_option("max_tokens", "none")
    raw = take(chat, ask_at=2, generate=chat.session.continue_reply).raw
    turn = chat.session.conversation.turns[0]
    assert turn.generated == "why n" + TAG + "so"
    assert turn.reply == Message("assistant", "so", reasoning="why n")
    assert list(turn.generated_ids) == chat.tokenizer.encode(turn.generated, parse_special=True)
    assert raw.token_ids == turn.generated_ids[3:]


def test_half_a_character_at_the_end_of_a_thought_is_neither_shown_nor_kept() -> None:
    chat = scripted_chat(QWEN3, "aé!".encode(), "so")  # type: ignore[arg-type]
    raw = take(chat, ask_at=2).raw
    assert (chat.thought, chat.shown) == ("a", "so")
    assert raw.token_ids == (ord("a"), *closing_ids(chat), *b"so")
    assert chat.record[raw.prompt_tokens :] == raw.token_ids


def test_a_fault_while_it_answers_leaves_everything_as_it_was() -> None:
    chat = hash_chat(QWEN3, max_tokens="20")
    chat.say("first")
    before = chat.session.conversation.turns

    def fail(name: str) -> None:
        raise RuntimeError(name)

    chat.events = []
    model = chat.producer._model  # type: ignore[attr-defined]

    def on_event(event: TurnEvent) -> None:
        if isinstance(event, ReplyText) and event.n_tokens == 3:
            chat.session.answer_now()
        if isinstance(event, ReplyText) and event.n_tokens == 12:
            model.on_boundary = fail

    with pytest.raises(RuntimeError):
        chat.session.send("hi", cancel=NEVER, on_event=on_event)
    assert chat.session.conversation.turns == before
    assert len(chat.record) == len(chat.producer.state)  # type: ignore[attr-defined]
    model.on_boundary = lambda name: None
    chat.say("again")


# The budget of thinking


@both_openings
@pytest.mark.parametrize("most", [1, 3, 6])
def test_thinking_ends_at_its_budget(family: Family, opening: str, most: int) -> None:
    chat = scripted_chat(family, opening + "why not", "so", max_thinking_tokens=str(most))
    raw = take(chat).raw
    n_thought = most - len(opening[:1])
    assert chat.session.conversation.turns[0].generated == opening + "why not"[:n_thought] + TAG + "so"
    assert raw.token_ids[most : most + len(closing_ids(chat))] == closing_ids(chat)


def test_a_thought_within_its_budget_is_left_alone() -> None:
    chat = scripted_chat(QWEN3, "why</think>so", "second", max_thinking_tokens="4")
    take(chat)
    assert chat.session.conversation.turns[0].generated == "why</think>so"


def test_without_any_budget_a_thought_the_prompt_opens_is_closed_at_once() -> None:
    chat = scripted_chat(QWEN3, "so", "yes", max_thinking_tokens="0")
    raw = take(chat).raw
    assert chat.session.conversation.messages()[-1] == Message("assistant", "so")
    prompt = chat.tokenizer.decode(chat.prompt_ids(TurnResult(None, raw, 0, 0)), show_control=True)
    assert prompt.endswith("assistant\n<think>\n" + TAG)  # the tag belongs to the prompt
    assert (raw.new_tokens, raw.token_ids) == (2, tuple(b"so"))
    assert [event.n_tokens for event in chat.events if isinstance(event, ReplyText)] == [1, 2, 2]
    assert chat.session.conversation.turns[0].generated == TAG + "so"
    chat.session.set_option("keep_reasoning", "on")
    assert chat.say("and?").raw.reused_prefix_tokens == raw.kv_position


def test_without_any_budget_a_thought_the_model_opens_is_closed_behind_its_tag() -> None:
    chat = scripted_chat(OPENS, "<think>why", "so", max_thinking_tokens="0")
    take(chat)
    assert chat.session.conversation.turns[0].generated == "<think>" + TAG + "so"


def test_a_reply_that_has_thought_enough_before_it_goes_on_answers_at_once() -> None:
    chat = scripted_chat(QWEN3, "why not", "so", max_tokens="5")
    chat.say("hi")
    chat.session.set_option("max_thinking_tokens", "5")
    raw = take(chat, generate=chat.session.continue_reply).raw
    assert chat.session.conversation.turns[0].generated == "why n" + TAG + "so"
    assert raw.token_ids == tuple(b"so")


def test_cancelled_before_the_first_token_behind_the_tag_no_turn_is_kept() -> None:
    chat = scripted_chat(QWEN3, "so", max_thinking_tokens="0")
    result = chat.session.send("hi", cancel=CancelAfter(0), on_event=lambda event: None)
    assert (result.turn, result.raw.new_tokens, chat.turns) == (None, 0, [])


@pytest.mark.parametrize(
    ("n_room", "max_tokens", "most", "closed_after"),
    [
        (5, "none", "0", 0),  # the tag takes 4
        (4, "none", "0", None),
        (7, "none", "2", 2),
        (6, "none", "2", None),
        (10, "6", "0", 0),
        (9, "6", "0", 1),  # not before a reply of 6, but one token into it
        (9, "6", "1", 1),
        (9, "6", "2", None),
        (9, "7", "2", 2),
    ],
)
def test_a_thought_is_left_open_where_no_answer_would_fit(
    n_room: int, max_tokens: str, most: str, closed_after: int | None
) -> None:  # G4
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    n_prompt = len(scripted_chat(QWEN3).tokenizer.encode(prompt, parse_special=True))
    chat = scripted_chat(
        QWEN3, "so" if closed_after == 0 else "because", "so", context_length=n_prompt + n_room,
        max_tokens=max_tokens, max_thinking_tokens=most, on_overflow="error",
    )  # fmt: skip
    raw = take(chat).raw
    assert raw.prompt_tokens + raw.new_tokens <= n_prompt + n_room
    generated = chat.session.conversation.turns[0].generated
    assert generated.find(TAG) == (-1 if closed_after is None else closed_after)


# Tags of one's own


@pytest.mark.parametrize("opening", ["", "<why>"])
def test_think_tags_take_the_place_of_the_templates(opening: str) -> None:  # T75
    source = CHATML.source if opening else CHATML.source.replace("assistant\n'", "assistant\n<why>\n'")
    chat = scripted_chat(
        replace(CHATML, source=source), opening + "a</why>b", opening + "cd", "e", think_tags="<why> </why>"
    )
    chat.say("one")
    assert (chat.thought, chat.shown) == ("a", "b")
    take(chat, ask_at=len(opening) + 1)
    assert (chat.thought, chat.shown) == ("c", "e")
    chat.session.set_option("think_tags", "none")


def test_a_thought_split_by_other_tags_is_still_given_back_as_it_was_generated() -> None:  # T50
    chat = scripted_chat(QWEN3, "a</think>b", "c</why>d", "e", keep_reasoning="on")
    chat.say("one")
    chat.session.set_option("think_tags", "<why> </why>")
    chat.say("two")
    chat.session.undo()
    chat.session.set_option("think_tags", "<hm> </hm>")
    chat.say("three")
    text = chat.tokenizer.decode(chat.record, show_control=True)
    assert "<think>\na</think>b<|im_end|>" in text


@pytest.mark.parametrize("tags", [("<|why|>", "<|yhw|>"), ("<|why|>", "</why>")])
def test_tags_that_are_control_tokens_are_found_though_they_are_no_text(tags: tuple[str, str]) -> None:  # T75
    opening, closing = tags
    controls = (*CHATML.control_spellings, *(tag for tag in tags if "|" in tag))
    family = replace(CHATML, control_spellings=controls)
    chat = scripted_chat(
        family, f"{opening}a{closing}b", f"{opening}cd", "e", think_tags=" ".join(tags), keep_reasoning="on"
    )
    chat.say("one")
    assert (chat.thought, chat.shown) == ("a", "b")
    raw = take(chat, ask_at=2).raw
    assert (chat.thought, chat.shown) == ("c", "e")
    generated = f"{opening}c\n{closing}\n\ne"
    assert list(raw.token_ids) == chat.tokenizer.encode(generated, parse_special=True)
    assert chat.session.conversation.turns[-1].generated_ids == raw.token_ids


def test_a_wait_between_two_paced_tokens_ends_where_an_answer_is_asked_for() -> None:
    chat = scripted_chat(QWEN3, "why not", "s", max_tokens_per_sec="0.05", max_tokens="7")
    asked = threading.Timer(0.1, chat.session.answer_now)

    def on_event(event: TurnEvent) -> None:
        if isinstance(event, ReplyText) and event.n_tokens == 1:
            asked.start()

    began = time.monotonic()
    chat.session.send("hi", cancel=threading.Event(), on_event=on_event)
    asked.join()
    assert time.monotonic() - began < 10  # the wait alone would take 20 seconds
    assert chat.session.conversation.turns[0].generated == "wh" + TAG + "s"


@pytest.mark.parametrize("most", ["0", "3"])
def test_a_model_that_thinks_again_after_its_budget_does_so_unseen(most: str) -> None:
    chat = scripted_chat(OPENS, "<think>one two three", "<think>four</think>done", "<think>five</think>done")
    chat.session.set_option("max_thinking_tokens", most)
    result = take(chat)
    assert result.turn is not None
    assert "think" not in result.turn.reply.content
    assert "think>" not in "".join(
        event.text for event in chat.events if isinstance(event, ReplyText) and not event.is_reasoning
    )
