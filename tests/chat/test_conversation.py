"""A conversation holds whole turns, and hands out snapshots."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.errors import UsageError


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


@pytest.mark.parametrize("n_turns", range(5))
def test_undo_takes_the_newest_turns_forget_the_oldest_and_rewind_all_but_the_oldest(n_turns: int) -> None:
    for take, taken, left in (
        ("undo", TURNS[4 - n_turns :], TURNS[: 4 - n_turns]),
        ("forget", TURNS[:n_turns], TURNS[n_turns:]),
        ("rewind", TURNS[n_turns:], TURNS[:n_turns]),
    ):
        conversation = Conversation(turns=TURNS)
        assert getattr(conversation, take)(n_turns) == taken
        assert conversation.turns == left


@pytest.mark.parametrize(("take", "what"), [("undo", "take back"), ("forget", "forget"), ("rewind", "keep")])
def test_more_turns_than_there_are_cannot_be_taken_and_nothing_is(take: str, what: str) -> None:
    conversation = Conversation(turns=TURNS)
    for n_turns in (-1, 5, 99):
        with pytest.raises(UsageError, match=f"^cannot {what} {n_turns} turns: the conversation has 4$"):
            getattr(conversation, take)(n_turns)
    assert conversation.turns == TURNS
    with pytest.raises(UsageError, match=f"^nothing to {what}: there is no turn yet$"):
        getattr(Conversation(), take)(1)


def test_a_branch_begins_with_the_present_turns_and_goes_its_own_way() -> None:
    conversation = Conversation(system="s", turns=TURNS[:2])
    assert (conversation.branch, conversation.branches) == ("main", {"main": TURNS[:2]})
    conversation.branch_off("what if")
    conversation.append(TURNS[2])
    assert (conversation.branch, conversation.turns) == ("what if", TURNS[:3])
    conversation.switch("main")
    conversation.undo()
    conversation.append(TURNS[3])
    assert contents(conversation)[-2:] == ["message 3", "reply 3"]
    assert conversation.branches == {"main": (TURNS[0], TURNS[3]), "what if": TURNS[:3]}
    assert list(conversation.branches) == ["main", "what if"]  # as they were begun
    conversation.clear()
    assert (conversation.branch, conversation.branches) == ("main", {"main": ()})


def test_a_branch_that_exists_cannot_be_begun_and_one_that_does_not_cannot_be_gone_to() -> None:
    conversation = Conversation(turns=TURNS)
    conversation.branch_off("other")
    for name, problem in (("main", "a branch `main` already"), (" ", "needs a name"), ("", "needs a name")):
        with pytest.raises(UsageError, match=problem):
            conversation.branch_off(name)
    with pytest.raises(UsageError, match="no branch `mian`; there is `main`, `other`"):
        conversation.switch("mian")
    assert (conversation.branch, conversation.turns) == ("other", TURNS)


def test_a_conversation_can_be_made_whole_with_all_its_branches() -> None:
    conversation = Conversation(branch="b", branches={"a": TURNS[:1], "b": TURNS})
    assert (conversation.branch, conversation.turns) == ("b", TURNS)
    assert list(conversation.branches) == ["a", "b"]
    alone = Conversation(branch="b", turns=TURNS)
    assert (alone.turns, list(alone.branches)) == (TURNS, ["b"])


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


@given(
    st.lists(
        st.sampled_from(["append", "replace", "undo", "forget", "clear", "branch", "switch"]), max_size=8
    )
)
def test_what_a_reader_got_before_a_change_stays_as_it_was(changes: list[str]) -> None:
    conversation = Conversation(turns=TURNS)
    snapshots = []
    for change in changes:
        snapshots.append((conversation.turns, tuple(conversation.turns)))
        branches = conversation.branches
        snapshots.append((tuple(branches.items()), tuple(dict(branches).items())))
        if change == "append":
            conversation.append(turn(9))
        elif change == "replace" and conversation.turns:
            conversation.replace_last(turn(8))
        elif change in ("undo", "forget") and conversation.turns:
            getattr(conversation, change)()
        elif change == "branch":
            conversation.branch_off(f"branch {len(branches)}")
        elif change == "switch":
            conversation.switch("main")
        elif change == "clear":
            conversation.clear()
    assert all(seen == kept for seen, kept in snapshots)
    assert all(isinstance(seen, tuple) for seen, _ in snapshots)


def test_a_turn_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TURNS[0].generated = "other"  # type: ignore[misc]


def test_a_branch_goes_on_under_its_own_system_prompt() -> None:
    conversation = Conversation(system="be kind", turns=[turn("a")])
    conversation.branch_off("side")
    conversation.system = "be brief"
    assert (conversation.system, dict(conversation.systems)) == (
        "be brief",
        {"main": "be kind", "side": "be brief"},
    )
    conversation.switch("main")
    assert conversation.system == "be kind"
    conversation.clear()
    assert dict(conversation.systems) == {"main": "be kind"}
