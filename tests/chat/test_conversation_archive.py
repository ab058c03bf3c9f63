"""What a chat under way stores, and what it does not."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from command_context import archive_in
from scripted_chat import make_session, send

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.transcript_file import write_transcript
from turbospark_chat.errors import ModelWarning, StoreError, UsageError


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[ConversationArchive]:
    archive = archive_in(tmp_path)
    yield archive
    archive.close()


def said(*messages: str) -> ChatSession:
    session = make_session(*("so it is" for _ in range(9)))
    for message in messages:
        send(session, message)
    return session


def stored(archive: ConversationArchive) -> list[tuple[str, int]]:
    return [(one.title, one.n_turns) for one in archive.list()]


def test_the_store_is_opened_when_it_is_first_needed(tmp_path: Path) -> None:
    opened: list[Store] = []

    def open_store() -> Store:
        opened.append(Store.open(tmp_path / "conversations.db"))
        return opened[-1]

    archive = ConversationArchive(open_store)
    archive.transcript(said("a"))
    archive.close()
    assert opened == []
    archive.keep(said())
    archive.list()
    assert len(opened) == 1
    archive.close()


def test_a_store_that_cannot_be_opened_leaves_the_session_as_it_was() -> None:
    def fail() -> Store:
        raise StoreError("no such disk")

    archive, session = ConversationArchive(fail), said("a")
    for store in (archive.keep, lambda session: archive.save(session, None)):
        with pytest.raises(StoreError, match="no such disk"):
            store(session)
        assert session.journal is None


def test_what_is_kept_is_stored_turn_by_turn(archive: ConversationArchive) -> None:
    session = said()
    archive.keep(session)
    assert (archive.conversation_id, stored(archive)) == (None, [])
    send(session, "a")
    send(session, "b")
    assert (archive.conversation_id, stored(archive)) == (1, [("a", 2)])


def test_without_keeping_only_what_was_saved_is_stored_with_its_further_turns(
    archive: ConversationArchive,
) -> None:
    session = said("a")
    assert stored(archive) == []
    assert archive.save(session, None) == 1
    send(session, "b")
    assert stored(archive) == [("a", 2)]
    session.clear()
    send(session, "a secret")
    assert (session.journal, archive.conversation_id, stored(archive)) == (None, None, [("a", 2)])
    assert archive.save(session, "told") == 2
    assert stored(archive) == [("a secret", 1), ("a", 2)]


@pytest.mark.parametrize("source", ["1", "{folder}/a.md", "{folder}/a.JSON"])
def test_without_keeping_what_is_loaded_is_not_added_to(
    archive: ConversationArchive, tmp_path: Path, source: str
) -> None:
    session = said("a")
    archive.save(session, None)
    for name in ("a.md", "a.JSON"):
        write_transcript(tmp_path / name, archive.transcript(session))
    other = ConversationArchive(lambda: Store.open(tmp_path / "conversations.db"))
    session = said("b")
    other.save(session, None)
    other.open(session, other.read(source.format(folder=tmp_path)))
    assert other.conversation_id is None
    send(session, "a secret")
    assert len(session.conversation.turns) == 2
    assert stored(other) == [("b", 1), ("a", 1)]
    other.close()


@pytest.mark.parametrize("name", ["last", "7", "a@1", "", "taken"])
def test_a_name_that_cannot_be_given_stores_nothing(archive: ConversationArchive, name: str) -> None:
    archive.save(said("a"), "taken")
    session = said("b")
    other = ConversationArchive(archive._opened)
    with pytest.raises(UsageError):
        other.save(session, name)
    assert (stored(other), session.journal) == ([("a", 1)], None)


def test_a_conversation_may_be_saved_again_under_its_own_name_or_another(
    archive: ConversationArchive,
) -> None:
    session = said("a")
    for name in ("mine", "mine", "yours", None):
        assert archive.save(session, name) == 1
    assert [one.name for one in archive.list()] == ["yours"]


def test_a_transcript_has_the_settings_and_timings_that_are_stored(archive: ConversationArchive) -> None:
    session = said()
    archive.keep(session)
    session.set_option("seed", "7")
    send(session, "a")
    archive.save(session, "mine")
    transcript = archive.transcript(session)
    assert (transcript.title, transcript.model) == ("mine", "tiny")
    assert transcript.turns[0].details["seed"] == 7
    assert transcript.turns[0].details["arithmetic"] == "scripted"


def test_a_transcript_of_what_is_not_stored_has_what_was_said(archive: ConversationArchive) -> None:
    transcript = archive.transcript(said("first\x1b line\nmore"))
    assert transcript.title == "first line more"
    assert [turn.details for turn in transcript.turns] == [{}]
    assert archive.transcript(said()).title == ""


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_transcripts_time_is_of_this_place(archive: ConversationArchive, is_stored: bool) -> None:
    session = said("a")
    if is_stored:
        archive.save(session, None)
    created = archive.transcript(session).created
    assert created is not None and created.utcoffset() == datetime.now().astimezone().utcoffset()
    assert abs(datetime.now().astimezone() - created) < timedelta(minutes=1)


def test_a_turn_that_could_not_be_stored_gets_no_other_turns_details(
    archive: ConversationArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = said()
    archive.keep(session)
    send(session, "a")

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Journal, "keep", fail)
    with pytest.raises(StoreError):
        session.undo()
    send(session, "b")
    (turn,) = archive.transcript(session).turns
    assert (turn.user.content, turn.details) == ("b", {})


def test_a_transcript_can_be_had_where_the_store_has_lost_the_conversation(
    archive: ConversationArchive,
) -> None:
    session = said("a")
    archive._opened().delete(archive.save(session, None))
    assert [turn.user.content for turn in archive.transcript(session).turns] == ["a"]


def test_another_model_is_stored_with_the_turns_it_answers(archive: ConversationArchive) -> None:
    session = said()
    archive.keep(session)
    send(session, "a")
    archive.name_model("other", "elsewhere")
    send(session, "b")
    loaded = archive.read("last").stored
    assert loaded is not None
    assert [(turn.model, turn.arithmetic) for turn in loaded.details] == [
        ("tiny", "scripted"),
        ("other", "elsewhere"),
    ]


def go_on_elsewhere(folder: Path) -> None:
    """Have another program take a turn in conversation 1."""
    archive, session = archive_in(folder), said()
    archive.keep(session)
    archive.open(session, archive.read("1"))
    send(session, "elsewhere")
    archive.close()


def test_saving_what_another_program_has_gone_on_with_tells_so(
    archive: ConversationArchive, tmp_path: Path
) -> None:
    session = said("a")
    archive.save(session, None)
    session.journal = None
    send(session, "b")
    go_on_elsewhere(tmp_path)
    with pytest.warns(ModelWarning, match="yours is stored as branch main-2"):
        archive.save(session, None)


def test_so_does_storing_it_at_the_end(archive: ConversationArchive, tmp_path: Path) -> None:
    session = said()
    archive.keep(session)
    send(session, "a")
    go_on_elsewhere(tmp_path)
    with archive._opened().database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    send(session, "b")
    with archive._opened().database.reading() as connection:
        connection.execute("PRAGMA query_only = OFF")
    with pytest.warns(ModelWarning, match="yours is stored as branch main-2"):
        archive.catch_up(session.conversation)


def test_what_a_full_disk_kept_out_is_stored_at_the_end_if_there_is_room_then(
    archive: ConversationArchive,
) -> None:
    session = make_session("so it is", "so it is", context_length=200_000)
    archive.keep(session)
    send(session, "a")
    database = archive._opened().database
    with database.reading() as connection:
        n_pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {n_pages}")
    send(session, "b" * 100_000)
    assert stored(archive) == [("a", 1)]
    with pytest.raises(StoreError, match="the disk is full"):
        archive.catch_up(session.conversation)
    with database.reading() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    archive.catch_up(session.conversation)
    assert stored(archive) == [("a", 2)]
