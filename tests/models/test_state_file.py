"""The file of a state: it comes back whole or not at all, whatever happened to it or while it was written."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sessions import CancelAfter

from turbospark_chat.errors import StateFileError
from turbospark_chat.models.state_file import FORMAT_VERSION, StoredState, read_state, write_state

DIGEST_BYTES = 32


def make_state(length: int = 3) -> StoredState:
    """Return a state as caches export one: views of roomier arrays, and an empty array."""
    rng = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {
        "keys 0": rng.normal(size=(2, 8, 4)).astype(np.float32)[:, :length],
        "values 0": rng.integers(-100, 100, (2, 8, 4)).astype(np.int16)[:, :length],
        "base": np.array([7], np.int64),
        "nothing": np.empty((2, 0, 4), np.float32),
    }
    return StoredState({"model file": "abc", "n layers": "2"}, tuple(range(5, 5 + length)), arrays)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states" / "1.state"


def sealed(
    header: bytes, stored: bytes, *, version: int = FORMAT_VERSION, n_header: int | None = None
) -> bytes:
    """Return a file whose checksum is right, whatever else is not."""
    header = header.ljust(-(-(16 + len(header)) // 64) * 64 - 16)
    content = struct.pack("<8sII", b"ts-state", version, len(header) if n_header is None else n_header)
    content += header + stored
    return content + hashlib.sha256(content).digest()


def sealed_json(value: object, stored: bytes = b"") -> bytes:
    return sealed(json.dumps(value).encode(), stored)


def row(
    name: str = "token ids", kind: str = "<i8", shape: object = (2,), offset: object = 0
) -> dict[str, object]:
    return {"name": name, "type": kind, "shape": shape, "offset": offset}


def with_arrays(*rows: object) -> bytes:
    return sealed_json({"fingerprints": {}, "arrays": rows}, bytes(128))


def test_what_was_written_comes_back(path: Path) -> None:
    state = make_state()
    write_state(path, state)
    again = read_state(path)
    assert (again.fingerprints, again.ids) == (state.fingerprints, state.ids)
    assert list(again.arrays) == list(state.arrays)
    for name, array in state.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(again.arrays[name], array)


def test_what_is_stopped_while_it_is_written_is_not_there(path: Path) -> None:
    write_state(path, make_state(2))
    before = path.read_bytes()
    n_looks = 0
    while True:
        try:
            write_state(path, make_state(3), cancel=CancelAfter(n_looks))
            break
        except StateFileError as error:
            assert error.problem == "writing it was stopped"
        assert (list(path.parent.iterdir()), path.read_bytes()) == ([path], before)
        n_looks += 1
    assert n_looks > len(make_state().arrays)
    assert read_state(path).ids == make_state(3).ids


def test_arrays_that_were_read_cannot_be_written_to(path: Path) -> None:
    write_state(path, make_state())
    with pytest.raises(ValueError, match="read-only"):
        read_state(path).arrays["keys 0"][0, 0, 0] = 1


def test_only_the_user_may_read_it_and_nothing_else_is_left_beside_it(path: Path) -> None:
    write_state(path, make_state())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_only_filled_positions_are_written(path: Path) -> None:  # G9
    sizes = []
    for length in (2, 6):
        write_state(path, make_state(length))
        sizes.append(path.stat().st_size)
    a_position = 2 * 4 * (4 + 2) + 8  # keys and values of both heads, and the id
    assert sizes[1] - sizes[0] <= 4 * a_position + 3 * 64


@pytest.mark.parametrize("damage", ["cut", "flip", "append"])
def test_damage_anywhere_is_found(path: Path, damage: str) -> None:  # 20: truncated file, flipped byte
    write_state(path, make_state())
    whole = path.read_bytes()
    for at in range(100 if damage == "append" else len(whole)):
        if damage == "cut":
            path.write_bytes(whole[:at])
        elif damage == "flip":
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        else:
            path.write_bytes(whole + bytes(at + 1))
        with pytest.raises(StateFileError) as caught:
            read_state(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


HOSTILE = {
    "not JSON": sealed(b"}{", b""),
    "not UTF-8": sealed(b'{"\xff": 1}', b""),
    "deep": sealed(b"[" * 100_000, b""),
    "long number": sealed(b"9" * 100_000, b""),
    "not an object": sealed_json([1]),
    "nothing in it": sealed_json({}),
    "fingerprints are a list": sealed_json({"fingerprints": [], "arrays": []}),
    "a fingerprint is a number": sealed_json({"fingerprints": {"a": 1}, "arrays": [row()]}, bytes(16)),
    "header beyond the file": sealed(b"{}", b"", n_header=2**31),
    "header of no length": sealed(b"{}", b"", n_header=0),
    "header longer than any": sealed(b" " * 2**23, b""),
    "no ids": with_arrays(row("keys", shape=(16,))),
    "ids of two dimensions": with_arrays(row(shape=(2, 8))),
    "ids of another type": with_arrays(row(kind="<i4", shape=(32,))),
    "objects": with_arrays(row(kind="|O8")),
    "complex numbers": with_arrays(row(shape=(8,)), row("keys", "<c16", shape=(4,), offset=64)),
    "a type that is a list": with_arrays(row(kind=["<i8"])),  # type: ignore[arg-type]
    "a name that is a number": with_arrays(row(name=5)),  # type: ignore[arg-type]
    "2**62 items": with_arrays(row(shape=(2**62,))),
    "shape whose product wraps": with_arrays(row(shape=(2**32, 2**32))),
    "shape hidden behind a 0": with_arrays(row(shape=(2**62, 0)), row("keys", shape=(16,))),
    "negative": with_arrays(row(shape=(-1,))),
    "a truth value": with_arrays(row(shape=(True, 16))),
    "a fraction": with_arrays(row(shape=(2.0,))),
    "a text": with_arrays(row(shape="2")),
    "100 dimensions": with_arrays(row(shape=(1,) * 100)),
    "offset beyond the file": with_arrays(row(offset=2**40)),
    "negative offset": with_arrays(row(offset=-64)),
    "overlap": with_arrays(row(shape=(8,)), row("keys", shape=(8,))),
    "hole": with_arrays(row(shape=(2,)), row("keys", shape=(0,), offset=128)),
    "same name twice": with_arrays(row(shape=(8,)), row(shape=(8,), offset=64)),
    "bytes left over": with_arrays(row(shape=(2,))),
    "rows are no objects": sealed_json({"fingerprints": {}, "arrays": [1]}),
    "arrays are an object": sealed_json({"fingerprints": {}, "arrays": {"a": 1}}),
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_a_named_error_and_allocates_nothing(
    path: Path, content: bytes
) -> None:  # 20, 19
    path.parent.mkdir()
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(StateFileError, match="header makes no sense"):
            read_state(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_the_same_maker_makes_files_that_are_read(path: Path) -> None:
    """What the table above is made with makes sound files too, so it is the header that is refused."""
    path.parent.mkdir()
    path.write_bytes(with_arrays(row(shape=(8,)), row("keys", shape=(8,), offset=64)))
    assert read_state(path).ids == (0,) * 8


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cut off"),
        (b"ts-state", "cut off"),
        (b"GGUF" + bytes(100), "no state of a model"),
        (
            sealed(b"{}", b"", version=FORMAT_VERSION + 1),
            f"format is {FORMAT_VERSION + 1}, not {FORMAT_VERSION}",
        ),
    ],
    ids=["empty", "magic only", "another file", "another format"],
)
def test_what_is_no_state_is_told_apart(
    path: Path, content: bytes, problem: str
) -> None:  # 20: format version
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StateFileError, match=problem):
        read_state(path)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
def test_what_is_no_file_cannot_be_read_and_nothing_waits_for_it(path: Path, kind: str) -> None:
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(StateFileError, match="cannot be read"):
        read_state(path)


def test_another_users_file_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(path, make_state())
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(StateFileError, match="belongs to another user"):
        read_state(path)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there(
    path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    write_state(path, make_state(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises((StateFileError, KeyboardInterrupt)):
            write_state(path, make_state(5))
    assert len(read_state(path).ids) == 3
    assert list(path.parent.iterdir()) == [path]


def test_one_that_is_too_long_is_not_written(path: Path) -> None:
    write_state(path, make_state(3))
    n_bytes = path.stat().st_size
    with pytest.raises(StateFileError, match="more than"):
        write_state(path, make_state(8), most_bytes=n_bytes)
    assert len(read_state(path).ids) == 3
    write_state(path, make_state(3), most_bytes=n_bytes)


def test_a_type_that_is_not_read_is_not_written(path: Path) -> None:
    state = StoredState({}, (1,), {"keys": np.zeros(3, np.complex64)})
    with pytest.raises(ValueError, match="`keys` is of type complex64"):
        write_state(path, state)
    assert not path.exists()


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from turbospark_chat.models.state_file import StoredState, write_state
n = 0
while True:
    n += 1
    write_state(Path(sys.argv[1]), StoredState({}, (n,) * 5, {"keys": np.full((64, 2**14), n, np.float32)}))
    print("written", flush=True)
"""


def test_a_killed_program_leaves_the_old_file_or_the_new_one(path: Path) -> None:
    for n_kill in range(3):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(1 + n_kill):  # a little later each time, as far as a write goes
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL if n_kill % 2 else signal.SIGTERM)
        writer.communicate()
        state = read_state(path)
        assert set(np.unique(state.arrays["keys"])) == set(state.ids)
