"""Transcripts as files: the form by the ending, whole or not at all, and errors that name the file."""

import errno
import os
import stat
from pathlib import Path

import pytest
from transcripts import transcript_of

from turbospark_chat.chat.transcript_file import (
    read_transcript,
    render_transcript,
    write_text_file,
    write_transcript,
)
from turbospark_chat.errors import TranscriptError, UsageError

TRANSCRIPT = transcript_of("hi\r\n", "```\nho é", reasoning="hm", complete=False)


@pytest.mark.parametrize("name", ["a.md", "b.json", "c.MD", "d e.Json"])
def test_what_was_written_is_read_back(name: str, tmp_path: Path) -> None:  # T81
    path = write_transcript(tmp_path / name, TRANSCRIPT)
    assert path == tmp_path / name
    assert read_transcript(path) == TRANSCRIPT


@pytest.mark.parametrize(
    ("form", "start"), [("md", "<!-- turbospark_chat "), ("json", "{"), ("html", "<!doctype html>")]
)
def test_the_ending_says_the_form(form: str, start: str, tmp_path: Path) -> None:
    path = write_transcript(tmp_path / f"f.{form}", TRANSCRIPT)
    assert path.read_bytes().decode() == render_transcript(TRANSCRIPT, form)
    assert path.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("name", ["a", "a.txt", ".md", "a.md.bak"])
def test_another_ending_is_refused_with_the_three_that_are_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.md, \.json or \.html"):
        write_transcript(tmp_path / name, TRANSCRIPT)
    with pytest.raises(UsageError, match=r"only \.md and \.json"):
        read_transcript(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UsageError, match="'pdf': expected one of md, json, html"):
        render_transcript(TRANSCRIPT, "pdf")


def test_a_file_that_is_there_is_replaced_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "f.md"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"f\.md: there is a file already"):
        write_transcript(path, TRANSCRIPT)
    assert path.read_text() == "mine"
    write_transcript(path, TRANSCRIPT, overwrite=True)
    assert read_transcript(path) == TRANSCRIPT
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("before", ["mine", None])
def test_a_full_disk_leaves_the_old_file_or_none(
    step: str, before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.txt"
    if before:
        path.write_text(before)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(TranscriptError, match=r"f\.txt: cannot be written: No space left"):
        write_text_file(path, "text", overwrite=True)
    assert [file.read_text() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_all_of_it_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "f.txt", []
    fsync, replace = os.fsync, os.replace

    def look_at_fsync(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_size, path.exists()))
        fsync(descriptor)

    def look_at_replace(source: str, target: Path) -> None:
        seen.append((os.stat(source).st_size, path.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", look_at_fsync)
    monkeypatch.setattr(os, "replace", look_at_replace)
    write_text_file(path, "a\r\né")
    assert seen == [(5, False), (5, False)]
    assert path.read_bytes() == "a\r\né".encode()


def test_an_interrupt_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_file(tmp_path / "f.txt", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_is_private_and_a_replaced_one_keeps_its_permissions(tmp_path: Path) -> None:
    path = write_text_file(tmp_path / "f.txt", "a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_text_file(path, "b", overwrite=True)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("b", 0o644)


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    assert write_text_file(link, "a") == target
    write_text_file(link, "b", overwrite=True)
    assert (link.is_symlink(), target.read_text()) == (True, "b")


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert write_transcript("~/f.md", TRANSCRIPT) == tmp_path / "f.md"
    assert read_transcript("~/f.md") == TRANSCRIPT


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none/f.md", "there is no folder .*none; make it"),
        ("folder.md", "not a file; name another"),
        ("pipe.md", "not a file; name another"),
        ("old.md/f.md", "there is no folder|Not a directory"),
        ("loop.md", "cannot be the name of a file|symbolic links"),
        ("f\0.md", "cannot be the name of a file"),
        ("x" * 300 + ".md", "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "old.md").write_text("mine")
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises((UsageError, TranscriptError), match=problem):
        write_transcript(tmp_path / name, TRANSCRIPT, overwrite=True)
    assert (tmp_path / "old.md").read_text() == "mine"


def test_a_user_who_is_not_there_has_no_files() -> None:
    with pytest.raises(UsageError, match="'~no-such-user/f.md' cannot be the name of a file"):
        write_transcript("~no-such-user/f.md", TRANSCRIPT)


@pytest.mark.parametrize("name", ["f.md", "f.json"])
def test_a_byte_order_mark_is_passed_over(name: str, tmp_path: Path) -> None:
    path = write_transcript(tmp_path / name, TRANSCRIPT)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_transcript(path) == TRANSCRIPT


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "f.json: not JSON: .*line 1"),
        (b'["\xff"]', "f.json: not UTF-8 text: byte 2 is none"),
        (None, "f.json: no such file"),
    ],
)
def test_what_cannot_be_read_is_named(content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    if content:
        path.write_bytes(content)
    with pytest.raises((UsageError, TranscriptError), match=problem):
        read_transcript(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UsageError, match="not a file"):
        read_transcript(tmp_path / "pipe.json")


def test_a_file_that_may_not_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_transcript(tmp_path / "f.md", TRANSCRIPT)

    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(TranscriptError, match=r"f\.md: cannot be read: Permission denied"):
        read_transcript(path)
