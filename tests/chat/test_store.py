"""Stored conversations are listed, searched, loaded as they were, named and deleted."""

import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from stored_turns import ended, numbered_turn, said

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.message import Message, ToolCall
from turbospark_chat.chat.store import Store
from turbospark_chat.errors import StoreError, UsageError

TURNS = tuple(map(numbered_turn, range(5)))
ODD_TEXTS = [
    "",
    "\n",
    "a\0b",
    "lone \ud800 surrogate",
    "\udc80\udcff",
    "\ud83d\ude00",
    "😀",
    "'; DROP TABLE turns; --",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store.open(path)
    yield store
    store.close()


@pytest.fixture
def journal(store: Store) -> Journal:
    return journal_of(store)


def journal_of(store: Store, *, begin: int = 1000) -> Journal:
    ticks = count(begin)
    return Journal(store, model_name="smollm2", arithmetic="compiled", clock=lambda: float(next(ticks)))


def talk(journal: Journal, *turns: Turn, system: str | None = None) -> Conversation:
    """Store a new conversation of these turns."""
    journal.begin_anew()
    conversation = Conversation(system=system)
    for turn in turns:
        conversation.append(turn)
        journal.keep(conversation, ended=ended(turn))
    return conversation


def users(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.user.content for turn in turns]


def test_what_is_loaded_is_what_was_said(path: Path, store: Store, journal: Journal) -> None:
    talk(journal, *TURNS, system="be brief")
    store.close()
    stored = (reopened := Store.open(path)).load("1")
    assert stored.conversation.turns == TURNS
    assert (stored.conversation.system, stored.conversation.branch) == ("be brief", "main")
    assert (stored.id, stored.name, stored.title, stored.model) == (1, None, "message 0", "smollm2")
    assert (stored.created, stored.used) == (1000, 1004)
    reopened.close()


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
def test_any_text_survives(store: Store, journal: Journal, text: str) -> None:
    reply = Message(
        "assistant", text, reasoning=text, complete=False,
        tool_calls=(ToolCall("find", {"what": text}), ToolCall("say", text)),
    )  # fmt: skip
    turn = Turn(Message("user", text), reply, text, (0, 2**31, 2**32 - 1))
    conversation = talk(journal, turn, system=text)
    conversation.branch_off(f"branch {text}")
    journal.keep(conversation, ended=None)
    stored = store.load("1")
    assert stored.conversation.turns == (turn,)
    assert (stored.conversation.system, stored.conversation.branch) == (text, f"branch {text}")
    assert stored.details[0].system == text
    assert store.list()[0].n_turns == 1


def test_text_is_readable_by_other_programs(path: Path, journal: Journal) -> None:  # T79
    talk(journal, said("Grüße 😀", "Hello."))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT user, reply, typeof(user) FROM turns").fetchall() == [
        ("Grüße 😀", "Hello.", "text")
    ]
    connection.close()


def test_the_list_begins_with_the_one_used_last(store: Store, journal: Journal) -> None:  # T83
    first = talk(journal, said("first question"), said("and more"))
    second = journal_of(store, begin=2000)
    talk(second, said("second question"))
    assert [(one.id, one.title, one.n_turns) for one in store.list()] == [
        (2, "second question", 1),
        (1, "first question", 2),
    ]
    third = journal_of(store, begin=3000)
    third.continue_stored(store.load("1"))
    third.keep(first, ended=None)
    assert [one.id for one in store.list()] == [1, 2]
    assert store.load("last").id == 1
    assert [one.id for one in store.list(limit=1)] == [1]


@pytest.mark.parametrize("reference", ["2", "02", "taxes", "last", " 2 ", "2@3", "taxes@3", "last@3"])
def test_a_conversation_is_found_by_id_by_name_or_as_the_last(
    store: Store, journal: Journal, reference: str
) -> None:
    talk(journal, *TURNS[:1])
    talk(journal, *TURNS[:3])
    store.name(2, "taxes")
    stored = store.load(reference)
    assert (stored.id, stored.name, stored.conversation.branch) == (2, "taxes", "main")
    assert stored.conversation.turns == TURNS[:3]


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("12", "no conversation 12: `ts history` lists them"),
        ("0", "no conversation 0: `ts history` lists them"),
        ("9" * 400, f"no conversation {'9' * 400}: `ts history` lists them"),
        ("taxes", "no conversation taxes: `ts history` lists them"),
        ("\udcff", "no conversation \udcff: `ts history` lists them"),
        ("1@0", "no turn 0: conversation 1 has 5 turns: give 1@1 to 1@5"),
        ("last@6", "no turn 6: conversation 1 has 5 turns: give 1@1 to 1@5"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    store: Store, journal: Journal, reference: str, problem: str
) -> None:
    talk(journal, *TURNS)
    with pytest.raises(StoreError) as caught:
        store.load(reference)
    assert str(caught.value) == problem


