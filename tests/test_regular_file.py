"""Files that a user names, and what is none."""

import os

import pytest

from turbospark_chat.regular_file import read_regular_file


def test_a_file_is_read_whole_and_no_further_than_allowed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular_file(path, most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="it has more than 0 MB"):
        read_regular_file(path, most_bytes=4)


def test_what_may_never_end_is_not_begun(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_regular_file(type(tmp_path)(path), most_bytes=5)


def test_a_folder_and_nothing_at_all_are_told_apart(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_regular_file(tmp_path, most_bytes=5)
    with pytest.raises(FileNotFoundError):
        read_regular_file(tmp_path / "none", most_bytes=5)
