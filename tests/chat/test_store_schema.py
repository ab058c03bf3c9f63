"""The database's file: made for the user alone, recognised, brought up to date, and never lost by an error."""

import os
import re
import resource
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from stored_turns import ended, numbered_turn

from turbospark_chat.chat import store_schema
from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.errors import StoreError

N_WORDS = 300  # of a reply, so that a turn takes a few pages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def keep(store: Store, n_turns: int = 3) -> tuple[Journal, Conversation]:
    """Store a conversation."""
    journal, conversation = Journal(store, model_name="none"), Conversation()
    for number in range(n_turns):
        append(journal, conversation, number)
    return journal, conversation


def append(journal: Journal, conversation: Conversation, number: int) -> None:
    turn = numbered_turn(number, n_words=N_WORDS)
    conversation.append(turn)
    journal.keep(conversation, ended=ended(turn))


def stored_file(path: Path, n_turns: int = 3) -> bytes:
    """Return the content of a database with one conversation."""
    with closing(Store.open(path)) as store:
        keep(store, n_turns)
    return path.read_bytes()


def check_refused(path: Path, problem: str) -> None:
    """Check that opening the file is an error in one line that names it, and leaves it as it is."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert problem in message
    assert "\n" not in message
    assert path.read_bytes() == before


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777], ids=oct)
def test_files_are_for_the_user_alone_whatever_the_umask(path: Path, mask: int) -> None:
    with umask(mask), closing(Store.open(path)) as store:
        keep(store)
        modes = {
            file.name: stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())
        }
    files = (path.name, f"{path.name}-wal", f"{path.name}-shm")
    assert modes == {path.parent.name: 0o700, **dict.fromkeys(files, 0o600)}


def test_a_file_others_could_read_is_made_private_and_a_folder_that_was_there_is_left(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    path.parent.chmod(0o755)
    stored_file(path)
    path.chmod(0o644)
    Store.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_it_is_written_ahead_waited_for_and_distrusted(path: Path) -> None:
    with closing(Store.open(path)) as store, store.database.reading() as connection:
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "journal_mode",
                "synchronous",
                "busy_timeout",
                "foreign_keys",
                "cell_size_check",
                "secure_delete",
            )
        }
    full = 2
    assert settings == {
        "journal_mode": "wal", "synchronous": full, "busy_timeout": 10_000, "foreign_keys": 1,
        "cell_size_check": 1, "secure_delete": 1,
    }  # fmt: skip


def test_an_empty_file_is_a_new_one(path: Path) -> None:  # G12
    path.parent.mkdir()
    path.touch()
    with closing(Store.open(path)) as store:
        keep(store)
        assert len(store.list()) == 1


def test_an_empty_file_with_a_log_is_not_new(path: Path) -> None:
    with closing(Store.open(path)) as store:
        keep(store)
        log = path.with_name(f"{path.name}-wal")
        content = log.read_bytes()
    path.write_bytes(b"")
    log.write_bytes(content)
    check_refused(path, "it is empty, but conversations.db-wal is not")
    assert log.read_bytes() == content


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"messages": []}\n' * 1000)
    check_refused(path, "it is no database; move it away to begin a new one")


def test_a_cut_off_database_is_refused(path: Path) -> None:
    content = stored_file(path)
    path.write_bytes(content[:1000])
    check_refused(path, "damaged" if len(content) > 1000 else "")


def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    check_refused(path, "it is another program's database; move it away to begin a new one")


def test_a_newer_versions_database_is_refused(path: Path) -> None:
    stored_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    check_refused(path, "a newer turbospark_chat wrote it (version 99, this one knows 1); upgrade this one")


def test_an_older_database_is_brought_up_to_date_one_step_a_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_file(path)
    later = (
        ("ALTER TABLE conversations ADD COLUMN colour TEXT",),
        ("UPDATE conversations SET colour = 'red'", "CREATE TABLE notes (text TEXT)"),
    )
    monkeypatch.setattr(store_schema, "STEPS", (*store_schema.STEPS, *later))
    for _ in range(2):  # the second time there is nothing to do
        with closing(Store.open(path)) as store:
            with store.database.reading() as connection:
                assert connection.execute("SELECT colour FROM conversations").fetchone()[0] == "red"
                assert connection.execute("PRAGMA user_version").fetchone()[0] == 3
            assert len(store.load("1").conversation.turns) == 3


def test_a_step_that_fails_leaves_the_older_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored_file(path)
    steps = store_schema.STEPS
    monkeypatch.setattr(
        store_schema, "STEPS", (*steps, ("CREATE TABLE notes (text TEXT)", "UPDATE missing SET a = 1"))
    )
    with pytest.raises(StoreError, match="no such table: missing"):
        Store.open(path)
    assert path.read_bytes() == before
    monkeypatch.setattr(store_schema, "STEPS", steps)
    with closing(Store.open(path)) as store:
        assert len(store.load("1").conversation.turns) == 3


def read_all(store: Store) -> None:
    store.list()
    store.search("word")
    store.load("1")


@pytest.mark.parametrize("filler", [b"\xff", b"\0", b"\x0d"], ids=["ones", "zeros", "a plausible first byte"])
def test_an_overwritten_page_is_an_error_in_words_and_the_file_stays(path: Path, filler: bytes) -> None:
    content = stored_file(path, n_turns=30)
    page_size = 4096
    n_refused = 0
    for page in range(len(content) // page_size):
        start = page * page_size
        damaged = content[:start] + filler * page_size + content[start + page_size :]
        path.write_bytes(damaged)
        try:
            with closing(Store.open(path)) as store:
                read_all(store)
        except StoreError as error:
            n_refused += 1
            assert re.fullmatch(re.escape(f"{path}: ") + r"[^\n]+", str(error))
            assert "damaged" in str(error) or "no database" in str(error) or "another program" in str(error)
        assert path.read_bytes() == damaged
    assert n_refused > len(content) // page_size / 4  # the rest is text, or an index nobody asked


def test_a_row_no_turn_was_stored_as_is_damage(path: Path) -> None:
    for column, value in (
        ("generated_ids", b"123"),
        ("settings", "{"),
        ("user_role", "robot"),
        ("seed", "x"),
    ):
        stored_file(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE turns SET {column} = ?", (value,))
        with closing(Store.open(path)) as store, pytest.raises(StoreError, match="the database is damaged"):
            store.load("last")


def test_a_full_database_keeps_what_it_has_and_the_rest_once_there_is_room(path: Path) -> None:
    with closing(Store.open(path)) as store:
        journal, conversation = keep(store)
        with store.database.reading() as connection:
            n_pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {n_pages}")
        for number in (3, 4):
            with pytest.raises(StoreError, match="the disk is full; free some space"):
                append(journal, conversation, number)
        assert store.load("1").conversation.turns == conversation.turns[:3]
        with store.database.reading() as connection:
            connection.execute("PRAGMA max_page_count = 1000000")
        append(journal, conversation, 5)
        stored = store.load("1")
    assert stored.conversation.turns == conversation.turns
    assert len(stored.details) == 6
    assert all(details.new_tokens is not None for details in stored.details)  # of those that failed too


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_grow_keeps_what_it_has_and_the_rest_once_it_can(path: Path) -> None:
    with closing(Store.open(path)) as store:
        journal, conversation = keep(store)
        log = path.with_name(f"{path.name}-wal")
        with file_size_limit(log.stat().st_size + 6000), pytest.raises(StoreError, match="a quota is full"):
            append(journal, conversation, 3)
        assert store.load("1").conversation.turns == conversation.turns[:3]
        append(journal, conversation, 4)
    with closing(Store.open(path)) as store:
        assert store.load("1").conversation.turns == conversation.turns


def test_a_database_that_cannot_be_made_leaves_nothing_that_is_in_the_way_later(path: Path) -> None:
    with file_size_limit(1000), pytest.raises(StoreError, match="a quota is full"):
        Store.open(path)
    with closing(Store.open(path)) as store:
        keep(store)
        assert len(store.list()) == 1


def folder_in_the_way(path: Path) -> None:
    path.mkdir(parents=True)


def file_in_place_of_the_folder(path: Path) -> None:
    path.parent.touch()


@pytest.mark.parametrize("put", [folder_in_the_way, file_in_place_of_the_folder])
def test_what_is_in_the_way_is_named(path: Path, put: Callable[[Path], None]) -> None:
    put(path)
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    assert str(path.parent) in str(caught.value)
    assert "yours to write?" in str(caught.value)


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """Return a folder below none that others may not read, as pytest's own is."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in Path(folder).iterdir():
            path.chmod(0o700)


@pytest.mark.parametrize("is_there", [True, False], ids=["stored before", "new"])
def test_a_folder_that_cannot_be_written_is_named(
    is_there: bool, readable_folder: Path, request: pytest.FixtureRequest
) -> None:
    path = readable_folder / "data" / "conversations.db"
    path.parent.mkdir()
    if is_there:
        stored_file(path)
        path.chmod(0o444)
    path.parent.chmod(0o555)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(StoreError, match="yours to write?") as caught:
        Store.open(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_program_that_writes_too_long_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_schema, "WAIT_SECONDS", 0)
    with closing(Store.open(path)) as store, closing(sqlite3.connect(path)) as other:
        journal, conversation = keep(store)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another program has kept it busy"):
            append(journal, conversation, 3)
        read_all(store)  # a reader does not wait for a writer
        other.execute("ROLLBACK")
        append(journal, conversation, 4)
        assert store.load("1").conversation.turns == conversation.turns
