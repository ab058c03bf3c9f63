"""The file of earlier inputs: what was typed comes back, whatever happened to the file."""

import asyncio
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.terminal.input_history import MOST_ENTRIES_LOADED, JsonLinesHistory


class Recall:
    """A history over a file, as a fresh program would have it, and what it complained about."""

    def __init__(self, path):
        self.problems = []
        self._history = JsonLinesHistory(path, on_problem=self.problems.append)

    def add(self, *inputs):
        for text in inputs:
            self._history.append_string(text)

    @property
    def newest_first(self):
        async def load():
            return [entry async for entry in self._history.load()]

        return asyncio.run(load())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history"


def line(text):
    return json.dumps({"input": text}).encode() + b"\n"


def test_inputs_come_back_newest_first(path):
    Recall(path).add("one", "two")
    Recall(path).add("three")
    recall = Recall(path)
    assert (recall.newest_first, recall.problems) == (["three", "two", "one"], [])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("two\nlines\n\n", id="lines"),
        pytest.param("  spaces ", id="spaces"),
        pytest.param("/set stop \\n", id="command"),
        pytest.param('"quoted" \\ \t\x00\x1b', id="escapes"),
        pytest.param("中文 👨\u200d👩\u200d👧", id="wide"),
        pytest.param("\u2028\x85", id="separators"),
        pytest.param("x" * 1_000_000, id="megabyte"),
    ],
)
def test_any_input_comes_back_as_it_was_typed(path, text):
    Recall(path).add("before", text, "after")
    assert Recall(path).newest_first == ["after", text, "before"]


def test_bytes_that_were_no_utf8_come_back_too(path):  # T45
    typed = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
    Recall(path).add(typed, "\ud83d alone")
    assert Recall(path).newest_first == ["\ud83d alone", typed]
    path.read_bytes().decode("utf-8")  # and the file is text for everybody


