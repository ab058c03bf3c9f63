"""A journal stores every turn once, as it ends, and then only moves the ends of branches."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from chat_templates import CHATML
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import hash_chat
from stored_turns import ended, numbered_turn, said

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.conversation_rows import read_turns
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import TurnDetails
from turbospark_chat.chat.turn_result import StoredApart
from turbospark_chat.errors import StoreError

TURNS = tuple(map(numbered_turn, range(4)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(tmp_path / "conversations.db")) as store:
        yield store


def journal_of(store: Store) -> Journal:
    ticks = count(1000)
    return Journal(store, model_name="smollm2", arithmetic="compiled", clock=lambda: float(next(ticks)))


@pytest.fixture
def journal(store: Store) -> Journal:
    return journal_of(store)


def say(journal: Journal, conversation: Conversation, *turns: Turn) -> list[StoredApart]:
    told: list[StoredApart] = []
    for turn in turns:
        conversation.append(turn)
        told += journal.keep(conversation, ended=ended(turn))
    return told


def all_turns(store: Store, conversation_id: int = 1) -> list[Turn]:
    """Return every turn that is stored, on a branch or not, in the order in which they were."""
    with store.database.reading() as connection:
        return [stored.turn for stored in read_turns(connection, conversation_id).values()]


def test_a_conversation_begins_with_its_first_turn(store: Store, journal: Journal) -> None:
    conversation = Conversation(system="be brief")
    journal.keep(conversation, ended=None)
    assert (journal.conversation_id, store.list()) == (None, ())
    say(journal, conversation, TURNS[0])
    assert journal.conversation_id == store.list()[0].id == 1


def test_a_turn_is_stored_with_how_it_came_about(store: Store, journal: Journal) -> None:
    options = OPTIONS["stop"].change(OPTIONS["seed"].change(ChatOptions(), str(2**70)), '"\ud83d" "\\n"')
    conversation = Conversation(system="be brief")
    conversation.append(TURNS[0])
    journal.keep(conversation, ended=ended(TURNS[0], options))
    (details,) = store.load("1").details
    assert details == TurnDetails(
        ended=1000.0, system="be brief", model="smollm2", arithmetic="compiled",
        settings={name: option.show(options) for name, option in OPTIONS.items()}, seed=2**70,
        reason="end_of_turn", prompt_tokens=12, reused_prefix_tokens=5, prefilled_tokens=7, new_tokens=3,
        prefill_seconds=0.25, decode_seconds=0.5,
    )  # fmt: skip
    assert OPTIONS["seed"].change(ChatOptions(), details.settings["seed"]).completion.sampling.seed == 2**70


def test_each_turn_keeps_the_system_prompt_the_model_and_the_settings_it_had(
    store: Store, journal: Journal
) -> None:
    conversation = Conversation(system="be brief")
    say(journal, conversation, TURNS[0])
    conversation.system = None
    journal.model_name, journal.arithmetic = "qwen3", ""
    conversation.append(TURNS[1])
    hot = OPTIONS["temperature"].change(ChatOptions(), "1.5")
    journal.keep(conversation, ended=ended(TURNS[1], hot))
    stored = store.load("1")
    assert [(one.system, one.model, one.arithmetic) for one in stored.details] == [
        ("be brief", "smollm2", "compiled"),
        (None, "qwen3", None),
    ]
    assert [one.settings["temperature"] for one in stored.details] == ["0.7", "1.5"]
    assert (stored.model, stored.conversation.system) == ("qwen3", None)


def test_only_what_is_known_of_a_turn_is_told(store: Store, journal: Journal) -> None:
    conversation = Conversation(turns=TURNS[:1])  # read from a file, say
    journal.keep(conversation, ended=None)
    assert store.load("1").details[0].known() == {"ended": 1000.0}
    say(journal, conversation, TURNS[1])
    known = store.load("1").details[1].known()
    assert known.keys() >= {"ended", "model", "settings", "reason", "new_tokens"}
    assert known.keys() & {"system", "seed"} == set()


def test_a_retry_keeps_the_reply_before(store: Store, journal: Journal) -> None:
    conversation = Conversation()
    say(journal, conversation, *TURNS[:2])
    again = said(TURNS[1].user.content, "another reply")
    conversation.replace_last(again)
    journal.keep(conversation, ended=ended(again))
    assert all_turns(store) == [*TURNS[:2], again]
    assert store.load("1").conversation.turns == (TURNS[0], again)


def test_a_retry_in_the_same_words_is_a_turn_of_its_own(store: Store, journal: Journal) -> None:
    conversation = Conversation()
    say(journal, conversation, TURNS[0])
    again = numbered_turn(0)
    conversation.replace_last(again)
    journal.keep(conversation, ended=ended(again))
    assert all_turns(store) == [TURNS[0]] * 2
    assert store.load("1").details[0].ended == 1001.0


def test_turns_after_a_new_beginning_are_another_conversation(store: Store, journal: Journal) -> None:
    conversation = Conversation()
    say(journal, conversation, TURNS[0])
    conversation.clear()
    journal.begin_anew()
    assert journal.conversation_id is None
    say(journal, conversation, TURNS[1])
    assert [store.load(reference).conversation.turns for reference in ("1", "2")] == [TURNS[:1], TURNS[1:2]]


def re_said(turn: Turn) -> Turn:
    """Return a turn as another tokenizer spells it."""
    return replace(turn, generated_ids=(*turn.generated_ids, 99))


@pytest.mark.parametrize("as_restored", [lambda turn: turn, re_said], ids=["as stored", "with other ids"])
@pytest.mark.parametrize("reference", ["1", "1@2"])
def test_going_on_with_a_stored_conversation_stores_only_what_is_new(
    store: Store, journal: Journal, reference: str, as_restored: Callable[[Turn], Turn]
) -> None:
    before = Conversation()
    say(journal, before, *TURNS)
    before.branch_off("other")
    before.forget(1)
    journal.keep(before, ended=None)
    stored = store.load(reference)
    loaded = stored.conversation
    later = journal_of(store)
    later.continue_stored(stored)
    restored = Conversation(
        branch=loaded.branch,
        branches={name: tuple(map(as_restored, turns)) for name, turns in loaded.branches.items()},
    )
    later.keep(restored, ended=None)
    assert all_turns(store) == list(TURNS)
    say(later, restored, new := said("new"))
    assert all_turns(store) == [*TURNS, new]
    said_now = store.load("1").conversation
    assert said_now.branches == {**loaded.branches, loaded.branch: (*loaded.turns, new)}


def test_another_models_ids_change_nothing_that_is_stored(store: Store, journal: Journal) -> None:
    conversation = Conversation()
    say(journal, conversation, *TURNS)
    for _ in range(2):
        conversation = Conversation(turns=map(re_said, conversation.turns))
        journal.keep(conversation, ended=None)
    say(journal, conversation, new := said("new"))
    assert all_turns(store) == [*TURNS, new]


def failing(journal: Journal, conversation: Conversation, store: Store) -> None:
    """Have the journal keep the conversation where nothing can be written."""
    with store.database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError):
            journal.keep(conversation, ended=None)
        connection.execute("PRAGMA query_only = OFF")


def test_turns_that_another_model_spells_are_known_where_others_were_forgotten_meanwhile(
    store: Store, journal: Journal
) -> None:
    conversation = Conversation()
    say(journal, conversation, *TURNS)
    conversation.forget(1)
    failing(journal, conversation, store)
    conversation = Conversation(turns=map(re_said, conversation.turns))
    journal.keep(conversation, ended=None)
    assert all_turns(store) == list(TURNS)
    assert store.load("1").conversation.turns == TURNS[1:]


def test_a_turn_is_stored_once_where_one_branch_has_forgotten_what_another_still_has(
    store: Store, journal: Journal
) -> None:
    conversation = Conversation(turns=TURNS)  # read from a file, say
    conversation.branch_off("other")
    conversation.switch("main")
    conversation.forget(2)
    journal.keep(conversation, ended=None)
    assert all_turns(store) == list(TURNS)
    assert store.load("1").conversation.branches == {"main": TURNS[2:], "other": TURNS}


def test_two_programs_that_go_on_with_one_conversation_have_a_branch_each(
    store: Store, journal: Journal
) -> None:
    mine = Conversation()
    say(journal, mine, TURNS[0])
    other_journal, stored = journal_of(store), store.load("1")
    other_journal.continue_stored(stored)
    theirs = stored.conversation
    told: dict[str, list[StoredApart]] = {"mine": [], "theirs": []}
    for number in range(3):
        told["mine"] += say(journal, mine, said(f"mine {number}"))
        told["theirs"] += say(other_journal, theirs, said(f"theirs {number}"))
    assert told == {"mine": [], "theirs": [StoredApart("main", "main-2")]}  # once, to who came later
    assert (mine.branch, theirs.branch) == ("main", "main")
    both = store.load("1").conversation
    assert both.branches == {"main": mine.turns, "main-2": theirs.turns}
    assert both.branch == "main-2"  # of who spoke last


def test_that_a_branch_is_stored_apart_is_told_by_the_change_that_was_stored(
    store: Store, journal: Journal
) -> None:
    mine = Conversation()
    say(journal, mine, *TURNS[:2])
    other_journal, stored = journal_of(store), store.load("1")
    other_journal.continue_stored(stored)
    theirs = stored.conversation
    theirs.branch_off("b")
    assert other_journal.keep(theirs, ended=None) == ()  # a new branch that nobody else has
    theirs.switch("main")
    assert other_journal.keep(theirs, ended=None) == ()
    say(journal, mine, TURNS[2])
    theirs.undo()
    failing(other_journal, theirs, store)
    assert other_journal.keep(theirs, ended=None) == (StoredApart("main", "main-2"),)
    assert store.load("1@main-2").conversation.turns == TURNS[:1]


def test_a_branch_named_as_the_store_named_another_one_is_not_mixed_up_with_it(
    store: Store, journal: Journal
) -> None:
    mine = Conversation()
    say(journal, mine, TURNS[0])
    other_journal, stored = journal_of(store), store.load("1")
    other_journal.continue_stored(stored)
    theirs = stored.conversation
    say(journal, mine, TURNS[1])
    theirs.append(said("theirs"))  # in the store this is on main-2
    theirs.branch_off("main-2")
    say(other_journal, theirs, said("further"))
    assert store.load("1").conversation.branches == {
        "main": mine.turns,
        "main-2": theirs.branches["main"],
        "main-2-2": theirs.turns,
    }


def test_a_conversation_that_another_program_deleted_is_stored_again_whole(
    store: Store, journal: Journal
) -> None:
    conversation = Conversation()
    say(journal, conversation, *TURNS[:2])
    conversation.branch_off("other")
    store.delete(1)
    say(journal, conversation, TURNS[2])
    assert journal.conversation_id == 2
    stored = store.load("2")
    assert stored.conversation.branches == {"main": TURNS[:2], "other": TURNS[:3]}
    assert [details.ended for details in stored.details] == [1000, 1001, 1002]


def test_a_deleted_conversation_that_was_emptied_stays_deleted(store: Store, journal: Journal) -> None:
    conversation = Conversation()
    say(journal, conversation, TURNS[0])
    store.delete(1)
    conversation.undo()
    journal.keep(conversation, ended=None)
    assert (journal.conversation_id, store.list()) == (None, ())
    say(journal, conversation, TURNS[1])
    assert store.load("2").conversation.turns == TURNS[1:2]


def test_a_chat_is_stored_as_it_goes_and_goes_on_where_it_was_left(store: Store, journal: Journal) -> None:
    chat = hash_chat(CHATML, system="be brief")
    session = chat.session
    session.journal = journal
    chat.say("first")
    assert store.load("last").conversation.turns == session.conversation.turns
    chat.say("second")
    chat.retry()
    session.branch_off("other")
    session.undo()
    chat.say("instead")
    session.set_system("be long")
    stored = store.load("last")
    assert stored.conversation.branches == session.conversation.branches
    assert (stored.conversation.branch, stored.conversation.system) == ("other", "be long")
    assert len(all_turns(store)) == 4

    later, later_journal = hash_chat(CHATML), journal_of(store)
    later_journal.continue_stored(stored)
    later.session.journal = later_journal
    later.session.restore(stored.conversation)
    later.say("third")
    assert store.load("1").conversation.branches == later.session.conversation.branches
    assert len(all_turns(store)) == 5


class Chat:
    """A conversation, its journal, and everything that was ever said in it."""

    def __init__(self, store: Store) -> None:
        self.store, self.journal = store, journal_of(store)
        self.conversation = Conversation()
        self.said: list[Turn] = []
        self._numbers = count()

    def speak(self, *, again: bool = False) -> Turn:
        turn = said(f"message {next(self._numbers) % 3}")  # the same words come back now and then
        self.said.append(turn)
        (self.conversation.replace_last if again else self.conversation.append)(turn)
        return turn

    def change(self, what: str, amount: int) -> Turn | None:
        """Make a change; return the turn that ended with it, if one did."""
        conversation = self.conversation
        n_turns = len(conversation.turns)
        match what:
            case "retry" if n_turns:
                return self.speak(again=True)
            case "undo":
                conversation.undo(min(amount, n_turns))
            case "forget":
                conversation.forget(min(amount, n_turns))
            case "branch":
                conversation.branch_off(f"branch {len(conversation.branches)}")
            case "switch":
                conversation.switch(sorted(conversation.branches)[amount % len(conversation.branches)])
            case "system":
                conversation.system = f"system {amount}"
            case "reload" if self.journal.conversation_id is not None:
                stored = self.store.load(str(self.journal.conversation_id))
                self.conversation, self.journal = stored.conversation, journal_of(self.store)
                self.journal.continue_stored(stored)
            case "other tokenizer":
                branches = {name: map(re_said, turns) for name, turns in conversation.branches.items()}
                self.conversation = Conversation(
                    system=conversation.system, branch=conversation.branch, branches=branches
                )
            case _:
                return self.speak()
        return None


CHANGES = ("speak", "retry", "undo", "forget", "branch", "switch", "system", "reload", "other tokenizer")


def words(turns: tuple[Turn, ...] | list[Turn]) -> list[tuple[str, str]]:
    return [(turn.user.content, turn.reply.content) for turn in turns]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3), st.booleans()), max_size=25))
def test_whatever_is_done_the_store_has_the_conversation_as_it_is_and_every_turn_there_ever_was(
    steps: list[tuple[str, int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Store.open(Path(folder) / "db")) as store:
        chat, is_behind = Chat(store), False
        for what, amount, fails in steps:
            if what == "reload" and is_behind:
                continue  # it could not be told any more what failed to be kept, as when a program ends
            turn = chat.change(what, amount)
            now_ended = None if turn is None else ended(turn)
            is_behind = fails
            if fails:
                with store.database.writing() as connection:
                    connection.execute("PRAGMA query_only = ON")
                is_empty = not any(chat.conversation.branches.values())
                is_stored = chat.journal.conversation_id is not None
                with nullcontext() if is_empty and not is_stored else pytest.raises(StoreError):
                    chat.journal.keep(chat.conversation, ended=now_ended)
                with store.database.reading() as connection:
                    connection.execute("PRAGMA query_only = OFF")
                continue
            chat.journal.keep(chat.conversation, ended=now_ended)
            if chat.journal.conversation_id is None:
                assert not any(chat.conversation.branches.values())
                continue
            stored = store.load("last").conversation
            assert {name: words(turns) for name, turns in stored.branches.items()} == {
                name: words(turns) for name, turns in chat.conversation.branches.items()
            }
            assert (stored.branch, stored.system) == (chat.conversation.branch, chat.conversation.system)
            assert words(all_turns(store)) == words(chat.said)
