"""The package imports wherever it is put: read-only, without a home folder, inside a zip file (case F20)."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "turbospark_chat"
PROGRAM = "import turbospark_chat.command_line.launch, turbospark_chat; print(turbospark_chat.__file__)"


def import_from(place: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Import everything a chat needs in a new process that finds the package only at `place`."""
    program = f"import sys; sys.path.insert(0, {str(place)!r}); {PROGRAM}"
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=60,
    )


@pytest.fixture
def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("HOME", "PYTHONPATH")}


def test_a_read_only_install_without_a_home_imports(tmp_path: Path, environment: dict[str, str]) -> None:
    place = tmp_path / "site"
    shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        run = import_from(place, environment)
    finally:
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(place)) and run.stderr == ""


def test_the_package_imports_from_a_zip_file(tmp_path: Path, environment: dict[str, str]) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in PACKAGE.rglob("*.py"):
            zipped.write(path, path.relative_to(PACKAGE.parent))
    run = import_from(archive, environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(archive)) and run.stderr == ""
