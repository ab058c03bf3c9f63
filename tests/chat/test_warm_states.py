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
