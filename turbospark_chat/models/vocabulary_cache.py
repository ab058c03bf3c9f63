"""Vocabularies kept on disk from one run to the next: to gather one from a file's metadata takes longer than a turn."""

import marshal
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.pre_tokenizer import PreTokenizerRule
from turbospark_chat.models.sealed_file import digest_of, read_sealed, write_sealed
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary

_SOURCES = (
    "control_names.py",
    "gguf_metadata.py",
    "pre_tokenizer.py",
    "vocabulary.py",
    "vocabulary_cache.py",
)
_PYTHON = f"{sys.version_info[:2]} {marshal.version}"  # the stored form is this Python's own


class VocabularyCache:
    """Reads vocabularies through a folder, keyed by the whole header of the file they come from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, file: GgufFile) -> Vocabulary:
        """Return a file's vocabulary. One that gives cause for a warning is not kept: each run is to say so.

        Raises:
            ModelFileError, UnsupportedModelError: as `read_vocabulary`.
        """
        here = Path(__file__).parent
        name = digest_of(_PYTHON, file.fingerprint(), sources=[here / source for source in _SOURCES])
        stored = read_sealed(self._folder / name)
        if stored is not None and (vocabulary := _from_bytes(stored)) is not None:
            return vocabulary
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            vocabulary = read_vocabulary(file.metadata, source=file.path)
        for warning in said:
            warnings.warn(warning.message, stacklevel=3)
        if not said:
            write_sealed(self._folder / name, _to_bytes(vocabulary))
        return vocabulary


def _to_bytes(vocabulary: Vocabulary) -> bytes:
    values = {field.name: getattr(vocabulary, field.name) for field in fields(Vocabulary)}
    rule = vocabulary.pre_tokenizer
    if rule is not None:
        values["pre_tokenizer"] = (rule.patterns, rule.ignore_merges, rule.adds_bos)
    # Two long rows of strings load faster than as many pairs.
    values["merges"] = tuple(zip(*vocabulary.merges, strict=True))
    return marshal.dumps(
        {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in values.items()
        }
    )


def _from_bytes(stored: bytes) -> Vocabulary | None:
    """Return what `_to_bytes` stored, None where it is something else."""
    try:
        return _from_values(marshal.loads(stored))
    except (ValueError, TypeError, AttributeError, KeyError, EOFError):
        return None


def _from_values(values: dict[str, Any]) -> Vocabulary:
    for name, value in values.items():
        if isinstance(value, dict):
            values[name] = MappingProxyType(value)
    if values["pre_tokenizer"] is not None:
        values["pre_tokenizer"] = PreTokenizerRule(*values["pre_tokenizer"])
    values["merges"] = tuple(zip(*values["merges"], strict=True))
    return Vocabulary(**values)
