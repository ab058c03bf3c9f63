"""Which files of computed states there are, and which go when there is no room."""

import os
from pathlib import Path

import pytest

from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.errors import StateFileError, UsageError

MB = 10**6


class Writer:
    """Writes files of so many MB, and notes how many it was asked for."""

    def __init__(self, megabytes: int = 1) -> None:
        self.megabytes, self.n_calls = megabytes, 0

    def __call__(self, path: Path, *, most_bytes: int) -> None:
        self.n_calls += 1
        if self.megabytes * MB > most_bytes:
            raise StateFileError(path, "too long")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(self.megabytes * MB))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "states"


def used_at(states: WarmStates, number: int, seconds: int) -> None:
    os.utime(states.of_conversation(number), (seconds, seconds))


def fill(states: WarmStates, *numbers: int) -> None:
    """Write states of 1 MB, the first used longest ago."""
    for at, number in enumerate(numbers):
        states.write(states.of_conversation(number), Writer())
        used_at(states, number, 1000 + at)


def there(states: WarmStates, *numbers: int) -> list[int]:
    return [number for number in numbers if states.of_conversation(number).exists()]


def test_those_used_longest_ago_go_first(folder: Path) -> None:
    states = WarmStates(folder, megabytes=3)
    fill(states, 3, 1, 2)
    states.write(states.of_conversation(4), Writer())
    assert there(states, 1, 2, 3, 4) == [1, 2, 4]


def test_reading_one_counts_as_using_it(folder: Path) -> None:
    states = WarmStates(folder, megabytes=3)
    fill(states, 3, 1, 2)
    assert states.read(states.of_conversation(3), lambda path: path.stat().st_size) == MB
    states.write(states.of_conversation(4), Writer())
    assert there(states, 1, 2, 3, 4) == [2, 3, 4]


def test_one_that_was_read_in_vain_does_not(folder: Path) -> None:
    def refuse(path: Path) -> None:
        raise StateFileError(path, "damaged")

    states = WarmStates(folder, megabytes=3)
    fill(states, 3, 1, 2)
    with pytest.raises(StateFileError):
        states.read(states.of_conversation(3), refuse)
    states.write(states.of_conversation(4), Writer())
    assert there(states, 3, 4) == [4]


def test_the_newest_stays_even_where_a_clock_was_wrong(folder: Path) -> None:
    states = WarmStates(folder, megabytes=3)
    fill(states, 1, 2, 3)
    for number in (1, 2, 3):
        used_at(states, number, 2**33)
    states.write(states.of_conversation(4), Writer())
    assert there(states, 4) == [4] and len(there(states, 1, 2, 3)) == 2


def test_one_that_is_larger_than_the_budget_is_not_written_and_the_others_stay(folder: Path) -> None:
    states = WarmStates(folder, megabytes=3)
    fill(states, 1, 2, 3)
    with pytest.raises(StateFileError, match="too long"):
        states.write(states.of_conversation(1), Writer(4))
    assert there(states, 1, 2, 3) == [1, 2, 3]


def test_names_and_conversations_share_the_budget(folder: Path) -> None:
    states = WarmStates(folder, megabytes=2)
    fill(states, 1, 2)
    states.write(states.of_name("2"), Writer())
    assert there(states, 1, 2) == [2] and states.of_name("2").exists()


def test_what_had_to_go_is_told_latest_first(folder: Path) -> None:
    states = WarmStates(folder, megabytes=8)
    assert states.write(states.of_name("notes"), Writer()) is None
    os.utime(states.of_name("notes"), (1, 1))
    fill(states, *range(1, 8))
    made_room = states.write(states.of_conversation(8), Writer(2))
    assert made_room is not None
    assert [(state.reference, state.n_bytes) for state in made_room.deleted] == [("1", MB), ("notes", MB)]
    assert str(made_room) == "2 computed states of 2.0 MB deleted to keep to the budget of 8 MB: 1, notes"
    made_room = states.write(states.of_conversation(9), Writer(8))
    assert str(made_room).endswith("8 MB: 8, 7, 6, 5, 4, 2 more")


