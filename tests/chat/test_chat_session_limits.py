"""A chat in a context that fills: what is refused, what is dropped and said, and that it goes on afterwards.

Each turn is also held to what `sessions.Chat` checks, as in test_chat_session.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_templates import CHATML
from sessions import CancelAfter, Chat, hash_chat, scripted_chat

from turbospark_chat.chat.turn_result import TurnEvent, TurnsDropped
from turbospark_chat.chat.window import WindowOverflowError
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.errors import ContextOverflowError

# One token after each message's text and none to open a reply, so that sizes can be told by eye.
TIGHT = replace(CHATML, source="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")


def message(chat: Chat, n_prompt: int) -> str:
    """A message with which the next prompt has that many tokens."""
    return "m" * (n_prompt - chat.session.costs.count_tokens() - 1)


def full(n_context: int = 64, *, system: str | None = None, **options: Any) -> Chat:
    """A chat in a small context."""
    return hash_chat(TIGHT, context_length=n_context, system=system, **options)


@pytest.mark.parametrize(
    ("n_context", "n_prompt", "max_tokens", "n_new"),
    [
        pytest.param(64, 60, "none", 4, id="C11 as many as there is room"),
        pytest.param(64, 60, "1", 1, id="C11 exactly one"),
        pytest.param(64, 60, "4", 4, id="G4 prompt and reply fill the context"),
        pytest.param(64, 63, "none", 1, id="G4 room for one"),
        pytest.param(1024, 100, "none", 924, id="G4 no limit but the context"),
    ],
)
def test_a_reply_has_the_room_there_is(n_context: int, n_prompt: int, max_tokens: str, n_new: int) -> None:
    chat = full(n_context, max_tokens=max_tokens)
    chat.cold = None
    raw = chat.say(message(chat, n_prompt)).raw
    assert (raw.prompt_tokens, raw.new_tokens, raw.reason) == (n_prompt, n_new, StopReason.MAX_TOKENS)
    assert not chat.session.conversation.turns[-1].reply.complete  # T69: `/continue` may go on


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_reserved"),
    [
        pytest.param(64, "none", 1, id="G4 the prompt alone fills it"),
        pytest.param(61, "4", 4, id="G4 one too many"),
        pytest.param(65, "0", 0, id="C11 the prompt alone is too long"),
    ],
)
@pytest.mark.parametrize("on_overflow", ["drop", "error", "ask"])
def test_what_cannot_fit_is_refused_before_any_work(
    n_prompt: int, max_tokens: str, n_reserved: int, on_overflow: str
) -> None:  # T62
    chat = full(max_tokens=max_tokens, on_overflow=on_overflow)
    with pytest.raises(ContextOverflowError) as caught:
        chat.say(message(chat, n_prompt))
    assert (caught.value.n_prompt, caught.value.n_reserved) == (n_prompt, n_reserved)
    assert (chat.record, chat.turns, chat.events) == ((), [], [])


def test_no_reply_asked_for_brings_the_prompt_into_the_cache_and_keeps_no_turn() -> None:  # C11
    chat = full(max_tokens="0")
    result = chat.say(message(chat, 60))
    assert result.turn is None and result.raw.reason is StopReason.MAX_TOKENS
    assert (result.raw.new_tokens, len(chat.record), chat.turns) == (0, 60, [])
    chat.session.set_option("max_tokens", "1")
    assert chat.say(message(chat, 60)).raw.reused_prefix_tokens == 59


def test_turns_that_do_not_fit_leave_the_prompt_and_are_reported() -> None:  # G2, T63
    # System 10, turns of 20 tokens, 16 for the reply.
    chat = scripted_chat(TIGHT, *["r" * 14] * 6, context_length=64, system="s" * 9, max_tokens="16")
    for number in range(2):
        chat.say("abcd")
        assert chat.session.costs.count_tokens() == 10 + 20 * (number + 1)
    result = chat.say("n" * 17)
    assert result.raw.prompt_tokens == 10 + 20 + 18
    assert chat.dropped == [TurnsDropped(1, 20)]
    assert (result.n_dropped_turns, result.n_dropped_tokens) == (1, 20)
    assert chat.events[0] == chat.dropped[0]  # said before the prompt is computed
    text = chat.tokenizer.decode(chat.record)
    assert text.startswith("s" * 9 + "abcd" + "r" * 14 + "n" * 17)
    assert len(chat.turns) == 3  # the conversation keeps what the prompt leaves out


@pytest.mark.parametrize(("n_letters", "fits"), [(37, True), (38, False)])
def test_a_message_is_refused_when_nothing_else_is_left_to_drop(n_letters: int, fits: bool) -> None:  # G2
    chat = scripted_chat(TIGHT, *["r" * 14] * 6, context_length=64, system="s" * 9, max_tokens="16")
    for _ in range(2):
        chat.say("abcd")
    before = chat.session.conversation.turns, chat.record
    if fits:  # 38 tokens with the one after it
        assert chat.say("n" * n_letters).n_dropped_turns == 2
        return
    with pytest.raises(WindowOverflowError, match="49 prompt tokens and 16 for the reply exceed 64"):
        chat.say("n" * n_letters)
    assert (chat.session.conversation.turns, chat.record) == before


def test_what_left_the_prompt_stays_out_and_is_reported_once() -> None:
    chat = scripted_chat(TIGHT, *["r" * 14] * 9, context_length=80, max_tokens="16")
    for _ in range(3):
        chat.say("abcd")
    assert chat.say("abcd").n_dropped_turns == 1
    chat.session.set_option("max_tokens", "1")
    held = len(chat.record)
    again = chat.retry()
    assert (again.n_dropped_turns, chat.dropped) == (0, [])
    assert again.raw.reused_prefix_tokens == again.raw.prompt_tokens - 1 < held


def overflowing(on_overflow: str) -> Chat:
    chat = scripted_chat(
        TIGHT, *["r" * 14] * 9, context_length=64, system="s" * 9, max_tokens="16", on_overflow=on_overflow
    )
    chat.say("abcd")
    chat.say("abcd")
    return chat


@pytest.mark.parametrize("on_overflow", ["error", "ask"])
def test_a_policy_that_drops_nothing_names_the_numbers_and_the_option(on_overflow: str) -> None:  # T65
    chat = overflowing(on_overflow)
    before = chat.session.conversation.turns, chat.record
    with pytest.raises(WindowOverflowError) as caught:
        chat.say("n" * 17)
    assert str(caught.value).startswith(
        "does not fit the context: 68 prompt tokens and 16 for the reply exceed 64; leave out its oldest turn"
    )
    assert "`/forget 1` or `--on-overflow drop`" in str(caught.value)
    assert (chat.session.conversation.turns, chat.record, chat.events) == (*before, [])


def test_turns_left_out_by_consent_stay_out_and_are_not_asked_about_again() -> None:  # T65
    chat = overflowing("ask")
    with pytest.raises(WindowOverflowError) as caught:
        chat.say("n" * 17)
    chat.session.leave_out(caught.value.n_droppable)
    result = chat.say("n" * 17)
    assert (result.raw.prompt_tokens, result.n_dropped_turns, len(chat.turns)) == (48, 0, 3)
    assert chat.retry().turn is not None
    chat.session.undo()
    chat.session.set_option("max_tokens", "9")
    assert chat.say("abcd").turn is not None  # there is room for all of them again
    assert chat.tokenizer.decode(chat.record).count("abcd") == 3


def test_after_a_drop_too_what_to_forget_is_counted_from_the_oldest_turn() -> None:  # T65
    chat = scripted_chat(TIGHT, *["r" * 14] * 9, context_length=80, max_tokens="16")
    for _ in range(4):
        chat.say("abcd")
    assert chat.dropped
    chat.session.set_option("on_overflow", "error")
    with pytest.raises(WindowOverflowError, match="/forget 2`") as caught:
        chat.say("abcd")
    assert caught.value.n_droppable == 1
    removed = chat.session.forget(2)
    assert len(removed) == 2
    assert chat.say("abcd").turn is not None


@pytest.mark.parametrize(
    "remedy",
    [lambda session: session.undo(), lambda session: session.forget(), lambda session: session.clear()],
    ids=["undo", "forget", "clear"],
)
def test_after_an_overflow_making_room_lets_the_message_in(remedy: Callable[..., object]) -> None:  # T66
    chat = overflowing("error")
    with pytest.raises(WindowOverflowError):
        chat.say("n" * 17)
    remedy(chat.session)
    assert chat.say("n" * 17).turn is not None


def test_a_full_context_does_not_block_the_next_conversation() -> None:  # G13
    chat = full(max_tokens="none")
    chat.say("a" * 20)
    assert len(chat.record) >= 63
    chat.session.clear()
    result = chat.say("short")
    assert result.turn is not None and result.n_dropped_turns == 0
    assert "a" * 20 not in chat.tokenizer.decode(chat.prompt_ids(result))


def test_forgetting_turns_that_are_left_out_anyway_costs_nothing() -> None:
    chat = scripted_chat(TIGHT, *["r" * 14] * 9, context_length=80, max_tokens="16")
    for _ in range(5):
        chat.say("abcd")
        assert chat.dropped in ([], [TurnsDropped(1, 20)])
    held = len(chat.record)
    chat.session.forget()  # one of the two that are left out
    chat.session.set_option("max_tokens", "1")
    result = chat.say("x")
    assert (result.n_dropped_turns, result.raw.reused_prefix_tokens) == (0, held)


def test_a_full_context_cannot_be_continued_and_says_so() -> None:  # T69
    chat = full(max_tokens="none")
    chat.say("a" * 20)
    before = chat.session.conversation.turns
    with pytest.raises(WindowOverflowError, match="64 prompt tokens and 1 for the reply exceed 64"):
        chat.go_on()
    assert chat.session.conversation.turns == before


def test_a_reply_can_be_continued_after_a_cancelled_message_had_pushed_it_out() -> None:
    chat = full(max_tokens="8")
    chat.say("one")
    assert chat.say("n" * 50, CancelAfter(1)).turn is None and chat.dropped == [TurnsDropped(1, 13)]
    result = chat.go_on()
    assert (result.n_dropped_turns, chat.dropped) == (0, [])
    assert len(chat.turns[0][1]) == 16
    chat.session.set_option("max_tokens", "1")
    assert chat.turns[0][1] in chat.tokenizer.decode(chat.prompt_ids(chat.say("next")))


def test_a_message_taken_back_leaves_no_turn_out_of_the_next_prompt() -> None:  # H4
    chat = scripted_chat(TIGHT, *["r" * 14] * 6, context_length=64, system="s" * 9, max_tokens="16")
    for _ in range(2):
        chat.say("abcd")
    assert chat.say("n" * 17, CancelAfter(1)).turn is None and chat.dropped
    chat.session.set_option("max_tokens", "8")
    chat.say("abc")
    assert chat.tokenizer.decode(chat.record).count("abcd") == 2


def test_a_full_context_is_computed_anew_in_few_turns() -> None:  # G8
    chat = hash_chat(CHATML, context_length=800, system="s" * 9)
    turns = [chat.say("abc") for _ in range(60)]
    full = next(number for number, turn in enumerate(turns) if turn.n_dropped_turns)
    anew = [turn for turn in turns[full:] if turn.n_dropped_turns]
    assert len(anew) * 5 <= len(turns[full:])
    others = [turn.raw for turn in turns[full:] if not turn.n_dropped_turns]
    assert max(raw.prefilled_tokens for raw in others) < 40 < 500 < min(raw.prompt_tokens for raw in others)


def test_an_option_changed_while_a_turn_is_under_way_is_the_next_ones() -> None:
    chat = scripted_chat(TIGHT, *["r" * 14] * 6, context_length=64, system="s" * 9, max_tokens="16")
    for _ in range(2):
        chat.say("abcd")

    def change_at_once(event: TurnEvent) -> None:  # as `/set` does on the terminal's thread
        if isinstance(event, TurnsDropped):  # fitted, and not begun
            chat.session.set_option("max_tokens", "1")

    result = chat.session.send("n" * 17, cancel=CancelAfter(None), on_event=change_at_once)
    assert result.raw.new_tokens == 14
    assert chat.retry().raw.new_tokens == 1


def test_turns_are_left_out_beside_those_that_are_left_out_already() -> None:
    chat = scripted_chat(TIGHT, *"abcdef", context_length=80)
    for text in ("one", "two", "three"):
        chat.say(text)
    for left in ("onea", "twob", "threec"):
        assert left in chat.tokenizer.decode(chat.record)
        chat.session.leave_out(1)
        chat.say("x", CancelAfter(1))
        assert left not in chat.tokenizer.decode(chat.record)
    chat.session.leave_out(1)  # more than there are
    assert chat.say("last").turn is not None
