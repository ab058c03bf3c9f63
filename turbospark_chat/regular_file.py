"""Reads a file that a user named: all of it, but only if it is one. A FIFO or a device may never end."""

import errno
from pathlib import Path


def read_regular_file(path: Path, *, most_bytes: int) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: it cannot be read, is no regular file, or has more bytes than these.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a folder fails by itself
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes / 1e6:.0f} MB")
    return data
