"""A walk through the header of a GGUF file in which no count or length is believed before it is checked.

Owns the little-endian fields and the end of the file. Knows neither metadata nor tensors.
"""

from mmap import mmap
from pathlib import Path
from struct import Struct

from turbospark_chat.errors import ModelFileError

_U32 = Struct("<I")
_U64 = Struct("<Q")
_MAX_NAME_BYTES = 65_535  # the format's limit for a key


def truncated(path: Path, needed: int, size: int) -> ModelFileError:
    """Return the error of a file that ends before what its header promises."""
    return ModelFileError(path, f"truncated: needs {needed} bytes, has {size}; download it again")


def split_strings(data: bytes) -> list[bytes]:
    """Return the strings in `data`, each stored as its length in eight bytes and its bytes."""
    strings = []
    position = 0
    while position < len(data):
        start = position + _U64.size
        position = start + _U64.unpack_from(data, position)[0]
        strings.append(data[start:position])
    return strings


class GgufCursor:
    """A position in a mapped file, moved past what is read and never past the end of the file.

    Every method raises ModelFileError where the file ends too early, before anything of that size is
    allocated. Counts and lengths are Python integers, which do not wrap.
    """

    def __init__(self, path: Path, data: mmap) -> None:
        self.path = path
        self.position = 0
        self.data = data

    def skip(self, n_bytes: int) -> int:
        """Move past `n_bytes` and return where they begin."""
        self.require(n_bytes)
        start = self.position
        self.position += n_bytes
        return start

    def require(self, n_bytes: int) -> None:
        """Check that at least `n_bytes` follow."""
        if self.position + n_bytes > len(self.data):
            raise truncated(self.path, self.position + n_bytes, len(self.data))

    def take(self, n_bytes: int) -> bytes:
        """Read `n_bytes`."""
        start = self.skip(n_bytes)
        return self.data[start : start + n_bytes]

    def u32(self) -> int:
        """Read an unsigned integer of four bytes."""
        value: int = _U32.unpack_from(self.data, self.skip(_U32.size))[0]
        return value

    def u64(self) -> int:
        """Read an unsigned integer of eight bytes."""
        value: int = _U64.unpack_from(self.data, self.skip(_U64.size))[0]
        return value

    def name(self) -> str:
        """Read a metadata key or a tensor's name: short, and fit to be shown in a terminal."""
        length = self.u64()
        if length > _MAX_NAME_BYTES:
            raise ModelFileError(
                self.path, f"damaged: a name of {length} bytes at byte {self.position}; download it again"
            )
        raw = self.take(length)
        name = raw.decode("utf-8", "replace")
        if not name.isprintable() or name.encode() != raw:
            raise ModelFileError(self.path, f"damaged: unreadable name {raw[:40]!r}; download it again")
        return name

    def skip_strings(self, count: int) -> None:
        """Move past `count` strings without reading them."""
        self.require(count * _U64.size)
        unpack, data, size = _U64.unpack_from, self.data, len(self.data)
        last = size - _U64.size  # where a length can begin
        position = self.position
        for _ in range(count):  # 0.12 us a string: a large vocabulary has 262,144
            if position > last:
                raise truncated(self.path, position + _U64.size, size)
            position += _U64.size + unpack(data, position)[0]
        if position > size:
            raise truncated(self.path, position, size)
        self.position = position
