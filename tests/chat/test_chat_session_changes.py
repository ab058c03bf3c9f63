"""A conversation that is branched, rewound, restored or given another model goes on as a cold engine would.

Each turn is also held to what `sessions.Chat` checks, as in test_chat_session.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_templates import CHATML, LLAMA3, QWEN3, Family
from sessions import (
    NEVER,
    CancelAfter,
    Chat,
    chat_tokenizer,
    hash_chat,
    hash_runner,
    load_template,
    scripted_chat,
)

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.chat.turn_result import EndedTurn, NotKept, StoredApart
from turbospark_chat.errors import ModelWarning, StoreError, UsageError


def talk(*messages: str, **how: Any) -> Chat:
    """A chat in which these were answered."""
    chat = hash_chat(CHATML, **how)
    for text in messages:
        chat.say(text)
    return chat


# Branches


def test_a_branch_is_answered_by_itself_and_the_turns_it_shares_are_not_computed_again() -> None:
    chat = talk("one", "two")
    held = len(chat.record)
    chat.session.branch_off("b")
    assert chat.say("on b").raw.reused_prefix_tokens >= held
    chat.session.switch("main")
    raw = chat.say("on main").raw
    assert raw.reused_prefix_tokens >= held
    assert [user for user, _ in chat.turns] == ["one", "two", "on main"]
    chat.session.switch("b")
    chat.say("more on b")
    assert [user for user, _ in chat.turns] == ["one", "two", "on b", "more on b"]


def test_turns_left_out_of_the_prompt_on_one_branch_are_in_it_on_another() -> None:
    chat = talk("one", "two")
    chat.session.branch_off("b")
    chat.session.leave_out(1)
    chat.say("three")
    assert "one" not in chat.tokenizer.decode(chat.record)
    chat.session.switch("main")
    chat.say("three")
    assert "one" in chat.tokenizer.decode(chat.record)


def test_a_failed_turn_leaves_every_branch_as_it_was() -> None:
    chat = talk("one")
    chat.session.branch_off("b")
    before = dict(chat.session.conversation.branches)
    assert chat.say("no", CancelAfter(0)).turn is None
    assert chat.session.conversation.branches == before


def test_rewinding_keeps_the_oldest_turns_and_what_was_computed_for_them() -> None:
    chat = talk("one", "two", "three", "four")
    removed = chat.session.rewind(2)
    assert [turn.user.content for turn in removed] == ["three", "four"]
    held = chat.session.costs.count_tokens()
    assert chat.say("five").raw.reused_prefix_tokens >= held - 2  # but for what ends the last reply
    with pytest.raises(UsageError, match="cannot keep 9 turns: the conversation has 3"):
        chat.session.rewind(9)


def test_another_system_prompt_holds_from_the_next_turn_on() -> None:
    chat = talk("one", system="Be brief.")
    chat.session.set_system("Be long.")
    chat.say("two")
    text = chat.tokenizer.decode(chat.record)
    assert "Be long." in text and "Be brief." not in text
    chat.session.set_system(None)
    chat.say("three")
    assert "Be long." not in chat.tokenizer.decode(chat.record)


# Options for one turn


def test_a_retry_may_have_options_of_its_own_which_are_gone_afterwards() -> None:
    chat = talk("one", max_tokens="8")
    options = chat.session.options
    for_once = OPTIONS["max_tokens"].change(options, "3")
    result = chat.session.retry(options=for_once, cancel=NEVER, on_event=lambda event: None)
    assert (result.raw.new_tokens, chat.session.options) == (3, options)
    assert chat.retry().raw.new_tokens == 8


# Restoring


def test_a_restored_conversation_goes_on_in_the_ids_it_was_said_in() -> None:
    chat = scripted_chat(CHATML, [*b"abab"], pieces=("ab",))  # as the tokenizer would not say it
    said = chat.say("one")
    assert said.turn is not None
    again = scripted_chat(CHATML, "ok", pieces=("ab",), keep_reasoning="on")
    again.session.restore(chat.session.conversation)
    assert again.session.conversation.turns == chat.session.conversation.turns
    again.say("two")
    n_before = len(chat.record) - len(b"abab")
    assert again.record[: len(chat.record)] == chat.record
    assert chat.record[n_before:] == said.turn.generated_ids == tuple(b"abab")


@pytest.mark.parametrize(
    "ids",
    [(), (1, 2, 3), (*b"Hel", 10**6), (-1, *b"Hel")],
    ids=["none", "of other words", "unknown", "negative"],
)
def test_ids_that_do_not_say_the_text_here_are_said_again(ids: tuple[int, ...]) -> None:
    chat = scripted_chat(CHATML, "ok", keep_reasoning="on")
    turn = Turn(Message("user", "hi"), Message("assistant", "Hel"), "Hel", ids)
    given = Conversation(system="S.", branch="b", branches={"main": (), "b": (turn,), "c": (turn,)})
    chat.session.restore(given)
    conversation = chat.session.conversation
    (restored,) = conversation.turns
    assert restored == replace(turn, generated_ids=tuple(b"Hel"))
    assert restored.identity is turn.identity  # or a journal would store it again
    assert (conversation.system, conversation.branch, list(conversation.branches)) == (
        "S.", "b", ["main", "b", "c"],
    )  # fmt: skip
    assert conversation.branches["c"][0] is restored  # branches share their turns as before
    assert given.turns == (turn,)
    chat.say("and?")


def test_a_turn_that_is_said_in_these_ids_is_taken_as_it_is() -> None:
    chat = talk("one")
    turns = chat.session.conversation.turns
    chat.session.restore(chat.session.conversation)
    assert chat.session.conversation.turns[0] is turns[0]


def test_a_restored_conversation_is_not_left_out_of_the_prompt_by_an_earlier_one() -> None:
    chat = talk("one", "two")
    chat.session.leave_out(2)
    chat.session.restore(chat.session.conversation)
    chat.say("three")
    assert chat.tokenizer.decode(chat.record).count("<|im_end|>") == 0
    assert "one" in chat.tokenizer.decode(chat.record)


# Another model


def test_another_model_goes_on_with_the_conversation_in_its_own_ids_and_template() -> None:
    chat = scripted_chat(CHATML, [*b"a", 260], pieces=("han",))
    chat.say("one")
    tokenizer, producer = chat_tokenizer(LLAMA3), hash_runner()
    template = load_template(LLAMA3.source, tuple(tokenizer.control_ids), bos_token=LLAMA3.bos_token)
    model = ChatModel(producer, tokenizer, template, {}, 999, arithmetic="other")
    chat.session.set_model(model)
    assert (chat.session.context_length, chat.session.arithmetic) == (999, "other")
    (turn,) = chat.session.conversation.turns
    assert turn.generated_ids == tuple(turn.generated.encode())
    chat.session.set_option("max_tokens", "4")
    raw = chat.session.send("two", cancel=NEVER, on_event=lambda event: None).raw
    text = tokenizer.decode(raw.kv_backed_token_ids, show_control=True)
    assert text.startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\none<|eot_id|>")
    assert raw.kv_backed_token_ids == producer.record.ids  # type: ignore[attr-defined]


def test_another_template_takes_over_all_of_the_prompt_also_where_replies_stay_as_they_were() -> None:
    chat = talk("one", keep_reasoning="on")
    chat.session.set_model(
        chat.session.model.with_template(
            "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
        )
    )
    chat.say("two")
    assert "im_start" not in chat.tokenizer.decode(chat.prompt_ids(chat.retry()), show_control=True)


def test_a_model_that_was_replaced_is_let_go() -> None:
    chat = talk("one")
    replaced = weakref.ref(chat.producer)
    chat.session.set_model(replace(chat.session._model, producer=hash_runner(), states=None))
    chat.producer = hash_runner()
    gc.collect()
    assert replaced() is None


# The journal


class Notes:
    """A journal that notes what it is given, and fails on demand."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, list[str], EndedTurn | None]] = []
        self.n_begun = 0
        self.apart: tuple[StoredApart, ...] = ()
        self.problem: str | None = None
        self.error: type[Exception] = StoreError

    def keep(self, conversation: Conversation, *, ended: EndedTurn | None) -> tuple[StoredApart, ...]:
        texts = [turn.user.content for turn in conversation.turns]
        self.kept.append((conversation.branch, texts, ended))
        if self.problem is not None:
            raise self.error(self.problem)
        return self.apart

    def begin_anew(self) -> None:
        self.n_begun += 1


