"""Cache files: whole and unchanged, or as good as missing; and no fault of the disk is an error."""

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.models.sealed_file import digest_of, read_sealed, write_sealed

CONTENT = b"machine code"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "inner" / "file"
    write_sealed(path, CONTENT)
    return path


@pytest.mark.parametrize("content", [b"", CONTENT, bytes(range(256)) * 1000], ids=["empty", "short", "long"])
def test_what_was_stored_is_read_back(content: bytes, tmp_path: Path) -> None:
    write_sealed(tmp_path / "file", content)
    assert read_sealed(tmp_path / "file") == content


def test_a_newer_content_takes_the_place_of_the_old(path: Path) -> None:
    write_sealed(path, b"newer")
    assert read_sealed(path) == b"newer"


def test_the_folder_is_made_for_this_user_alone(path: Path) -> None:
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("position", range(32 + len(CONTENT)))
def test_a_changed_bit_anywhere_makes_it_missing(position: int, path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << position % 8
    path.write_bytes(raw)
    assert read_sealed(path) is None


@pytest.mark.parametrize("length", range(32 + len(CONTENT)))
def test_a_cut_anywhere_makes_it_missing(length: int, path: Path) -> None:
    os.truncate(path, length)
    assert read_sealed(path) is None


def test_more_bytes_make_it_missing(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")
    assert read_sealed(path) is None


def test_what_is_not_there_or_no_file_is_missing(tmp_path: Path, path: Path) -> None:
    assert read_sealed(tmp_path / "nothing") is None
    assert read_sealed(tmp_path) is None
    assert read_sealed(path / "below a file") is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    write_sealed(tmp_path / "taken" / "file", CONTENT)
    assert (tmp_path / "taken").read_bytes() == b"a file"


def test_a_name_that_is_taken_by_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    write_sealed(tmp_path / "file", CONTENT)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def fail_to_replace(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(source: str, target: str) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)


def test_a_full_disk_is_no_error_and_leaves_the_old_content(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_replace(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    write_sealed(path, b"newer")
    assert read_sealed(path) == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_an_interrupt_is_passed_on_and_leaves_nothing_half_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_replace(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write_sealed(path, b"newer")
    assert read_sealed(path) == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@given(some=st.lists(st.text(max_size=3), max_size=4), others=st.lists(st.text(max_size=3), max_size=4))
def test_digests_are_equal_where_all_parts_are(some: list[str], others: list[str]) -> None:
    assert (digest_of(*some, sources=[]) == digest_of(*others, sources=[])) == (some == others)


def test_a_digest_tells_sources_by_content_and_order_not_by_name(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, text in zip(paths, ("one", "two", "one"), strict=True):
        path.write_text(text)
    first, second, like_first = paths
    assert digest_of("part", sources=[first, second]) == digest_of("part", sources=[like_first, second])
    assert digest_of("part", sources=[first, second]) != digest_of("part", sources=[second, first])
    before = digest_of("part", sources=[first])
    first.write_text("onE")
    assert digest_of("part", sources=[first]) != before


def test_a_digest_is_a_file_name() -> None:
    assert set(digest_of(b"\xff\0/", sources=[])) <= set("0123456789abcdef")
