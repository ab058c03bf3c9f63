"""`ts states`, run in this process over files that stand for computed states."""

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from stored_turns import ended, said

from turbospark_chat import cli
from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.settings import Locations

Run = Callable[..., tuple[int, str, str]]
MB = 10**6


def file_of(stem: str) -> Path:
    return Locations.of_user().states / f"{stem}.state"


def write(stem: str, n_bytes: int, *, used: int) -> None:
    path = file_of(stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, n_bytes)
    os.utime(path, (used, used))


@pytest.fixture
def kept() -> None:
    """Keep states of a stored conversation, of one that is not stored, and under the names notes and 1."""
    store = Store.open(Locations.of_user().conversations)
    turn = said("Why do cats purr?", "They like to.")
    Journal(store, model_name="tiny").keep(Conversation(turns=[turn]), ended=ended(turn))
    store.close()
    write("1", 12 * MB, used=3000)
    write("7", MB // 2, used=1000)
    write("name-notes", 2000 * MB, used=4000)
    write("name-1", MB, used=2000)


def there() -> list[str]:
    return sorted(path.stem for path in Locations.of_user().states.iterdir())


def test_what_is_on_disk_is_listed_the_latest_used_first(ts: Run, kept: None) -> None:
    code, out, err = ts("states")
    assert (code, err) == (0, "")
    *rows, total = out.splitlines()
    time = datetime.fromtimestamp(3000).strftime("%Y-%m-%d %H:%M")
    assert [row.split()[0] for row in rows] == ["notes", "1", "name:1", "7"]
    assert rows[0].endswith("2,000.0 MB  kept by --prefix-cache notes")
    assert rows[1].split(maxsplit=5) == ["1", *time.split(), "12.0", "MB", "Why do cats purr?"]
    assert rows[3].endswith("0.5 MB      of a conversation that is not stored")
    assert total == "4 states, 2,013.5 MB of 1,024 MB"


@pytest.mark.parametrize("source", ["environment", "config file"])
def test_the_budget_is_the_one_that_is_set(
    ts: Run, kept: None, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "environment":
        monkeypatch.setenv("TS_STATE_BUDGET", "3000")
    else:
        config = Path(ts("config", "--path")[1].strip())
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("state_budget = 3000\n")
    assert ts("states")[1].endswith(" of 3,000 MB\n")


def test_a_name_of_a_conversation_is_its_title(ts: Run, kept: None) -> None:
    store = Store.open(Locations.of_user().conversations)
    store.name(1, "cats")
    store.close()
    assert ts("states")[1].splitlines()[1].endswith("  cats")


def test_states_as_json_are_an_object_each(ts: Run, kept: None) -> None:
    code, out, err = ts("states", "--json")
    assert (code, err) == (0, "")
    notes, cats, _, orphan = map(json.loads, out.splitlines())
    assert (notes["reference"], notes["name"], notes["conversation_id"]) == ("notes", "notes", None)
    assert (cats["conversation_id"], cats["title"], cats["n_bytes"]) == (1, "Why do cats purr?", 12 * MB)
    assert cats["path"] == str(file_of("1"))
    assert datetime.fromisoformat(cats["used"]).timestamp() == 3000
    assert (orphan["conversation_id"], orphan["title"]) == (7, None)


def test_where_there_are_none_it_says_so_on_stderr_and_makes_nothing(ts: Run) -> None:
    assert ts("states") == (0, "", "no computed state is on disk yet\n")
    assert ts("states", "--json") == (0, "", "")
    assert ts("states", "delete", "--all") == (0, "", "")
    locations = Locations.of_user()
    assert not locations.states.exists() and not locations.conversations.exists()


def test_states_without_stored_conversations_make_no_database(ts: Run) -> None:
    write("7", MB, used=1000)
    code, out, err = ts("states")
    assert (code, err) == (0, "") and "of a conversation that is not stored" in out
    assert not Locations.of_user().conversations.exists()


def test_a_database_that_cannot_be_read_costs_the_titles(ts: Run, kept: None) -> None:
    Locations.of_user().conversations.write_bytes(b"no database " * 1000)
    code, out, err = ts("states")
    assert (code, out.count("\n")) == (0, 5)
    assert err.startswith("warning: no conversation is shown by its title: ") and err.count("\n") == 1


def test_a_terminal_is_shown_no_control_of_a_title_or_a_file(
    ts: Run, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(Locations.of_user().conversations)
    store.name(1, "cats \u202e")
    store.close()
    write("odd\x1b[2J", MB, used=5000)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for arguments in (("states",), ("states", "--json")):
        code, out, err = ts(*arguments)
        assert (code, err) == (0, "") and "odd" in out and "\x1b[2J" not in out and "\u202e" not in out


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["notes"], ["1", "7", "name-1"]),
        (["1"], ["7", "name-1", "name-notes"]),
        (["name:1", "7"], ["1", "name-notes"]),
        (["7", "7"], ["1", "name-1", "name-notes"]),
        (["--all"], []),
    ],
    ids=" ".join,
)
def test_those_that_are_named_are_deleted(ts: Run, kept: None, arguments: list[str], left: list[str]) -> None:
    assert ts("states", "delete", *arguments) == (0, "", "")
    assert there() == left
    assert ts("history")[1].count("\n") == 1  # the conversation itself is kept


@pytest.mark.parametrize(
    "reference", ["2", "name-notes", "../conversations", "/etc/passwd", "a/b", "", "last"]
)
def test_one_that_is_not_there_is_an_error_and_none_is_deleted(ts: Run, kept: None, reference: str) -> None:
    before = there()
    code, out, err = ts("states", "delete", "notes", reference)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ") and "`ts states` lists them" in err
    assert there() == before


def test_a_link_is_deleted_and_not_what_it_leads_to(ts: Run, kept: None, tmp_path: Path) -> None:
    mine = tmp_path / "mine.state"
    mine.write_bytes(b"mine")
    file_of("9").symlink_to(mine)
    assert ts("states", "delete", "9") == (0, "", "")
    assert mine.read_bytes() == b"mine" and "9" not in there()


@pytest.mark.parametrize("arguments", [[], ["notes", "--all"]], ids=["none", "some and all"])
def test_what_is_to_be_deleted_has_to_be_said(ts: Run, kept: None, arguments: list[str]) -> None:
    before = there()
    code, out, err = ts("states", "delete", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and "`--all`" in err
    assert there() == before


def test_one_that_cannot_be_deleted_is_an_error(ts: Run, kept: None) -> None:
    file_of("8").mkdir()
    code, out, err = ts("states", "delete", "8")
    assert (code, out, err.count("\n")) == (1, "", 1) and "cannot be deleted" in err


def test_states_are_offered_to_a_shell(
    kept: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TS_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "ts states delete ")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        cli.run([])
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["notes", "1", "name:1", "7"]
    assert "12.0 MB" in out and err == ""