def test_nothing_stored_is_an_empty_list_and_no_last(store: Store) -> None:
    assert store.list() == ()
    assert store.search("anything") == ()
    with pytest.raises(StoreError, match="no conversation is stored yet"):
        store.load("last")


def test_going_on_from_a_turn_leaves_what_came_after_where_it_is(
    store: Store, journal: Journal
) -> None:  # T83
    talk(journal, *TURNS, system="be brief")
    stored = store.load("1@3")
    assert (stored.conversation.branch, stored.conversation.turns) == ("from-3", TURNS[:3])
    assert len(stored.details) == 3
    conversation, journal = stored.conversation, journal_of(store, begin=2000)
    journal.continue_stored(stored)
    conversation.append(other := said("another way"))
    journal.keep(conversation, ended=ended(other))
    again = store.load("1").conversation
    assert again.branches == {"main": TURNS, "from-3": (*TURNS[:3], other)}
    assert again.branch == "from-3"
    assert store.load("1@3").conversation.branch == "from-3-2"  # the name is taken


def test_looking_at_a_turn_changes_nothing(store: Store, journal: Journal) -> None:
    talk(journal, *TURNS)
    before = store.list()
    store.load("1@3")
    assert list(store.load("1").conversation.branches) == ["main"]
    assert store.list() == before


def test_going_back_to_a_turn_goes_back_to_its_system_prompt(store: Store, journal: Journal) -> None:
    conversation = talk(journal, *TURNS[:2], system="be brief")
    conversation.system = "be long"
    conversation.append(TURNS[2])
    journal.keep(conversation, ended=ended(TURNS[2]))
    assert store.load("1").conversation.system == "be long"
    assert store.load("1@2").conversation.system == "be brief"


@pytest.mark.parametrize("name", ["taxes", "Steuern 2025", "naïve 😀", "a-b_c", "x" * 60])
def test_a_name_is_given_changed_and_taken_away(store: Store, journal: Journal, name: str) -> None:
    talk(journal, *TURNS)
    store.name(1, "before")
    store.name(1, name)
    store.name(1, name)
    assert store.load(name).name == store.list()[0].name == name
    store.name(1, None)
    assert store.list()[0].name is None
    with pytest.raises(StoreError):
        store.load(name)


@pytest.mark.parametrize(
    "name", ["", " ", "last", "12", "a@b", "a@1", "two\nlines", " lead", "x" * 61, "\udcff", "٣"]
)
def test_a_name_that_could_be_taken_for_something_else_is_refused(
    store: Store, journal: Journal, name: str
) -> None:
    talk(journal, *TURNS)
    with pytest.raises(UsageError):
        store.name(1, name)


def test_a_name_belongs_to_one_conversation(store: Store, journal: Journal) -> None:
    talk(journal, *TURNS)
    talk(journal, *TURNS)
    store.name(1, "taxes")
    with pytest.raises(UsageError, match="conversation 1 is called `taxes` already"):
        store.name(2, "taxes")


def test_only_what_is_there_can_be_named_or_deleted(store: Store) -> None:
    for change in (lambda: store.name(12, "taxes"), lambda: store.delete(12)):
        with pytest.raises(StoreError, match="no conversation 12: `ts history` lists them"):
            change()


def test_what_is_deleted_is_gone_from_the_file_and_its_id_is_not_used_again(
    path: Path, store: Store, journal: Journal
) -> None:
    talk(journal, *TURNS)
    conversation = talk(journal, said("a-secret-word"))
    conversation.branch_off("other")
    journal.keep(conversation, ended=None)
    store.delete(2)
    assert [one.id for one in store.list()] == [1]
    assert store.load("1").conversation.turns == TURNS
    assert store.search("a-secret-word") == ()
    files = [path, *path.parent.glob(f"{path.name}-*")]
    assert not any(b"a-secret-word" in file.read_bytes() for file in files)
    talk(journal, said("new"))
    assert store.list()[0].id == 3


def test_a_search_finds_messages_and_replies_whatever_their_case(store: Store, journal: Journal) -> None:
    talk(journal, said("Wo ist die Straße?", "Am Ende."), said("Danke.", "Die STRASSE ist lang."))
    hits = store.search("strasse")
    assert [(hit.id, hit.turn, hit.role, hit.reference) for hit in hits] == [
        (1, 2, "assistant", "1@2"),
        (1, 1, "user", "1@1"),
    ]
    assert [hit.snippet[hit.start : hit.end] for hit in hits] == ["STRASSE", "Straße"]
    assert {hit.title for hit in hits} == {"Wo ist die Straße?"}
    assert store.search("STRAßE") == hits


