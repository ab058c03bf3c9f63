"""The key-value metadata of a GGUF file, found at opening and decoded when asked for.

Owns the types of values. Knows no key's meaning and no tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.gguf_cursor import GgufCursor, split_strings

Value = bool | int | float | str | list[str] | NDArray[Any]

# The numbers of the format's value types.
_STRING = 8
_ARRAY = 9
_DTYPES: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a value's bytes are: `count` values of a type, or one value where `count` is None."""

    value_type: int
    count: int | None
    start: int
    end: int

    def __str__(self) -> str:
        """What it is, for an error message."""
        name = "string" if self.value_type == _STRING else _DTYPES[self.value_type].name
        return name if self.count is None else f"array of {self.count} {name}"


class GgufMetadata(Mapping[str, Value]):
    """The metadata by key, in the file's order.

    An array of numbers is a read-only ndarray, an array of strings a list. Where a string is not UTF-8 it has
    U+FFFD. Values are decoded at each access, while the file is open: keep a large array rather than asking
    twice.
    """

    def __init__(self, path: Path, data: mmap, fields: Mapping[str, _Field]) -> None:
        self._path = path
        self._data = data
        self._fields = fields

    @classmethod
    def read(cls, cursor: GgufCursor, count: int) -> Self:
        """Walk over `count` entries, checking every length and decoding no value.

        Raises:
            ModelFileError: the file ends too early, a key appears twice or a value has no known type.
            UnsupportedModelError: a value is an array of arrays.
        """
        fields: dict[str, _Field] = {}
        for _ in range(count):
            key = cursor.name()
            if key in fields:
                raise ModelFileError(cursor.path, f"damaged: metadata key `{key}` appears twice")
            fields[key] = _read_field(cursor, key)
        return cls(cursor.path, cursor.data, fields)

    def __getitem__(self, key: str) -> Value:
        """Decode the value of `key`."""
        field = self._fields[key]
        raw = self._data[field.start : field.end]
        if field.value_type == _STRING:
            strings = [string.decode("utf-8", "replace") for string in split_strings(raw)]
            return strings[0] if field.count is None else strings
        numbers = np.frombuffer(raw, _DTYPES[field.value_type])
        if field.count is not None:
            return numbers
        number: Value = numbers[0].item()
        return number

    def __contains__(self, key: object) -> bool:
        """Tell whether there is such a key, decoding nothing."""
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in the file's order."""
        return iter(self._fields)

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._fields)

    def get_int(self, key: str, default: int) -> int:
        """Return an integer, or `default` where there is no such key.

        Raises:
            ModelFileError: a value of another type.
        """
        value = self.get(key, default)
        if type(value) is not int:  # not isinstance: a bool is no int here
            raise ModelFileError(
                self._path, f"metadata `{key}` should be an integer, found {self._fields[key]}"
            )
        return value


def _read_field(cursor: GgufCursor, key: str) -> _Field:
    value_type, count = cursor.u32(), None
    if value_type == _ARRAY:
        value_type, count = cursor.u32(), cursor.u64()
        if value_type == _ARRAY:
            raise UnsupportedModelError(
                cursor.path, f"metadata `{key}` is an array of arrays; no known model has one"
            )
    start = cursor.position
    n_values = 1 if count is None else count
    if value_type == _STRING:
        cursor.skip_strings(n_values)
    elif value_type in _DTYPES:
        cursor.skip(n_values * _DTYPES[value_type].itemsize)
    else:
        raise ModelFileError(cursor.path, f"damaged: metadata `{key}` has the unknown type {value_type}")
    return _Field(value_type, count, start, cursor.position)
