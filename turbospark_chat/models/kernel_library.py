"""Compiled kernels, kept on disk from one run to the next. Compiling imports numba; loading does not."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from turbospark_chat.errors import KernelsUnavailableError
from turbospark_chat.models.kernel_compiler import OnCompile, compile_apart
from turbospark_chat.models.kernel_folders import note_use
from turbospark_chat.models.sealed_file import digest_of, read_sealed, write_sealed


class _Code(Protocol):
    def address_of(self, symbol: str) -> int: ...


@dataclass(frozen=True, slots=True)
class LoadedKernels:
    """Kernels in this process. Their addresses hold as long as this lives."""

    _code: _Code

    def address_of(self, name: str) -> int:
        """Return the address of a kernel by its name.

        Raises:
            KernelsUnavailableError: it is not among them.
        """
        try:
            return self._code.address_of(_symbol(name))
        except OSError as error:
            raise KernelsUnavailableError(f"{error} in the compiled code; delete the cache folder") from error


class KernelLibrary:
    """Finds kernels by name in a folder, and compiles those that are not there yet.

    A folder holds machine code for several processors and versions apart, until it lies unused. Where it cannot be
    written, everything still runs, and is compiled again the next time.
    """

    def __init__(
        self, folder: Path, *, on_compile: OnCompile = lambda done, total: None, is_apart: bool = False
    ) -> None:
        """Keep kernels in `folder`; with `is_apart` they are compiled in a process of their own, where that works."""
        self._folder = folder
        self._on_compile = on_compile
        self._is_apart = is_apart

    def why_unavailable(self) -> str | None:
        """Return why nothing can be compiled here, None where nothing speaks against it."""
        try:
            _describe_machine()
        except KernelsUnavailableError as error:
            return str(error)
        return None if find_spec("numba") else "numba is not installed"

    def load(self, names: Iterable[str]) -> LoadedKernels:
        """Load kernels, compiling those that the folder lacks; `on_compile` hears of each, and of the end.

        Raises:
            KernelsUnavailableError: the libraries for it do not run here.
        """
        folder = self._folder / _digest(_describe_machine())
        note_use(folder)  # before it is read, so that no other run removes it meanwhile
        wanted = list(dict.fromkeys(names))
        files = {name: read_sealed(path_of(folder, name)) for name in wanted}
        missing = _missing(files)
        if missing and self._is_apart:
            try:
                compile_apart(folder, missing, on_compile=self._on_compile)
            finally:
                self._on_compile(len(missing), len(missing))
            files |= {name: read_sealed(path_of(folder, name)) for name in missing}
            missing = _missing(files)
        if missing:
            self._compile_all(missing, folder, files)
        from turbospark_chat.models.kernels.machine import LoadedCode

        try:
            return LoadedKernels(LoadedCode([content for content in files.values() if content is not None]))
        except (RuntimeError, OSError) as error:
            raise KernelsUnavailableError(f"llvmlite cannot load what it compiled: {error}") from error

    def _compile_all(self, missing: list[str], folder: Path, files: dict[str, bytes | None]) -> None:
        """Compile kernels into `files` and the folder; Ctrl-C counts after the one under way."""
        try:
            with _held_interrupts() as raise_held:
                for done, name in enumerate(missing):
                    self._on_compile(done, len(missing))
                    files[name] = code = compile_one(name)
                    write_sealed(path_of(folder, name), code)
                    raise_held()
        finally:
            self._on_compile(len(missing), len(missing))


def _missing(files: dict[str, bytes | None]) -> list[str]:
    return [name for name, content in files.items() if content is None]


@contextmanager
def _held_interrupts() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back while the block runs; what is yielded raises it.

    In the midst of compiling it would arrive in a callback from LLVM, where Python can only print and drop it.
    """
    if threading.current_thread() is not threading.main_thread():  # the only one that gets signals
        yield lambda: None
        return
    held: list[int] = []

    def raise_held() -> None:
        if held:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield raise_held
    finally:
        signal.signal(signal.SIGINT, before)
    raise_held()


def _describe_machine() -> str:
    try:
        from turbospark_chat.models.kernels.machine import describe_machine

        return describe_machine()
    except (ImportError, OSError) as error:
        raise KernelsUnavailableError(f"llvmlite cannot be used: {error}") from error


def _digest(machine: str) -> str:
    here = Path(__file__).parent
    try:
        return digest_of(machine, sources=[*sorted((here / "kernels").glob("*.py")), here / "quants.py"])
    except OSError as error:
        raise KernelsUnavailableError(f"the kernels' sources cannot be read: {error}") from error


def path_of(folder: Path, name: str) -> Path:
    """Return where a kernel is kept."""
    return folder / f"{name.replace(' ', '_')}.o"


def _symbol(name: str) -> str:
    return "ts_" + name.replace(" ", "_")  # not `read`, which is the C library's


def compile_one(name: str) -> bytes:
    """Compile a kernel in this process.

    Raises:
        KernelsUnavailableError: it cannot be.
    """
    try:
        from turbospark_chat.models.kernels.compile import compile_kernel

        return compile_kernel(name, _symbol(name))
    except Exception as error:  # a numba that does not fit its numpy or this processor fails in many ways
        problem = str(error).strip().partition("\n")[0] or type(error).__name__
        raise KernelsUnavailableError(f"`{name}` cannot be compiled: {problem}") from error
