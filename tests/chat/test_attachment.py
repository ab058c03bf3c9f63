"""Files that go with a message."""

import os

import pytest

from turbospark_chat.chat import attachment
from turbospark_chat.chat.attachment import Attachment, join_attachments, read_attachment, without_attachments
from turbospark_chat.errors import UsageError


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\ntwo\n", "one\ntwo\n"),
        ("é 中文 👨‍👩‍👧".encode(), "é 中文 👨‍👩‍👧"),
        (b"\xef\xbb\xbfmarked", "marked"),
        (b"a\xffb", "a\ufffdb"),  # T45
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"", ""),
    ],
)
def test_a_file_is_read_as_text(tmp_path, data, text):
    path = tmp_path / "notes.txt"
    path.write_bytes(data)
    assert read_attachment(str(path)) == Attachment("notes.txt", text)


def test_the_users_home_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("a")
    assert read_attachment("~/a.txt").text == "a"


def test_what_is_no_text_file_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(attachment, "MOST_BYTES", 10)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "long.txt").write_bytes(b"x" * 11)
    os.mkfifo(tmp_path / "pipe")
    problems = {
        "image.png": "it is not text",
        "long.txt": "it has more than 0 MB",
        "pipe": "it is not a regular file",
        "": "cannot read it: Is a directory",
        "none": "cannot read it: No such file or directory",
    }
    for name, problem in problems.items():
        with pytest.raises(UsageError, match=problem) as caught:
            read_attachment(str(tmp_path / name))
        assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "framed"),
    [
        ("a\n", "n:\n```\na\n```\n"),
        ("a", "n:\n```\na\n```\n"),
        ("", "n:\n```\n```\n"),
        ("```py\na\n```\n", "n:\n````\n```py\na\n```\n````\n"),
        ("`````", "n:\n``````\n`````\n``````\n"),
    ],
)
def test_a_text_stands_between_fences_that_it_does_not_hold(text, framed):
    assert Attachment("n", text).framed == framed


def test_what_a_message_says_behind_its_files_can_be_told():
    files = [Attachment("a", "1"), Attachment("b", "```\n2\n```\n")]
    assert without_attachments(join_attachments(files, "Compare.")) == "Compare."
    assert without_attachments("no file: none\nat all") == "no file: none\nat all"
    alone = files[0].framed
    assert without_attachments(alone) == alone


def test_files_stand_before_the_message():
    files = [Attachment("a", "1"), Attachment("b", "2")]
    assert join_attachments(files, "Compare.") == "a:\n```\n1\n```\n\nb:\n```\n2\n```\n\nCompare."
    assert join_attachments([], "Hello") == "Hello"