def journalled(family: Family = CHATML, **how: Any) -> tuple[Chat, Notes]:
    chat, notes = hash_chat(family, **how), Notes()
    chat.session.journal = notes
    return chat, notes


def test_a_turn_is_in_the_journal_before_it_is_told_as_ended() -> None:
    chat, notes = journalled()
    for number, generate in enumerate((lambda: chat.say("one"), chat.retry, chat.go_on), start=1):
        result = generate()
        branch, texts, ended = notes.kept[-1]
        assert (branch, texts, len(notes.kept)) == ("main", ["one"], number)
        assert ended is not None and result.turn is chat.session.conversation.turns[-1]
        assert (ended.turn, ended.raw, ended.options) == (result.turn, result.raw, chat.session.options)
    for_once = OPTIONS["seed"].change(chat.session.options, "7")
    chat.session.retry(options=for_once, cancel=NEVER, on_event=lambda event: None)
    ended = notes.kept[-1][2]
    assert ended is not None and ended.options == for_once


@pytest.mark.parametrize("cancel", [CancelAfter(0), CancelAfter(1)])
def test_a_turn_that_came_to_nothing_is_not_in_the_journal(cancel: CancelAfter) -> None:
    chat, notes = journalled()
    chat.say("one", cancel)
    assert notes.kept == []


