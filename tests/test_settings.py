"""Tests of where the user's files are, and of what the environment says of the arithmetic."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from turbospark_chat.errors import SettingError
from turbospark_chat.settings import (
    ARITHMETIC_VARIABLE,
    CACHE_DIR_VARIABLE,
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    MODELS_DIR_VARIABLE,
    Locations,
    is_numpy_asked,
)

FOLDERS = (MODELS_DIR_VARIABLE, CACHE_DIR_VARIABLE, DATA_DIR_VARIABLE)
CACHED = ("models", "kernels", "vocabularies", "digests")  # what can be made again


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*FOLDERS, CONFIG_VARIABLE, ARITHMETIC_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_files_are_below_the_users_own_folders_and_asking_creates_none(isolated_home: Path) -> None:
    locations = Locations.of_user()
    paths = [getattr(locations, field.name) for field in fields(Locations)]
    for path in paths:
        assert path.is_relative_to(isolated_home)
        assert "turbospark_chat" in path.parts
    assert len(set(paths)) == len(paths)
    assert list(isolated_home.iterdir()) == []


def test_what_can_be_made_again_is_cache_and_what_was_typed_is_not(isolated_home: Path) -> None:
    locations = Locations.of_user()
    for name in CACHED:
        assert getattr(locations, name).is_relative_to(isolated_home / "cache")
    assert locations.history_file.is_relative_to(isolated_home / "state")
    for path in (locations.conversations, locations.states):
        assert path.is_relative_to(isolated_home / "data")
    assert locations.config_file.is_relative_to(isolated_home / "config")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/srv/ts", "/srv/ts"), ("~/ts", "{home}/ts"), ("ts", "{cwd}/ts")],
    ids=["absolute", "below home", "below the working folder"],
)
@pytest.mark.parametrize(
    ("variable", "changed"),
    [
        (MODELS_DIR_VARIABLE, {"models": ""}),
        (CACHE_DIR_VARIABLE, {name: name for name in CACHED}),
        (DATA_DIR_VARIABLE, {"conversations": "conversations.db", "states": "states"}),
        (CONFIG_VARIABLE, {"config_file": ""}),
    ],
)
def test_a_variable_moves_its_files_and_no_other(
    variable: str,
    changed: dict[str, str],
    value: str,
    expected: str,
    isolated_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = Locations.of_user()
    monkeypatch.setenv(variable, value)
    folder = Path(expected.format(home=isolated_home, cwd=tmp_path))
    for field in fields(Locations):
        name = field.name
        wanted = folder / changed[name] if name in changed else getattr(before, name)
        assert getattr(Locations.of_user(), name) == wanted


def test_the_models_variable_beats_the_cache_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, "/srv/cache")
    monkeypatch.setenv(MODELS_DIR_VARIABLE, "/srv/models")
    assert Locations.of_user().models == Path("/srv/models")
    assert Locations.of_user().kernels == Path("/srv/cache/kernels")


@pytest.mark.parametrize("variable", [*FOLDERS, CONFIG_VARIABLE])
def test_empty_variable_is_as_good_as_none(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = Locations.of_user()
    monkeypatch.setenv(variable, "")
    assert Locations.of_user() == unset


@pytest.mark.parametrize(
    ("value", "expected"), [(None, False), ("", False), ("compiled", False), ("numpy", True)]
)
def test_numpy_computes_where_it_is_asked_for(
    value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv(ARITHMETIC_VARIABLE, value)
    assert is_numpy_asked() is expected


@pytest.mark.parametrize("value", ["Numpy", "numba", "0", "numpy ", "x" * 1000])
def test_an_arithmetic_that_does_not_exist_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARITHMETIC_VARIABLE, value)
    with pytest.raises(SettingError, match="TS_ARITHMETIC is .*: give compiled or numpy") as caught:
        is_numpy_asked()
    assert len(str(caught.value)) < 80


def test_importing_settings_imports_no_other_package() -> None:
    program = "import sys, turbospark_chat.settings; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in imported.stdout.split() if name.split(".")[0] == "turbospark_chat"}
    assert ours == {"turbospark_chat", "turbospark_chat.errors", "turbospark_chat.settings"}
    assert not {"platformdirs", "numpy", "typer", "prompt_toolkit", "rich"} & set(imported.stdout.split())