def test_one_that_could_not_go_is_not_told_of(folder: Path) -> None:
    states = WarmStates(folder, megabytes=1)
    states.of_conversation(1).mkdir(parents=True)
    assert states.write(states.of_conversation(2), Writer()) is None
    assert states.of_conversation(1).exists()


def test_those_there_are_are_listed_the_latest_used_first(folder: Path) -> None:
    states = WarmStates(folder)
    assert states.list() == ()
    fill(states, 2, 1)
    states.write(states.of_name("notes"), Writer(2))
    (folder / "tmpa.part").write_bytes(b"half")
    found = [(state.conversation_id, state.name, state.n_bytes) for state in states.list()]
    assert found == [(None, "notes", 2 * MB), (1, None, MB), (2, None, MB)]
    assert [state.used for state in states.list()[1:]] == [1001, 1000]


@pytest.mark.parametrize("name", ["a", "2", "name-2", "name-a", "long.prompt-2_b"])
def test_no_name_refers_to_what_is_anothers(folder: Path, name: str) -> None:
    states = WarmStates(folder)
    paths = [states.of_conversation(2), *map(states.of_name, {"a", "2", "name-2", name})]
    for path in paths:
        states.write(path, Writer())
    references = [state.reference for state in states.list()]
    assert len(set(references)) == len(paths)
    (reference,) = (state.reference for state in states.list() if state.name == name)
    assert reference == (f"name:{name}" if name.isdecimal() else name)
    assert states.find(reference).path == states.of_name(name)
    assert states.find("2").path == states.of_conversation(2)


@pytest.mark.parametrize("reference", ["", "1", "../states/2", "2.state", "name-a", "/", "."])
def test_what_is_not_in_the_folder_is_not_found(folder: Path, reference: str) -> None:
    states = WarmStates(folder)
    fill(states, 2)
    states.write(states.of_name("a"), Writer())
    with pytest.raises(StateFileError, match="`ts states` lists them"):
        states.find(reference)


def test_a_budget_of_nothing_writes_nothing_and_deletes_nothing(folder: Path) -> None:
    fill(WarmStates(folder), 1)
    states, writer = WarmStates(folder, megabytes=0), Writer()
    states.write(states.of_conversation(2), writer)
    assert (writer.n_calls, there(states, 1, 2)) == (0, [1])


def test_what_a_killed_program_left_half_written_goes_once_it_is_old(folder: Path) -> None:
    states = WarmStates(folder)
    fill(states, 1)
    old, new = folder / "tmpa.part", folder / "tmpb.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    states.write(states.of_conversation(2), Writer())
    assert (old.exists(), new.exists(), there(states, 1, 2)) == (False, True, [1, 2])


def test_where_there_is_none_nothing_is_read(folder: Path) -> None:
    states = WarmStates(folder)
    assert states.read(states.of_conversation(1), lambda path: 1 // 0) is None
    states.delete(states.of_conversation(1))
    assert not folder.exists()


def test_one_is_deleted(folder: Path) -> None:
    states = WarmStates(folder)
    fill(states, 1, 2)
    states.delete(states.of_conversation(1))
    assert there(states, 1, 2) == [2]


def test_one_that_cannot_be_deleted_is_an_error(folder: Path) -> None:
    states = WarmStates(folder)
    states.of_conversation(1).mkdir(parents=True)
    with pytest.raises(StateFileError, match="cannot be deleted"):
        states.delete(states.of_conversation(1))


@pytest.mark.parametrize("name", ["a", "2", "long.prompt-2_b", "A" * 60])
def test_a_name_is_a_file_in_the_folder(folder: Path, name: str) -> None:
    path = WarmStates(folder).of_name(name)
    assert path.parent == folder and name in path.name
    assert path != WarmStates(folder).of_conversation(2)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a",
        "/etc/passwd",
        "a/b",
        "a\\b",
        ".hidden",
        "-f",
        "a b",
        "a\n",
        "a\0",
        "é",
        "A" * 61,
        "~",
    ],
)
def test_what_could_lead_out_of_the_folder_is_no_name(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a state") as caught:
        WarmStates(folder).of_name(name)
    assert "\n" not in str(caught.value)
