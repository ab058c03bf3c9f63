"""Fixtures for every test: no real home folder is touched; real models are fetched once, as a user would."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from turbospark_chat import cli
from turbospark_chat.config.flags import SETTINGS
from turbospark_chat.models.catalog import CATALOG
from turbospark_chat.models.download import pull
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import Arithmetic
from turbospark_chat.settings import (
    CACHE_DIR_VARIABLE,
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    MODELS_DIR_VARIABLE,
    Locations,
)
from turbospark_chat.threads import BLAS_VARIABLES, physical_cores, set_blas_threads

set_blas_threads(max(1, physical_cores() - 1))  # before any test imports numpy


@pytest.fixture
def ts(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `ts`; return its exit code, stdout and stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def user_locations() -> Locations:
    """Return the real user's locations; session scope, so it is asked before any test is isolated."""
    return Locations.of_user()


@pytest.fixture(scope="session")
def cache_folder(user_locations: Locations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with the user's own compiled kernels in it, and nothing of the vocabularies tests make up."""
    folder = tmp_path_factory.mktemp("cache")
    user_locations.kernels.mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(user_locations.kernels)
    return folder


@pytest.fixture(autouse=True)
def isolated_home(
    user_locations: Locations,
    cache_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Give each test an empty home folder, but the shared models and compiled kernels."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for kind in ("cache", "config", "data", "state"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(home / kind))
    for name in (CONFIG_VARIABLE, DATA_DIR_VARIABLE, *(flag.variable for flag in SETTINGS.values())):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(user_locations.models))
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(cache_folder))
    for name in BLAS_VARIABLES:
        monkeypatch.setenv(name, os.environ[name])  # a test that changes it changes it for itself
    return home


@pytest.fixture(scope="session")
def compiled(user_locations: Locations) -> Arithmetic:
    """Return the arithmetic of the shared kernels: two threads, so that they have to wait for each other."""
    return Arithmetic(KernelLibrary(user_locations.kernels), n_threads=2)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Lay down root's rights, since root may read and write whatever the permissions say."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(scope="session")
def smollm2_path(user_locations: Locations) -> Path:
    """Return the default model's file, fetched if it is not there."""
    return pull(CATALOG["smollm2"], user_locations, on_progress=lambda _: None)


@pytest.fixture(scope="session")
def gemma3_path(user_locations: Locations) -> Path:
    """Return the Gemma file, fetched in its four parts if it is not there."""
    return pull(CATALOG["gemma3-270m"], user_locations, on_progress=lambda _: None)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a tiny random model, which loads at once and babbles."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", context_length=16_384)