@given(st.lists(st.text(st.characters())))
def test_the_file_holds_one_line_an_entry(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("state") / "history"
    Recall(path).add(*texts)
    assert path.exists() == bool(texts)
    if texts:
        assert path.read_bytes().count(b"\n") == len(texts)
        assert Recall(path).newest_first == texts[::-1]


def test_only_its_owner_may_read_the_file(path):
    old_mask = os.umask(0)
    try:
        Recall(path).add("secret")
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


WRITE_MANY = """
import sys
from pathlib import Path
from turbospark_chat.terminal.input_history import JsonLinesHistory
history = JsonLinesHistory(Path(sys.argv[1]), on_problem=lambda problem: sys.exit(problem))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    history.store_string(f"{sys.argv[2]} {number} " + "x" * 3000)
"""


def writer(path, name, n_entries):
    """Start another program that will append entries once it is told to."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITE_MANY, str(path), name, str(n_entries)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "ready\n"
    return child


def tell(child):
    child.stdin.write("go\n")
    child.stdin.flush()


def test_two_programs_append_at_once(path):  # G12
    writers = [writer(path, name, 300) for name in ("first", "second")]
    for child in writers:
        tell(child)
    for child in writers:
        child.communicate()
        assert child.returncode == 0
    recall = Recall(path)
    names = [" ".join(entry.split()[:2]) for entry in reversed(recall.newest_first)]
    assert recall.problems == []
    for name in ("first", "second"):
        assert [entry for entry in names if entry.startswith(name)] == [f"{name} {n}" for n in range(300)]


def test_a_program_killed_while_it_appends_loses_nothing_it_had_written(path):  # G12
    child = writer(path, "killed", 1_000_000)
    tell(child)
    while not path.exists() or path.stat().st_size < 500_000:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    Recall(path).add("after")
    recall = Recall(path)
    newest, *killed = recall.newest_first
    n_before = len(killed)
    assert newest == "after"
    assert n_before >= 150
    assert [entry.split()[1] for entry in killed] == [str(n) for n in reversed(range(n_before))]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"{", id="cut"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'"input"', id="text"),
        pytest.param(b'{"input": 3}', id="number"),
        pytest.param(b'{"output": "x"}', id="no-input"),
        pytest.param(b"\xff\xfe", id="no-utf8"),
        pytest.param(b"\x00" * 50, id="zeros"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_damaged_line_is_passed_over_and_its_number_said(path, damage):  # G12
    path.parent.mkdir()
    path.write_bytes(line("one") + damage + b"\n" + b"\n  \n" + line("two"))
    recall = Recall(path)
    assert recall.newest_first == ["two", "one"]
    assert recall.problems == [f"{path}: line 2 is damaged and was passed over (1 in all)"]


def test_damaged_lines_stay_in_the_file(path):
    path.parent.mkdir()
    path.write_bytes(b"{\n" + line("one"))
    Recall(path).add("two")
    assert path.read_bytes() == b"{\n" + line("one") + line("two")


def test_after_a_last_line_without_newline_both_are_readable(path):  # G12
    path.parent.mkdir()
    path.write_bytes(line("one").rstrip(b"\n"))
    Recall(path).add("two")
    assert Recall(path).newest_first == ["two", "one"]


def test_an_empty_file_is_an_empty_history(path):  # G12
    path.parent.mkdir()
    path.touch()
    recall = Recall(path)
    assert (recall.newest_first, recall.problems) == ([], [])
    recall.add("one")
    assert Recall(path).newest_first == ["one"]


def test_of_a_huge_file_the_newest_are_loaded_and_all_are_kept(path):
    path.parent.mkdir()
    path.write_bytes(b"".join(line(str(number)) for number in range(MOST_ENTRIES_LOADED + 10)))
    recall = Recall(path)
    recall.add("new")
    newest_first = Recall(path).newest_first
    assert newest_first[:2] == ["new", str(MOST_ENTRIES_LOADED + 9)]
    assert (len(newest_first), newest_first[-1]) == (MOST_ENTRIES_LOADED, "11")
    assert path.read_bytes().startswith(line("0"))


@pytest.fixture
def unwritable(tmp_path, monkeypatch, request):
    """Return what makes a file with these permissions, and then takes root's rights away."""

    def make(mode):
        tmp_path.chmod(0o777)
        monkeypatch.chdir(tmp_path)
        path = Path("history")
        path.write_bytes(line("old"))
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        request.getfixturevalue("ordinary_user")
        return path

    return make


@pytest.mark.parametrize(
    ("mode", "entries", "complaints"),
    [
        (0o000, [], ["cannot read", "cannot write"]),
        (0o200, [], ["cannot read", "cannot write"]),
        (0o400, ["old"], ["cannot write"]),
    ],
)
def test_a_file_without_permission_is_left_alone_and_each_problem_said_once(
    unwritable, mode, entries, complaints
):  # G12
    recall = Recall(unwritable(mode))
    assert recall.newest_first == entries
    recall.add("one", "two")
    assert recall.newest_first == ["two", "one", *entries]  # in memory
    assert [
        problem.partition(" the input history: Permission denied; ")[0] for problem in recall.problems
    ] == [f"history: {complaint}" for complaint in complaints]
    os.chmod("history", 0o600)
    assert Path("history").read_bytes() == line("old")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_in_the_files_place_is_said_and_never_read(path, make):
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    recall = Recall(path)
    assert recall.newest_first == []
    recall.add("one")
    assert recall.newest_first == ["one"]
    assert recall.problems == [
        f"{path}: cannot read the input history: it is not a regular file; it is kept as it is",
        f"{path}: cannot write the input history: it is not a regular file; it lasts until you leave",
    ]


@pytest.mark.parametrize("raises", [True, False], ids=["error", "short write"])
def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch, raises):  # G12
    Recall(path).add("one", "two")
    before = path.read_bytes()
    write = os.write

    def write_part(descriptor, data):
        n_written = write(descriptor, data[:5])
        if raises:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return n_written

    recall = Recall(path)
    with monkeypatch.context() as full:
        full.setattr(os, "write", write_part)
        recall.add("three", "four")
    assert path.read_bytes() == before
    assert recall.problems == [
        f"{path}: cannot write the input history: No space left on device; it lasts until you leave"
    ]
    recall.add("five")
    assert Recall(path).newest_first == ["five", "two", "one"]


def test_a_failed_write_takes_nothing_of_another_programs_with_it(path, monkeypatch):  # G12
    Recall(path).add("one")
    write = os.write
    other = threading.Thread(target=Recall(path).add, args=("other",))

    def write_part(descriptor, data):
        monkeypatch.setattr(os, "write", write)
        other.start()
        other.join(0.2)  # it has to wait until what is written here is taken back
        write(descriptor, data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write_part)
    Recall(path).add("two")
    other.join()
    recall = Recall(path)
    assert (recall.newest_first, recall.problems) == (["other", "one"], [])
