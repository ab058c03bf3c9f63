"""Files of a cache: stored whole or not at all, and read back only if they are this user's and undamaged.

What is in a cache can be made again, so no failure to read or write it is an error. The digest guards against
damage, not against whoever may write to the user's own folder.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_DIGEST_BYTES = 32


def read_sealed(path: Path) -> bytes | None:
    """Return what was stored, None where it is missing, damaged or somebody else's."""
    try:
        if not is_own(path.stat()):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    digest, stored = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return stored if _seal(path, stored) == digest else None


def write_sealed(path: Path, content: bytes) -> bool:
    """Store bytes with their digest, in a folder for this user alone; return whether it could be done."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(_seal(path, content) + content)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError:
        return False
    return True


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, as far as the platform tells."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _seal(path: Path, content: bytes) -> bytes:
    """Return the digest that a file begins with: of its name too, so that one copied over another is no good."""
    return hashlib.sha256(f"{path.parent.name}/{path.name}\n".encode() + content).digest()


def digest_of(*parts: bytes | str, sources: Iterable[Path]) -> str:
    """Return a name for what is made from these parts by this code."""
    digest = hashlib.sha256()
    for part in (*parts, *(source.read_bytes() for source in sources)):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]
