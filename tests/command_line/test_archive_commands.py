"""`ts history`, `ts search` and `ts export`, run in this process over a database with conversations in it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_turns import ended, said

from turbospark_chat import cli
from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.transcript_file import FORMS, read_transcript
from turbospark_chat.settings import Locations

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stored() -> None:
    """Store two conversations: of cats, with two turns, and of dogs."""
    store = Store.open(Locations.of_user().conversations)
    for questions in (["Why do cats purr?", "And lions?"], ["Why do dogs bark?"]):
        journal, conversation = Journal(store, model_name="tiny"), Conversation()
        for question in questions:
            turn = said(question, f"About: {question}")
            conversation.append(turn)
            journal.keep(conversation, ended=ended(turn))
    store.close()


def test_history_lists_what_was_used_last_first(ts: Run, stored: None) -> None:
    code, out, err = ts("history")
    assert (code, err) == (0, "")
    dogs, cats = out.splitlines()
    assert dogs.startswith("2 ") and "1 turn " in dogs and "Why do dogs bark?" in dogs
    assert cats.startswith("1 ") and "2 turns" in cats and "tiny" in cats


def test_history_as_json_is_an_object_a_conversation(ts: Run, stored: None) -> None:
    code, out, err = ts("history", "--json")
    assert (code, err) == (0, "")
    dogs, cats = map(json.loads, out.splitlines())
    assert (dogs["id"], dogs["n_turns"], cats["id"], cats["n_turns"]) == (2, 1, 1, 2)
    assert cats["model"] == "tiny" and "T" in cats["used"]


def test_history_deletes_one(ts: Run, stored: None) -> None:
    assert ts("history", "--delete", "1") == (0, "", "")
    assert ts("history")[1].count("\n") == 1
    code, out, err = ts("history", "--delete", "1")
    assert (code, out) == (1, "") and err.startswith("error: no conversation 1") and err.count("\n") == 1


def test_where_nothing_is_stored_it_says_so_on_stderr(ts: Run) -> None:
    assert ts("history") == (0, "", "no conversation is stored yet\n")
    assert ts("history", "--json") == (0, "", "")
    assert ts("search", "cats") == (0, "", "nothing stored contains 'cats'\n")
    code, out, err = ts("export", "last")
    assert (code, out) == (1, "") and err.count("\n") == 1


def test_search_names_what_can_be_resumed(ts: Run, stored: None) -> None:
    code, out, err = ts("search", "LIONS")
    assert (code, err) == (0, "")
    references = {line.split()[0] for line in out.splitlines()}
    assert references == {"1@2"}
    hits = [json.loads(line) for line in ts("search", "lions", "--json")[1].splitlines()]
    assert {(hit["id"], hit["turn"]) for hit in hits} == {(1, 2)}
    assert {hit["snippet"][hit["start"] : hit["end"]] for hit in hits} == {"lions"}
    assert ts("search", " ")[0] == 2


@pytest.mark.parametrize(
    ("reference", "questions"),
    [
        ("last", ["Why do dogs bark?"]),
        ("1", ["Why do cats purr?", "And lions?"]),
        ("1@1", ["Why do cats purr?"]),
    ],
)
def test_export_writes_the_conversation_that_is_meant(
    ts: Run, stored: None, tmp_path: Path, reference: str, questions: list[str]
) -> None:
    assert ts("export", reference, tmp_path / "chat.json") == (0, "", "")
    transcript = read_transcript(tmp_path / "chat.json")
    assert [turn.user.content for turn in transcript.turns] == questions
    assert transcript.model == "tiny" and transcript.created is not None
    assert transcript.turns[0].details["prompt_tokens"] == 12


def test_export_is_markdown_on_stdout_unless_another_form_is_asked_for(ts: Run, stored: None) -> None:
    code, out, err = ts("export", "1")
    assert (code, err) == (0, "") and "\n# Why do cats purr?\n" in out
    assert json.loads(ts("export", "1", "--form", "json")[1])
    assert ts("export", "1", "--form", "html")[1].startswith("<!")


CONTROLS = "\x1b[2J\x07\x9b31m\u202e"


@pytest.fixture
def stored_controls() -> None:
    """Store a conversation in which everything is of cats and would drive a terminal."""
    store = Store.open(Locations.of_user().conversations)
    turn = said(f"cats {CONTROLS} purr", f"cats {CONTROLS} lie")
    Journal(store, model_name=f"tiny {CONTROLS}").keep(Conversation(turns=[turn]), ended=ended(turn))
    store.name(1, "cats \u202e")
    store.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("history",),
        ("history", "--json"),
        ("search", "cats"),
        ("search", "cats", "--json"),
        *(("export", "1", "--form", form) for form in FORMS),
    ],
    ids=" ".join,
)
def test_a_terminal_is_shown_nothing_that_it_would_obey(
    ts: Run, stored_controls: None, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, err = ts(*arguments)
    assert (code, err) == (0, "") and "cats" in out
    own_styles = re.compile(r"\x1b\[[0-9;]*m")
    assert [letter for letter in own_styles.sub("", out) if not letter.isprintable() and letter != "\n"] == []


@pytest.mark.parametrize("form", ["md", "json"])
def test_a_file_and_a_pipe_keep_the_text_whole(
    ts: Run, stored_controls: None, tmp_path: Path, form: str
) -> None:
    path, piped = tmp_path / f"chat.{form}", tmp_path / f"piped.{form}"
    assert ts("export", "1", path) == (0, "", "")
    piped.write_bytes(ts("export", "1", "--form", form)[1].encode())
    assert piped.read_bytes() == path.read_bytes()
    (turn,) = read_transcript(path).turns
    assert (turn.user.content, turn.reply.content) == (f"cats {CONTROLS} purr", f"cats {CONTROLS} lie")


def test_objects_on_a_terminal_say_everything(
    ts: Run, stored_controls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (listed,) = map(json.loads, ts("history", "--json")[1].splitlines())
    assert (listed["model"], listed["name"]) == (f"tiny {CONTROLS}", "cats \u202e")


def test_export_replaces_no_file_unless_forced_and_takes_the_form_over_the_ending(
    ts: Run, stored: None, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    for form in ((), ("--form", "md")):
        code, out, err = ts("export", "1", path, *form)
        assert (code, out, err.count("\n"), path.read_text()) == (2, "", 1, "mine")
    assert ts("export", "1", path, "--form", "md", "--force") == (0, "", "")
    assert "Why do cats purr?" in path.read_text()
    code, _, err = ts("export", "1", "--form", "pdf")
    assert code == 2 and "pdf" in err


def test_conversations_are_offered_to_a_shell_by_number_and_title(
    stored: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TS_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "ts chat --resume ")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        cli.run([])
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["last", "2", "1"]
    assert "Why do dogs bark?" in out and err == ""