@pytest.mark.parametrize("error", [StoreError, RuntimeError])
def test_a_turn_that_cannot_be_stored_is_told_and_the_chat_goes_on(error: type[Exception]) -> None:
    chat, notes = journalled()
    notes.problem, notes.error = "disk full", error
    chat.say("one")
    assert chat.events[-1] == NotKept("disk full")
    assert str(chat.events[-1]) == "this turn is not stored: disk full"
    notes.problem = None
    chat.say("two")
    assert notes.kept[-1][1] == ["one", "two"]
    assert not [event for event in chat.events if isinstance(event, NotKept)]


def test_that_another_program_goes_on_with_the_conversation_is_told_by_the_turn_or_the_change() -> None:
    chat, notes = journalled()
    notes.apart = (StoredApart("main", "main-2"),)
    chat.say("one")
    assert chat.events[-1] == notes.apart[0]
    with pytest.warns(
        ModelWarning, match="another program .* branch main too: yours is stored as branch main-2"
    ):
        chat.session.undo()


CHANGES: dict[str, tuple[Callable[[ChatSession], object], tuple[str, list[str]]]] = {
    "undo": (lambda session: session.undo(), ("main", ["one"])),
    "rewind": (lambda session: session.rewind(0), ("main", [])),
    "forget": (lambda session: session.forget(), ("main", ["two"])),
    "branch": (lambda session: session.branch_off("b"), ("b", ["one", "two"])),
    "switch": (lambda session: session.switch("other"), ("other", ["one", "two"])),
    "system": (lambda session: session.set_system("S."), ("main", ["one", "two"])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_other_change_is_in_the_journal_and_made_also_where_it_cannot_be_stored(name: str) -> None:
    change, (branch, texts) = CHANGES[name]
    chat, notes = journalled()
    chat.say("one")
    chat.say("two")
    chat.session.branch_off("other")
    chat.session.switch("main")
    notes.problem = "disk full"
    with pytest.raises(StoreError, match="disk full"):
        change(chat.session)
    assert notes.kept[-1] == (branch, texts, None)
    assert (chat.session.conversation.branch, [user for user, _ in chat.turns]) == (branch, texts)


def test_a_change_that_is_refused_is_not_in_the_journal() -> None:
    chat, notes = journalled()
    for change in (lambda: chat.session.undo(), lambda: chat.session.switch("x")):
        with pytest.raises(UsageError):
            change()
    assert notes.kept == []


def test_clearing_begins_another_conversation_in_the_journal_and_leaves_the_old_one() -> None:
    chat, notes = journalled()
    chat.say("one")
    chat.session.branch_off("b")
    n_kept = len(notes.kept)
    chat.session.clear()
    assert (notes.n_begun, len(notes.kept)) == (1, n_kept)
    assert (chat.session.conversation.branch, chat.turns) == ("main", [])


def test_a_journal_may_be_given_from_the_start() -> None:
    chat, notes = talk("one"), Notes()
    session = ChatSession(chat.session._model, journal=notes, options=chat.session.options)
    session.send("two", cancel=NEVER, on_event=lambda event: None)
    assert len(notes.kept) == 1


# What else was likely


def test_the_last_tokens_are_explained_and_the_next_turn_reuses_as_before() -> None:
    chat = talk("one", "two")
    record = chat.record
    choices = chat.session.explain(3, n_alternatives=2, cancel=NEVER)
    reply = chat.session.conversation.turns[-1].generated_ids
    assert [choice.token_id for choice in choices] == list(reply[-3:])
    assert [choice.rank for choice in choices] == [1, 1, 1]  # the chat is greedy
    assert chat.record == record
    assert chat.say("three").raw.reused_prefix_tokens >= len(record)


def test_more_tokens_than_the_reply_has_are_all_of_it_and_control_tokens_are_spelled() -> None:
    chat = scripted_chat(QWEN3, "a</think>b<|endoftext|>", "c")
    chat.say("one")
    choices = chat.session.explain(99, n_alternatives=1, cancel=NEVER)
    assert [choice.text for choice in choices] == ["a", "</think>", "b", "<|endoftext|>"]
    with pytest.raises(UsageError, match="no reply yet"):
        scripted_chat(QWEN3).session.explain(1, n_alternatives=1, cancel=NEVER)


@pytest.mark.parametrize("before", ["cancelled turn", "undo", "another branch", "failed turn", "new system"])
def test_the_last_reply_is_explained_whatever_came_between(before: str) -> None:
    chat = talk("one", "two")
    model = chat.producer._model  # type: ignore[attr-defined]
    if before == "cancelled turn":
        chat.say("three", CancelAfter(1))
    elif before == "undo":
        chat.session.undo()
    elif before == "another branch":
        chat.session.branch_off("b")
        chat.say("three")
        chat.session.switch("main")
    elif before == "failed turn":
        model.on_boundary = lambda name: 1 / 0
        with pytest.raises(ZeroDivisionError):
            chat.say("three")
        model.on_boundary = lambda name: None
    else:
        chat.session.set_system("S.")
    turn = chat.session.conversation.turns[-1]
    choices = chat.session.explain(4, n_alternatives=1, cancel=NEVER)
    assert [choice.token_id for choice in choices] == list(turn.generated_ids[-4:])
    if before != "new system":
        assert {choice.rank for choice in choices} == {1}
    assert len(chat.record) == len(chat.producer.state)  # type: ignore[attr-defined]
    chat.say("four")


def test_a_window_too_small_by_now_explains_what_still_fits() -> None:
    chat = talk("one", "two", "three", context_length=160, on_overflow="error")
    chat.session.set_system("s" * 60)
    choices = chat.session.explain(2, n_alternatives=1, cancel=NEVER)
    assert len(choices) == 2 and len(chat.record) <= 160
