"""A GGUF model file, version 2 or 3: mapped read-only, checked at opening, its tensors read on demand.

Owns the file's layout, as https://github.com/ggml-org/ggml/blob/9d325133eed396b7bf005a53a83d9747cbd8bde1/docs/gguf.md
describes it. Knows no architecture and no key's meaning but the alignment and the number of files.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.gguf_cursor import GgufCursor, truncated
from turbospark_chat.models.gguf_metadata import GgufMetadata
from turbospark_chat.models.quants import FORMATS, Bytes, Floats, GgmlType, dequantize
from turbospark_chat.models.weight import Weight

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16  # the largest memory page in use
_MIN_ENTRY = 13  # bytes of a metadata entry: key length, type, a value of one byte
_MIN_TENSOR_INFO = 24  # bytes of a tensor's description: name length, n_dims, type, offset
_PART_NAME = re.compile(r"\.part(\d+)of(\d+)$")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is and what it holds."""

    name: str
    ggml_type: int  # a GgmlType, or the bare number of a type this program does not read
    shape: tuple[int, ...]  # as numpy has it: (rows, columns), GGUF's dimensions reversed
    offset: int  # bytes from the start of the file
    n_bytes: int  # 0 where the type is not read: its size is unknown


class GgufFile:
    """An open GGUF file. Use it in a `with` statement, or call `close()`.

    `metadata` can be listed whatever the tensors' types; `check_supported()` says whether they can be loaded.
    """

    def __init__(
        self,
        path: Path,
        file: BufferedReader,
        data: mmap,
        metadata: GgufMetadata,
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._file, self._data = file, data

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Map the file and check its header: every count, length, offset and size against the file's size.

        Raises:
            ModelFileError: missing, truncated, damaged or not GGUF.
            UnsupportedModelError: sound, but in a variant of the format that is not read.
        """
        path = Path(path)
        if match := _PART_NAME.search(path.name):
            raise UnsupportedModelError(
                path,
                f"is part {match[1]} of {match[2]} of one file; join the parts in order with `cat` first",
            )
        file = _open(path)
        try:
            return cls(path, file, *_read_header(path, _map(path, file)))
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Unmap the file: nothing more can be read, metadata included.

        Arrays from `tensor_bytes` stay valid: while any is alive, the mapping stays too.
        """
        self._file.close()
        with suppress(BufferError):
            self._data.close()

    def check_supported(self) -> None:
        """Check that every tensor can be loaded, allocating nothing.

        Raises:
            UnsupportedModelError: a tensor has a type that is not read, or the model has further files.
        """
        n_files = self.metadata.get_int("split.count", 1)
        if n_files > 1:
            raise UnsupportedModelError(
                self.path,
                f"is one of {n_files} files of a model; merge them with `llama-gguf-split --merge` first",
            )
        for info in self.tensors.values():
            self._check_type(info)

    def tensor_bytes(self, name: str) -> Bytes:
        """Return a tensor's blocks as a read-only view of the file, (n_bytes,).

        Raises:
            UnsupportedModelError: the file has no such tensor, or its type is not read.
        """
        info = self._info(name)
        self._check_type(info)
        return np.frombuffer(self._data, np.uint8, count=info.n_bytes, offset=info.offset)

    @property
    def size(self) -> int:
        """Bytes of the file, as it was when opened."""
        return len(self._data)

    def fingerprint(self) -> bytes:
        """Return a digest of everything before the weights: two files that share it have the same metadata."""
        end = min((info.offset for info in self.tensors.values()), default=self.size)
        return hashlib.sha256(self._data[:end]).digest()

    def map_weight(self, name: str) -> Weight:
        """Return a matrix as a view of the file, which must keep its length as long as the view is used.

        Raises:
            ModelFileError: the file is shorter than when it was opened.
            UnsupportedModelError: the file has no such tensor, or its type is not read.
        """
        info = self._info(name)
        data = self.tensor_bytes(name)
        if os.fstat(self._file.fileno()).st_size < info.offset + info.n_bytes:
            raise self._cut_short(info, os.fstat(self._file.fileno()).st_size - info.offset)
        rows, columns = info.shape
        return Weight(data, GgmlType(info.ggml_type), (rows, columns))

    def load(self, name: str) -> Floats:
        """Return a tensor's values as a new, read-only float32 array in its shape.

        It is read, not taken from the mapping: where another program cuts the file short meanwhile, a read comes up
        short, and a look at the mapping would kill the process.

        Raises:
            ModelFileError: the file is shorter than when it was opened, or cannot be read.
            UnsupportedModelError: the file has no such tensor, or its type is not read.
        """
        info = self._info(name)
        self._check_type(info)
        blocks = np.empty(info.n_bytes, np.uint8)
        try:
            self._file.seek(info.offset)
            n_read = self._file.readinto(blocks.data)
        except OSError as error:
            raise ModelFileError(self.path, f"cannot be read: {error.strerror}") from error
        if n_read < info.n_bytes:
            raise self._cut_short(info, n_read)
        values = dequantize(blocks, info.ggml_type, info.shape)
        values.setflags(write=False)  # arithmetic that writes a weight must fail
        return values

    def _cut_short(self, info: TensorInfo, n_bytes: int) -> ModelFileError:
        return ModelFileError(
            self.path,
            f"was cut short while it was read: `{info.name}` needs {info.n_bytes} bytes, has {max(n_bytes, 0)}",
        )

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise UnsupportedModelError(
                self.path, f"missing tensor `{name}`: not a variant this program knows"
            )
        return self.tensors[name]

    def _check_type(self, info: TensorInfo) -> None:
        if info.ggml_type not in FORMATS:
            known = " ".join(GgmlType(number).name for number in FORMATS)
            raise UnsupportedModelError(
                self.path,
                f"tensor `{info.name}` has the unsupported type {info.ggml_type} (supported: {known})",
            )


def _open(path: Path) -> BufferedReader:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise ModelFileError(path, "not a file" if path.exists() else "no such file")
        return path.open("rb")
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror}") from error


