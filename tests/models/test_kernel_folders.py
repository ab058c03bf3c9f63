"""Folders of compiled kernels: what no run has used for long goes, and nothing else ever does."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turbospark_chat.models.kernel_folders import DAY, UNUSED_DAYS, note_use, remove_unused
from turbospark_chat.models.kernel_library import KernelLibrary

IN_USE, OTHER, THIRD = ("0123456789abcdef" * 2, "f" * 32, "e" * 32)


def make_folder(root: Path, name: str, *, days: float, files: tuple[str, ...] = ("add.o",)) -> Path:
    """Return a folder of kernels that was used so many days ago."""
    folder = root / name
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_bytes(b"code")
    return aged(folder, days)


def aged(path: Path, days: float) -> Path:
    then = time.time() - days * DAY
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def days_unused(folder: Path) -> float:
    return (time.time() - folder.stat().st_mtime) / DAY


@pytest.fixture
def in_use(tmp_path: Path) -> Path:
    """Return the folder that a run uses, as the one of two days ago did."""
    return make_folder(tmp_path, IN_USE, days=2)


@pytest.mark.parametrize(
    ("days", "is_kept"), [(0, True), (UNUSED_DAYS - 1, True), (UNUSED_DAYS + 1, False), (-9, True)]
)
def test_a_folder_goes_when_no_run_has_used_it_for_long(days: float, is_kept: bool, in_use: Path) -> None:
    other = make_folder(in_use.parent, OTHER, days=days, files=("add.o", "linear_Q4_1.o", "tmp0a_b1c2"))
    note_use(in_use)
    assert other.exists() == is_kept
    assert [file.name for file in in_use.iterdir()] == ["add.o"]


def test_the_longest_unused_goes_first_and_one_a_day(in_use: Path) -> None:
    newer = make_folder(in_use.parent, OTHER, days=100)
    older = make_folder(in_use.parent, THIRD, days=200)
    note_use(in_use)
    note_use(in_use)
    assert (newer.exists(), older.exists()) == (True, False)
    note_use(aged(in_use, days=1.1))
    assert not newer.exists()


@pytest.mark.parametrize(("days", "expected"), [(0.9, 0.9), (1.1, 0), (80, 0), (400, 0)])
def test_a_use_is_noted_once_a_day(days: float, expected: float, tmp_path: Path) -> None:
    in_use = make_folder(tmp_path, IN_USE, days=days)
    note_use(in_use)
    assert days_unused(in_use) == pytest.approx(expected, abs=0.01)


def test_the_folder_in_use_stays_however_old_it_looks(tmp_path: Path) -> None:
    in_use = make_folder(tmp_path, IN_USE, days=400)
    remove_unused(in_use)
    assert in_use.exists()


def add_foreign_file(folder: Path) -> Path:
    (folder / "notes.txt").write_text("mine")
    return aged(folder, 400)


def add_folder(folder: Path) -> Path:
    (folder / "inner.o").mkdir()
    return aged(folder, 400)


def add_link(folder: Path) -> Path:
    (folder / "linked.o").symlink_to(folder / "add.o")
    return aged(folder, 400)


def give_another_name(folder: Path) -> Path:
    return folder.rename(folder.with_name("F" * 32))


def give_a_longer_name(folder: Path) -> Path:
    return folder.rename(folder.with_name("f" * 33))


def replace_by_link(folder: Path) -> Path:
    elsewhere = folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(elsewhere)
    return aged(folder, 400)


def replace_by_file(folder: Path) -> Path:
    (folder / "add.o").unlink()
    folder.rmdir()
    folder.write_bytes(b"code")
    return aged(folder, 400)


@pytest.mark.parametrize(
    "change",
    [
        add_foreign_file,
        add_folder,
        add_link,
        give_another_name,
        give_a_longer_name,
        replace_by_link,
        replace_by_file,
    ],
)
def test_what_does_not_look_like_kernels_stays_whole_and_stops_nothing(
    change: Callable[[Path], Path], tmp_path: Path
) -> None:
    in_use = make_folder(tmp_path / "kernels", IN_USE, days=2)
    foreign = change(make_folder(in_use.parent, OTHER, days=400))
    ours = make_folder(in_use.parent, THIRD, days=100)
    before = set(tmp_path.rglob("*"))
    note_use(in_use)
    assert foreign in before
    assert before - set(tmp_path.rglob("*")) == {ours, ours / "add.o"}


def test_somebody_elses_folder_stays(in_use: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_folder(in_use.parent, OTHER, days=400)
    monkeypatch.setattr(os, "getuid", lambda: other.stat().st_uid + 1)
    note_use(in_use)
    assert [file.name for file in other.iterdir()] == ["add.o"]


def test_a_folder_that_cannot_be_removed_is_no_error_and_stops_nothing(
    in_use: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = make_folder(in_use.parent, OTHER, days=400)
    other = make_folder(in_use.parent, THIRD, days=100)
    unlink = os.unlink

    def refuse(path: os.PathLike[str]) -> None:
        if stuck in Path(path).parents:
            raise PermissionError("read-only")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    note_use(in_use)
    assert (stuck.exists(), other.exists()) == (True, False)


def test_a_folder_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    note_use(tmp_path / "kernels" / IN_USE)
    assert list(tmp_path.iterdir()) == []


def test_loading_kernels_is_a_use_that_removes_what_is_unused(tmp_path: Path) -> None:
    KernelLibrary(tmp_path).load(["last"])
    (folder,) = tmp_path.iterdir()
    other = make_folder(tmp_path, OTHER, days=400)
    aged(folder, days=80)
    KernelLibrary(tmp_path).load(["last"])
    assert not other.exists()
    assert days_unused(folder) == pytest.approx(0, abs=0.01)
