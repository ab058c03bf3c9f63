"""A conversation holds whole turns, and hands out snapshots."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message


def turn(number: int) -> Turn:
    text = f"reply {number}"
    return Turn(Message("user", f"message {number}"), Message("assistant", text), text, (number,))


TURNS = tuple(map(turn, range(4)))


def contents(conversation: Conversation, **part: int) -> list[str]:
    return [message.content for message in conversation.messages(**part)]


def test_messages_are_the_system_prompt_and_each_turn_in_order() -> None:
    conversation = Conversation(system="be brief", turns=TURNS[:2])
    assert [(message.role, message.content) for message in conversation.messages()] == [
        ("system", "be brief"),
        ("user", "message 0"),
        ("assistant", "reply 0"),
        ("user", "message 1"),
        ("assistant", "reply 1"),
    ]


@pytest.mark.parametrize("system", [None, ""])
def test_without_a_system_prompt_there_is_no_system_message(system: str | None) -> None:
    assert Conversation(system=system).messages() == []


def test_messages_of_some_of_the_turns_keep_the_system_prompt() -> None:
    conversation = Conversation(system="s", turns=TURNS)
    assert contents(conversation, first_turn=2) == ["s", "message 2", "reply 2", "message 3", "reply 3"]
    assert contents(conversation, first_turn=1, n_turns=2) == ["s", "message 1", "reply 1"]
    assert contents(conversation, first_turn=4) == ["s"]


@pytest.mark.parametrize(
    ("n_turns", "n_removed"), [(-1, 0), (0, 0), (1, 1), (3, 3), (4, 4), (5, 4), (99, 4)], ids=str
)
def test_undo_takes_the_newest_turns_and_forget_the_oldest_as_many_as_there_are(
    n_turns: int, n_removed: int
) -> None:
    conversation = Conversation(turns=TURNS)
    assert conversation.undo(n_turns) == TURNS[4 - n_removed :]
    assert conversation.turns == TURNS[: 4 - n_removed]
    conversation = Conversation(turns=TURNS)
    assert conversation.forget(n_turns) == TURNS[:n_removed]
    assert conversation.turns == TURNS[n_removed:]


def test_a_turn_is_appended_and_the_last_replaced() -> None:
    conversation = Conversation()
    conversation.append(TURNS[0])
    conversation.append(TURNS[1])
    conversation.replace_last(TURNS[2])
    assert conversation.turns == (TURNS[0], TURNS[2])


def test_clear_removes_the_turns_and_keeps_the_system_prompt() -> None:
    conversation = Conversation(system="s", turns=TURNS)
    conversation.clear()
    assert (conversation.system, conversation.turns) == ("s", ())


@given(st.lists(st.sampled_from(["append", "replace", "undo", "forget", "clear"]), max_size=8))
def test_what_a_reader_got_before_a_change_stays_as_it_was(changes: list[str]) -> None:
    conversation = Conversation(turns=TURNS)
    snapshots = []
    for change in changes:
        snapshots.append((conversation.turns, tuple(conversation.turns)))
        if change == "append":
            conversation.append(turn(9))
        elif change == "replace" and conversation.turns:
            conversation.replace_last(turn(8))
        elif change == "undo":
            conversation.undo()
        elif change == "forget":
            conversation.forget()
        elif change == "clear":
            conversation.clear()
    assert all(seen == kept for seen, kept in snapshots)
    assert all(isinstance(seen, tuple) for seen, _ in snapshots)


def test_a_turn_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TURNS[0].generated = "other"  # type: ignore[misc]