def test_the_newest_hits_come_first_and_no_more_than_were_asked_for(store: Store, journal: Journal) -> None:
    talk(journal, *TURNS)
    talk(journal, *TURNS)
    assert [hit.reference for hit in store.search("message", limit=6)] == [
        "2@5", "2@4", "2@3", "2@2", "2@1", "1@5",
    ]  # fmt: skip
    assert len(store.search("message", limit=100)) == 10
    assert store.search("message", limit=0) == ()


@pytest.mark.parametrize("wildcard", ["%", "_", "*", "a%c", "a_c", "[a]", "\\", "'"])
def test_a_wildcard_stands_for_itself(store: Store, journal: Journal, wildcard: str) -> None:
    talk(journal, said("abc"), said(f"x{wildcard}y"))
    assert [hit.turn for hit in store.search(wildcard)] == [2]


def test_a_blank_search_is_refused(store: Store) -> None:
    with pytest.raises(UsageError):
        store.search(" ")


def test_a_title_or_a_name_is_a_hit_where_nothing_else_is(store: Store, journal: Journal) -> None:
    talk(journal, said("two\nwords"))
    talk(journal, said("something"))
    store.name(2, "Taxes")
    (by_title,) = store.search("two words")
    assert (by_title.id, by_title.role, by_title.turn, by_title.reference) == (1, "title", None, "1")
    (by_name,) = store.search("TAXES")
    assert (by_name.id, by_name.role, by_name.snippet, by_name.title) == (2, "title", "Taxes", "something")
    assert [hit.role for hit in store.search("something")] == ["user"]


def test_a_hit_says_on_which_branch_it_is_and_refers_to_what_can_be_loaded(
    store: Store, journal: Journal
) -> None:
    conversation = talk(journal, said("shared"), said("on main"))
    conversation.branch_off("other")
    conversation.rewind(1)
    conversation.append(turn := said("elsewhere"))
    journal.keep(conversation, ended=ended(turn))
    places = [
        [(hit.branch, hit.turn, hit.reference) for hit in store.search(text)]
        for text in ("shared", "on main", "elsewhere")
    ]
    assert places == [[("other", 1, "1@1")], [("main", 2, "1@main")], [("other", 2, "1@2")]]
    there = store.load("1@main")
    assert (there.conversation.branch, there.conversation.turns[-1].user.content) == ("main", "on main")
    assert len(there.details) == 2
    with pytest.raises(StoreError, match="no branch none: conversation 1 has main, other"):
        store.load("1@none")


def test_what_was_undone_is_not_found(store: Store, journal: Journal) -> None:
    conversation = talk(journal, said("stays"), said("goes"))
    conversation.undo()
    journal.keep(conversation, ended=None)
    assert store.search("goes") == ()
    assert len(store.search("stays")) == 1


def test_turns_count_from_where_a_branch_begins_now(store: Store, journal: Journal) -> None:
    conversation = talk(journal, *TURNS)
    conversation.forget(2)
    journal.keep(conversation, ended=None)
    assert store.list()[0].n_turns == 3
    assert store.load("1").conversation.turns == TURNS[2:]
    assert [hit.turn for hit in store.search("message 3")] == [2]
    assert store.load("1@2").conversation.turns == TURNS[2:4]


def test_one_thread_keeps_while_another_reads(store: Store, journal: Journal) -> None:
    problems: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                store.search("word")
                for one in store.list():
                    assert len(store.load(str(one.id)).conversation.turns) >= one.n_turns
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        talk(journal, *map(numbered_turn, range(100)))
    finally:
        stop.set()
        reader.join()
    assert problems == []
    assert store.list()[0].n_turns == 100


def test_a_closed_store_is_an_error_in_words(store: Store, journal: Journal) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.list()
    with pytest.raises(StoreError, match="closed"):
        talk(journal, *TURNS[:1])


def test_every_branch_comes_back_under_its_own_system_prompt(store: Store, journal: Journal) -> None:
    conversation = talk(journal, said("one"), system="be kind")
    conversation.branch_off("side")
    conversation.system = "be brief"
    conversation.append(turn := said("two"))
    journal.keep(conversation, ended=ended(turn))
    conversation.system = "be loud"  # and nothing said under it yet
    journal.keep(conversation, ended=None)
    again = store.load("1").conversation
    assert dict(again.systems) == {"main": "be kind", "side": "be loud"}
    assert store.load("1@main").conversation.system == "be kind"
    assert store.load("1@1").conversation.system == "be kind"
