"""Tests of where the user's files are."""

import subprocess
import sys
from pathlib import Path

import pytest

from turbospark_chat.settings import MODELS_DIR_VARIABLE, Locations


def test_files_are_below_the_users_own_folders_and_asking_creates_none(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MODELS_DIR_VARIABLE)
    locations = Locations.of_user()
    for path in (locations.models, locations.history_file):
        assert path.is_relative_to(isolated_home)
        assert "turbospark_chat" in path.parts
    assert list(isolated_home.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/srv/models", "/srv/models"), ("~/models", "{home}/models"), ("models", "{cwd}/models")],
    ids=["absolute", "below home", "below the working folder"],
)
def test_variable_overrides_the_models_folder_only(
    value: str, expected: str, isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    history_file = Locations.of_user().history_file
    monkeypatch.setenv(MODELS_DIR_VARIABLE, value)
    locations = Locations.of_user()
    assert locations.models == Path(expected.format(home=isolated_home, cwd=tmp_path))
    assert locations.history_file == history_file


def test_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODELS_DIR_VARIABLE)
    unset = Locations.of_user()
    monkeypatch.setenv(MODELS_DIR_VARIABLE, "")
    assert Locations.of_user() == unset


def test_importing_settings_imports_no_other_package() -> None:
    program = "import sys, turbospark_chat.settings; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in imported.stdout.split() if name.split(".")[0] == "turbospark_chat"}
    assert ours == {"turbospark_chat", "turbospark_chat.settings"}
    assert not {"platformdirs", "numpy", "typer", "prompt_toolkit", "rich"} & set(imported.stdout.split())
