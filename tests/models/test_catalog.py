"""Tests of what a MODEL argument means."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turbospark_chat.errors import ModelFileError, UnknownModelError
from turbospark_chat.models.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogEntry,
    installed_path,
    is_installed,
    resolve,
)

ENTRY = CATALOG[DEFAULT_MODEL]


@dataclass(frozen=True)
class Folder:
    models: Path


@pytest.fixture
def locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return locations in an empty folder, with a working folder beside it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Folder(tmp_path / "models")


def write_sparse(path: Path, n_bytes: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(n_bytes)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_catalogue_name_means_its_file_in_the_models_folder(entry: CatalogEntry, locations: Folder) -> None:
    model = resolve(entry.name, locations)
    assert (model.name, model.entry) == (entry.name, entry)
    assert model.path == locations.models / entry.file_name


def test_catalogue_name_wins_over_a_file_of_that_name_and_a_dot_picks_the_file(locations: Folder) -> None:
    Path(ENTRY.name).write_bytes(b"GGUF")
    assert resolve(ENTRY.name, locations).entry is ENTRY
    assert resolve(f"./{ENTRY.name}", locations).entry is None


@pytest.mark.parametrize(("n_missing", "expected"), [(0, True), (1, False), (-1, False)])
def test_installed_means_a_file_of_full_size(n_missing: int, expected: bool, locations: Folder) -> None:
    write_sparse(installed_path(ENTRY, locations), ENTRY.n_bytes - n_missing)
    assert is_installed(ENTRY, locations) is expected


def test_without_a_file_an_entry_is_not_installed(locations: Folder) -> None:
    assert not is_installed(ENTRY, locations)
    folder = installed_path(ENTRY, locations)
    folder.mkdir(parents=True)
    assert not is_installed(replace(ENTRY, n_bytes=folder.stat().st_size), locations)


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("tiny.gguf", "tiny.gguf"),
        ("tiny.GGUF", "tiny.GGUF"),
        ("sub/tiny", "sub/tiny"),
        ("tiny", "tiny"),
        ("~/tiny.gguf", "{home}/tiny.gguf"),
    ],
)
def test_path_means_that_file(model: str, file: str, isolated_home: Path, locations: Folder) -> None:
    path = Path(file.format(home=isolated_home))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"GGUF")
    found = resolve(model, locations)
    assert (found.name, found.path, found.entry) == ("tiny", path, None)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("missing.gguf", "missing.gguf: no such file; check the path, or use a catalogue name: smollm2,"),
        ("missing.GGUF", "missing.GGUF: no such file"),
        ("no/such", "no/such: no such file"),
        ("file.gguf/tiny.gguf", "no such file"),
        ("folder", "folder: is a folder; give the path of the .gguf file in it"),
        ("folder/", "is a folder"),
        ("~", "is a folder"),
        ("loop.gguf", "loop.gguf: cannot be read: "),
        ("pipe.gguf", "pipe.gguf: is not a regular file"),
        ("long/" + "x" * 5000, "cannot be read: "),
        ("zero\0.gguf", "cannot be read: "),
    ],
)
def test_path_of_no_readable_file_says_what_to_try(model: str, problem: str, locations: Folder) -> None:
    Path("file.gguf").write_bytes(b"GGUF")
    Path("folder").mkdir()
    Path("loop.gguf").symlink_to("loop.gguf")
    os.mkfifo("pipe.gguf")
    with pytest.raises(ModelFileError) as caught:
        resolve(model, locations)
    assert not isinstance(caught.value, UnknownModelError)
    assert problem in str(caught.value)


def test_file_without_read_permission_says_so(locations: Folder, request: pytest.FixtureRequest) -> None:
    Path("secret.gguf").write_bytes(b"GGUF")
    Path("secret.gguf").chmod(0)
    Path().chmod(0o755)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(
        ModelFileError, match="cannot be read: Permission denied; check the path and its perm"
    ):
        resolve("./secret.gguf", locations)


@pytest.mark.parametrize(
    ("model", "hint"),
    [("smollm", "did you mean `smollm2`?"), ("SmolLM2", "did you mean `smollm2`?"), ("zephyr", ""), ("", "")],
)
def test_unknown_name_lists_the_names_and_the_nearest(model: str, hint: str, locations: Folder) -> None:
    with pytest.raises(UnknownModelError) as caught:
        resolve(model, locations)
    message = str(caught.value)
    assert message.startswith(f"{model or repr(model)}: no model of this name and no such file; {hint}")
    assert message.endswith(f"known names: {', '.join(CATALOG)}")
    assert ("did you mean" in message) == bool(hint)


@given(st.text())
@example("~\0")
def test_whatever_is_typed_ends_in_an_error_the_program_can_explain(model: str) -> None:
    with pytest.raises(ModelFileError):
        resolve(f"{model}.nothing", Folder(Path("nowhere")))


@pytest.mark.weights
def test_default_model_is_installed_once_fetched(smollm2_path: Path) -> None:
    assert is_installed(ENTRY, Folder(smollm2_path.parent))
    with smollm2_path.open("rb") as file:
        assert file.read(4) == b"GGUF"
