"""What was kept is there whatever becomes of the program, and programs do not get into each other's way."""

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import journal_nursery
import pytest
from journal_nursery import N_WORDS, change
from stored_turns import numbered_turn

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.conversation_rows import read_turns
from turbospark_chat.chat.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")

N_KILLS = 50
LONGEST_LIFE = 0.06  # seconds


class Nursery:
    """The process that has children, as the test sees it."""

    def __init__(self, path: Path) -> None:
        tests = str(Path(journal_nursery.__file__).parent)
        self._process = subprocess.Popen(
            [sys.executable, journal_nursery.__file__, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def ask(self, line: str) -> int:
        """Return the answer to one line."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n")
        return int(stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


@pytest.fixture
def nursery(path: Path) -> Iterator[Nursery]:
    nursery = Nursery(path)
    yield nursery
    nursery.close()


def conversation_after(number: int, n_kept: int) -> Conversation:
    """Return what a child had in memory when it had kept so many times."""
    conversation = Conversation()
    for index in range(n_kept):
        change(conversation, number, index)
    return conversation


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def all_turns(store: Store, conversation_id: int) -> list[Turn]:
    """Return every turn that is stored of a conversation, those that were tried again too."""
    with store.database.reading() as connection:
        return [stored.turn for stored in read_turns(connection, conversation_id).values()]


def test_a_program_killed_at_any_moment_leaves_every_turn_that_was_kept_and_no_half_one(
    path: Path, nursery: Nursery
) -> None:
    moments = random.Random(4)
    n_conversations = n_kept = 0
    for kill in range(N_KILLS):
        number = 1000 * kill
        reported = nursery.ask(f"kill {number} {moments.uniform(0, LONGEST_LIFE)}")
        if reported:
            check_integrity(path)
        with closing(Store.open(path)) as store:
            ids = [one.id for one in store.list()]
            if len(ids) == n_conversations:
                assert reported == 0
                continue
            n_conversations += 1
            assert len(ids) == n_conversations
            turns = all_turns(store, max(ids))
            assert len(turns) in (reported, reported + 1)  # kept, but killed before it could say so
            assert turns == [numbered_turn(number + index, n_words=N_WORDS) for index in range(len(turns))]
            expected, stored = conversation_after(number, len(turns)), store.load(str(max(ids))).conversation
            assert (stored.branch, stored.branches) == (expected.branch, expected.branches)
        n_kept += len(turns)
    assert n_kept > N_KILLS  # some were killed while they were at it


def test_programs_that_open_the_database_for_the_first_time_at_once_all_keep_their_turns(
    path: Path, nursery: Nursery
) -> None:
    assert nursery.ask("together 6") == 6
    check_integrity(path)
    with closing(Store.open(path)) as store:
        stored = [store.load(str(one.id)).conversation for one in store.list()]
    expected = [conversation_after(1000 * number, 5) for number in range(6)]
    in_order = sorted(stored, key=lambda conversation: conversation.turns[0].generated_ids)
    assert [one.branches for one in in_order] == [one.branches for one in expected]
