"""What a model's states depend on, as short texts to compare: a state is good only where all of them are the same."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turbospark_chat.errors import StateFileError
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.sealed_file import digest_of, read_sealed, write_sealed
from turbospark_chat.models.state import State
from turbospark_chat.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from turbospark_chat.models.verification import CancelFlag

_READ_BYTES: Final = 2**20  # at a time, between two looks at the flag


class FileDigest:
    """The digest of a model file's content, read once: a folder keeps it for as long as the file is the same."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Note which file it is now, before it is loaded."""
        self._path, self._stored = path, folder / digest_of(str(path.absolute()), sources=())
        self._file = _identity(path)

    def read(self, *, cancel: "CancelFlag | None" = None) -> str:
        """Return the digest; of a large file that is not known yet it takes seconds, unless it is cancelled.

        Raises:
            StateFileError: the file is no longer the one there was, or cannot be read, or reading it was cancelled.
        """
        if not self._file or _identity(self._path) != self._file:
            raise StateFileError(self._path, "the model file is not the one that was loaded any more")
        stored = (read_sealed(self._stored) or b"").decode().partition("\n")
        if stored[0] == self._file:
            return stored[2]
        try:
            digest = _digest_of_file(self._path, cancel)
        except OSError as error:
            raise StateFileError(self._path, f"it cannot be read: {error.strerror or error}") from error
        if _identity(self._path) == self._file:
            write_sealed(self._stored, f"{self._file}\n{digest}".encode())
        return digest


class ModelFingerprints:
    """The fingerprints of a loaded model; taken when they are first asked for."""

    def __init__(
        self, file: FileDigest, *, config: ModelConfig, vocabulary: Vocabulary, empty_state: State
    ) -> None:
        self._file, self._config, self._vocabulary = file, config, vocabulary
        self._empty_state = empty_state
        self._parts: Mapping[str, str] | None = None

    def read(self, cancel: "CancelFlag | None" = None) -> Mapping[str, str]:
        """Return the fingerprints by what they are of.

        Raises:
            StateFileError: the model's file has changed, or reading it was cancelled.
        """
        if self._parts is None:
            self._parts = self._take(cancel)
        return self._parts

    def _take(self, cancel: "CancelFlag | None") -> Mapping[str, str]:
        numbers = asdict(self._config)
        arrays = self._empty_state.export().items()
        types = sorted({f"{name.rstrip('0123456789 ')} {array.dtype.str}" for name, array in arrays})
        sources = sorted(Path(__file__).parent.rglob("*.py"))
        return {
            "model file": self._file.read(cancel=cancel),
            "tokenizer": _digest_of_vocabulary(self._vocabulary),
            **{name.replace("_", " "): repr(value) for name, value in numbers.items()},
            "cache": f"{type(self._empty_state).__name__}: {', '.join(types)}",
            # What computes may have been mended since.
            "version of this program": digest_of(sources=sources),
        }


def _digest_of_file(path: Path, cancel: "CancelFlag | None") -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            if cancel is not None and cancel.is_set():
                raise StateFileError(path, "reading it was stopped")
            digest.update(part)
    return digest.hexdigest()


def _identity(path: Path) -> str:
    """Return what changes when a file does, empty where there is none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _digest_of_vocabulary(vocabulary: Vocabulary) -> str:
    """Return a digest of all that decides which ids a text becomes, and which text ids are."""
    rule = vocabulary.pre_tokenizer
    kinds = (vocabulary.control_ids, vocabulary.user_defined_ids, vocabulary.byte_ids, vocabulary.normal_ids)
    parts = (
        *("\0".join(kind) + repr(tuple(kind.values())) for kind in kinds),
        "\0".join(vocabulary.pieces),
        "\0".join(f"{left} {right}" for left, right in vocabulary.merges),
        repr(tuple(vocabulary.scores)),
        repr(None if rule is None else (rule.patterns, rule.ignore_merges, rule.adds_bos)),
        repr((vocabulary.family, vocabulary.add_space_prefix, vocabulary.add_bos, vocabulary.bos_id)),
    )
    return digest_of(*(part.encode("utf-8", "surrogatepass") for part in parts), sources=())