def _map(path: Path, file: BufferedReader) -> mmap:
    try:
        return mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # what mmap says of 0 bytes
        raise ModelFileError(path, "the file is empty; download it again") from error


def _read_header(path: Path, data: mmap) -> tuple[mmap, GgufMetadata, dict[str, TensorInfo]]:
    cursor = GgufCursor(path, data)
    _check_version(cursor)
    n_tensors, n_entries = cursor.u64(), cursor.u64()
    cursor.require(n_tensors * _MIN_TENSOR_INFO + n_entries * _MIN_ENTRY)
    metadata = GgufMetadata.read(cursor, n_entries)
    alignment = _alignment(path, metadata)
    tensors = _read_tensors(cursor, n_tensors, alignment)
    _check_layout(path, list(tensors.values()), alignment, len(data))
    return data, metadata, tensors


def _check_version(cursor: GgufCursor) -> None:
    magic = cursor.take(len(_MAGIC))
    if magic != _MAGIC:
        raise ModelFileError(cursor.path, f"not a GGUF file: it begins with {magic!r}")
    version = cursor.u32()
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise UnsupportedModelError(cursor.path, "big-endian GGUF; only little-endian files are supported")
    if version not in _VERSIONS:
        raise UnsupportedModelError(cursor.path, f"GGUF version {version}; only 2 and 3 are supported")


def _alignment(path: Path, metadata: GgufMetadata) -> int:
    alignment = metadata.get_int("general.alignment", 32)
    if not 8 <= alignment <= _MAX_ALIGNMENT or alignment.bit_count() != 1:
        raise ModelFileError(
            path, f"`general.alignment` must be a power of two from 8 to {_MAX_ALIGNMENT}: {alignment}"
        )
    return alignment


def _read_tensors(cursor: GgufCursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(count):
        info = _read_tensor(cursor)
        if info.name in tensors:
            raise ModelFileError(cursor.path, f"damaged: tensor `{info.name}` appears twice")
        tensors[info.name] = info
    data_start = -(-cursor.position // alignment) * alignment
    return {name: replace(info, offset=data_start + info.offset) for name, info in tensors.items()}


def _read_tensor(cursor: GgufCursor) -> TensorInfo:
    """Read one description; the offset is still counted from the start of the tensor data."""
    name = cursor.name()
    n_dims = cursor.u32()
    if n_dims > _MAX_DIMS:
        raise ModelFileError(
            cursor.path, f"tensor `{name}` has {n_dims} dimensions; at most {_MAX_DIMS} are possible"
        )
    shape = tuple(cursor.u64() for _ in range(n_dims))[::-1]
    ggml_type, offset = cursor.u32(), cursor.u64()
    if 0 in shape:
        raise ModelFileError(cursor.path, f"tensor `{name}` has no values: its shape is {shape}")
    if ggml_type not in FORMATS:
        return TensorInfo(name, ggml_type, shape, offset, n_bytes=0)
    try:
        n_bytes = FORMATS[ggml_type].size_of(shape)
    except ValueError as error:
        raise ModelFileError(
            cursor.path, f"tensor `{name}` of type {GgmlType(ggml_type).name}: {error}"
        ) from error
    return TensorInfo(name, GgmlType(ggml_type), shape, offset, n_bytes)


def _check_layout(path: Path, tensors: Sequence[TensorInfo], alignment: int, size: int) -> None:
    """Check that the tensors lie within the file, aligned and apart."""
    needed = max((info.offset + info.n_bytes for info in tensors), default=0)
    if needed > size:
        raise truncated(path, needed, size)
    in_order = sorted(tensors, key=lambda info: info.offset)
    for info in in_order:
        if info.offset % alignment:
            raise ModelFileError(path, f"damaged: tensor `{info.name}` is not aligned to {alignment} bytes")
    for info, following in zip(in_order, in_order[1:], strict=False):
        if following.offset < info.offset + info.n_bytes:
            raise ModelFileError(path, f"damaged: tensors `{info.name}` and `{following.name}` overlap")
