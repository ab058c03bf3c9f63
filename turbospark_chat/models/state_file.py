"""The file of a state: its ids, its arrays, and what they were computed with. It is believed whole or not at all.

Knows no model: what the fingerprints stand for, and whether the arrays fit, is for whoever asks. All numbers are
little-endian:

    8 bytes   magic
    2 x u32   format version, length of the header
    header    JSON: {"fingerprints": {name: text}, "arrays": [{"name", "type", "shape", "offset"}, ...]}
    arrays    each at its offset from the header's end, a multiple of 64, in the header's order; zeros in between
    32 bytes  SHA-256 of all before
"""

import hashlib
import json
import mmap
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.errors import StateFileError

if TYPE_CHECKING:
    from turbospark_chat.models.verification import CancelFlag

FORMAT_VERSION: Final = 1
UNFINISHED_SUFFIX: Final = ".part"  # of a file being written; a killed program leaves it behind

_MAGIC: Final = b"ts-state"
_START: Final = struct.Struct("<8sII")
_ALIGNMENT: Final = 64
_DIGEST_BYTES: Final = 32
_MOST_HEADER_BYTES: Final = 2**22
_MOST_DIMENSIONS: Final = 8
_TYPES: Final = ("<f4", "<f2", "<i8", "<i4", "<i2", "|i1")
_IDS: Final = "token ids"  # the first array


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a file holds. `arrays` that were read are views of the file: read-only, and valid while it is kept."""

    fingerprints: Mapping[str, str]
    ids: tuple[int, ...]
    arrays: Mapping[str, NDArray[Any]]


def write_state(
    path: Path, state: StoredState, *, most_bytes: int | None = None, cancel: "CancelFlag | None" = None
) -> None:
    """Write a state, for this user alone. Whatever goes wrong, what was at `path` before still is.

    Args:
        most_bytes: the longest that the file may be; without it any length.
        cancel: is looked at before each array.

    Raises:
        StateFileError: it cannot be written, or would be longer, or was cancelled.
    """
    arrays = {_IDS: np.array(state.ids, "<i8"), **state.arrays}
    header, size = _lay_out(state.fingerprints, arrays)
    if most_bytes is not None and size > most_bytes:
        raise StateFileError(
            path, f"it would take {size / 1e6:,.0f} MB, more than {most_bytes / 1e6:,.0f} MB"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _replacing(path) as file:
            digest = hashlib.sha256()
            for part in _parts(header, arrays):
                if cancel is not None and cancel.is_set():
                    raise StateFileError(path, "writing it was stopped")
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
    except OSError as error:
        raise StateFileError(path, f"it cannot be written: {error.strerror or error}") from error


def read_state(path: Path) -> StoredState:
    """Return what a file holds, once all of it is checked.

    Raises:
        StateFileError: it cannot be read, is somebody else's, of another format, or damaged.
    """
    try:
        content = _map(path)
    except OSError as error:
        raise StateFileError(path, f"it cannot be read: {error.strerror or error}") from error
    if len(content) < _START.size + _DIGEST_BYTES:
        raise StateFileError(path, "it is cut off")
    magic, version, header_length = _START.unpack(content[: _START.size])
    if magic != _MAGIC:
        raise StateFileError(path, "it is no state of a model")
    if version != FORMAT_VERSION:
        raise StateFileError(path, f"its format is {version}, not {FORMAT_VERSION}")
    if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
        raise StateFileError(path, "it is damaged: its checksum does not match")
    try:
        return _parse(content, header_length)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateFileError(path, f"its header makes no sense ({type(error).__name__})") from error


def _lay_out(fingerprints: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, int]:
    """Return the header with all before it, and the size of the whole file."""
    rows, end = [], 0
    for name, array in arrays.items():
        if array.dtype.str not in _TYPES:
            raise ValueError(
                f"`{name}` is of type {array.dtype}: a state's arrays are of {', '.join(_TYPES)}"
            )
        offset = _aligned(end)
        rows.append({"name": name, "type": array.dtype.str, "shape": array.shape, "offset": offset})
        end = offset + array.nbytes
    header = json.dumps({"fingerprints": dict(fingerprints), "arrays": rows}).encode()
    header = header.ljust(_aligned(_START.size + len(header)) - _START.size)
    start = _START.pack(_MAGIC, FORMAT_VERSION, len(header)) + header
    return start, len(start) + end + _DIGEST_BYTES


def _parts(start: bytes, arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield what the file consists of before its checksum."""
    yield start
    end = 0
    for array in arrays.values():
        yield bytes(_aligned(end) - end)
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        end = _aligned(end) + array.nbytes


def _parse(content: memoryview, header_length: int) -> StoredState:
    first = _START.size + header_length
    if header_length > _MOST_HEADER_BYTES or first + _DIGEST_BYTES > len(content) or first % _ALIGNMENT:
        raise ValueError(f"a header of {header_length} bytes")
    header = json.loads(bytes(content[_START.size : first]))
    fingerprints = header["fingerprints"]
    if not all(isinstance(value, str) for value in fingerprints.values()):
        raise TypeError("a fingerprint that is no text")
    stored, end = content[first:-_DIGEST_BYTES], 0
    arrays: dict[str, NDArray[Any]] = {}
    for row in header["arrays"]:
        array, offset = _view(stored, row), _aligned(end)
        if row["offset"] != offset or row["name"] in arrays:
            raise ValueError("arrays that overlap, or leave a hole")
        arrays[row["name"]] = array
        end = offset + array.nbytes
    ids = arrays.pop(_IDS)
    if end != len(stored) or ids.ndim != 1 or ids.dtype.str != "<i8":
        raise ValueError("bytes that belong to no array, or ids that are none")
    return StoredState(fingerprints, tuple(ids.tolist()), arrays)


def _view(stored: memoryview, row: dict[str, Any]) -> NDArray[Any]:
    """Return the array of a row of the header, if it lies within the file."""
    shape, offset = row["shape"], row["offset"]
    if row["type"] not in _TYPES or not isinstance(row["name"], str) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("no such array")
    if not all(type(number) is int and 0 <= number <= len(stored) for number in (*shape, offset)):
        raise ValueError("a number that is none, or beyond the file")
    dtype, n_items = np.dtype(row["type"]), prod(shape)
    if offset + n_items * dtype.itemsize > len(stored):
        raise ValueError("an array beyond the file")
    if n_items == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(stored, dtype, n_items, offset).reshape(shape)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _map(path: Path) -> memoryview:
    """Return a file's bytes without reading them: mapped, since it may be as large as the cache it fills.

    A file is only ever replaced by another, so a mapped one keeps its length.
    """
    # Without O_NONBLOCK opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise OSError("it belongs to another user")
        if status.st_size == 0:  # which cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that takes the place of `path` once it is whole.

    It is not forced out to the disk: what a power failure leaves half written has no right checksum.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=UNFINISHED_SUFFIX, delete=False) as file:
        try:
            yield cast(BinaryIO, file)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
