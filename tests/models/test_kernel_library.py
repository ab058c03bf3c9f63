"""Compiled kernels on disk: what is compiled when, and that no state of the folder keeps them from running."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kernel_harness import run_python
from tiny_model import COMPILED_SIZES, write_tiny_model

from turbospark_chat.errors import KernelsUnavailableError, ModelWarning
from turbospark_chat.models import kernel_library
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.kernels import compile as compiler
from turbospark_chat.models.kernels import machine
from turbospark_chat.models.loader import Arithmetic, load_model
from turbospark_chat.models.numpy_model import NumpyModel
from turbospark_chat.models.sealed_file import read_sealed
from turbospark_chat.settings import Locations

NAMES = ("add", "last")
PLENTY = 10**9


@pytest.fixture(scope="module")
def compiled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two kernels, compiled here; not to be changed."""
    folder = tmp_path_factory.mktemp("kernels")
    KernelLibrary(folder).load(NAMES)
    return folder


@pytest.fixture
def folder(compiled_folder: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return shutil.copytree(compiled_folder, tmp_path / "kernels")


def object_file(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"*/{name}.o")
    return found


def compiled_by(folder: Path, names: tuple[str, ...] = NAMES) -> list[tuple[int, int]]:
    """Load kernels and return what was heard of their compilation."""
    calls: list[tuple[int, int]] = []
    kernels = KernelLibrary(folder, on_compile=lambda done, total: calls.append((done, total))).load(names)
    assert all(kernels.address_of(name) for name in names)
    return calls


def test_each_kernel_is_compiled_once_and_heard_of(tmp_path: Path) -> None:
    assert compiled_by(tmp_path) == [(0, 2), (1, 2), (2, 2)]
    assert compiled_by(tmp_path) == []
    assert compiled_by(tmp_path, ("last", "rms_norm", "add")) == [(0, 1), (1, 1)]


def test_a_name_asked_for_twice_is_loaded_once(tmp_path: Path) -> None:
    assert compiled_by(tmp_path, ("last", "last")) == [(0, 1), (1, 1)]


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(damage, id="damaged"),
        pytest.param(lambda path: os.truncate(path, path.stat().st_size // 2), id="cut"),
        pytest.param(lambda path: os.truncate(path, 0), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\x7fELF" + bytes(1000)), id="foreign"),
        pytest.param(Path.unlink, id="missing"),
    ],
)
def test_a_file_that_is_not_as_it_was_stored_is_compiled_again_and_mended(
    spoil: Callable[[Path], object], folder: Path
) -> None:
    path = object_file(folder, "add")
    good = path.read_bytes()
    spoil(path)
    assert compiled_by(folder) == [(0, 1), (1, 1)]
    assert read_sealed(path) is not None
    assert len(path.read_bytes()) == len(good)
    assert compiled_by(folder) == []


def test_a_file_whose_place_is_taken_is_compiled_each_time(folder: Path) -> None:
    replace_by_folder(object_file(folder, "add"))
    assert compiled_by(folder) == compiled_by(folder) == [(0, 1), (1, 1)]


def test_a_folder_that_cannot_be_made_still_gives_kernels(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    assert compiled_by(tmp_path / "taken", ("last",)) == [(0, 1), (1, 1)]


def test_a_read_only_folder_still_gives_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(folder)  # a relative path needs no right on the folders above
    for path in (*folder.glob("*/*"), *folder.glob("*"), folder):
        path.chmod(0o555)
    request.getfixturevalue("ordinary_user")
    assert compiled_by(Path()) == []
    assert compiled_by(Path(), ("add", "rms_norm")) == [(0, 1), (1, 1)]
    assert sorted(path.name for path in Path().glob("*/*")) == ["add.o", "last.o"]


def test_files_that_others_left_in_the_folder_are_no_kernels(folder: Path) -> None:
    (object_file(folder, "add").parent / "tmp123abc").write_bytes(b"half a file")
    assert compiled_by(folder) == []


def test_other_code_of_the_kernels_has_files_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Path(kernel_library.__file__).parent
    copy = tmp_path / "models"
    shutil.copytree(package / "kernels", copy / "kernels")
    shutil.copy(package / "quants.py", copy)
    monkeypatch.setattr(kernel_library, "__file__", str(copy / "kernel_library.py"))
    assert compiled_by(folder) == []  # the same code elsewhere
    for changed in ("quants.py", "kernels/elementwise.py", "kernels/layout.py"):
        with (copy / changed).open("a") as file:
            file.write("\n# changed\n")
        assert compiled_by(folder, ("last",)) == [(0, 1), (1, 1)]
    monkeypatch.undo()
    assert compiled_by(folder) == []  # the old files are still there


def test_another_processor_has_files_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.describe_machine()
    monkeypatch.setattr(machine, "describe_machine", lambda: here.replace("+avx2", "-avx2") + " older")
    assert compiled_by(folder, ("last",)) == [(0, 1), (1, 1)]


TWICE_AT_ONCE = """
import sys
from pathlib import Path
from turbospark_chat.models.kernel_library import KernelLibrary
print("ready", flush=True)
sys.stdin.readline()
kernels = KernelLibrary(Path(sys.argv[1])).load(["last", "add"])
print(kernels.address_of("add") > 0)
"""


def test_two_processes_may_compile_into_one_folder_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWICE_AT_ONCE, str(tmp_path / "kernels")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate("go\n", timeout=120)[0] for process in processes]
    assert outputs == ["True\n"] * 2
    assert sorted(path.name for path in tmp_path.glob("kernels/*/*")) == ["add.o", "last.o"]
    assert compiled_by(tmp_path / "kernels") == []


def test_an_interrupt_while_compiling_is_passed_on_and_what_was_compiled_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compiler.compile_kernel

    def interrupted(name: str, symbol: str) -> bytes:
        if name == "add":
            raise KeyboardInterrupt
        return whole(name, symbol)

    monkeypatch.setattr(compiler, "compile_kernel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        KernelLibrary(tmp_path).load(["last", "add"])
    monkeypatch.undo()
    assert compiled_by(tmp_path, ("last", "add")) == [(0, 1), (1, 1)]


WITHOUT_NUMBA = """
import sys
from pathlib import Path
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import Arithmetic, load_model
library = KernelLibrary(Path(sys.argv[2]))
model = load_model(Path(sys.argv[1]), available_bytes=10**9, arithmetic=Arithmetic(library, 2)).model
logits = model.forward([1, 2, 3], model.make_state(), need_logits=True)
print(model.arithmetic, logits.shape, *sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


def test_numba_is_not_imported_where_every_kernel_is_there(
    compiled: Arithmetic, user_locations: Locations, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES)
    load_model(path, available_bytes=PLENTY, arithmetic=compiled)
    done = run_python(WITHOUT_NUMBA, str(path), str(user_locations.kernels))
    assert (done.stdout, done.stderr) == ("compiled, 2 threads (259,) llvmlite\n", "")


def hide(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library look as if it were not installed, to the modules that import it."""
    monkeypatch.setitem(sys.modules, library, None)
    for name in ("compile", "machine"):
        monkeypatch.delitem(sys.modules, f"turbospark_chat.models.kernels.{name}", raising=False)


def test_without_numba_what_is_compiled_already_still_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "numba")
    assert compiled_by(folder) == []


@pytest.mark.parametrize(
    ("library", "problem"),
    [
        ("numba", "`rms_norm` cannot be compiled: .*numba"),
        ("llvmlite", "llvmlite cannot be used: .*llvmlite"),
    ],
)
def test_without_a_library_there_are_no_kernels(
    library: str, problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, library)
    with pytest.raises(KernelsUnavailableError, match=problem) as caught:
        KernelLibrary(folder).load((*NAMES, "rms_norm"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("first line\nsecond line"), "first line"),
        (TypeError(), "TypeError"),
        (OSError("no such file"), "no such file"),
    ],
)
def test_a_compiler_that_fails_in_any_way_is_named_in_one_line(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, symbol: str) -> bytes:
        raise error

    monkeypatch.setattr(compiler, "compile_kernel", fail)
    calls: list[tuple[int, int]] = []
    with pytest.raises(KernelsUnavailableError) as caught:
        KernelLibrary(tmp_path, on_compile=lambda *call: calls.append(call)).load(NAMES)
    assert str(caught.value) == f"`add` cannot be compiled: {reason}"
    assert calls == [(0, 2), (2, 2)]  # the end is heard of, for whoever shows the progress


@pytest.mark.parametrize("library", ["numba", "llvmlite"])
def test_a_model_without_kernels_is_computed_by_numpy_and_says_so(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES)
    hide(monkeypatch, library)
    arithmetic = Arithmetic(KernelLibrary(tmp_path / "kernels"), n_threads=2)
    with pytest.warns(ModelWarning, match=f"numpy computes, which is slower: .*{library}"):
        model = load_model(path, available_bytes=PLENTY, arithmetic=arithmetic).model
    assert isinstance(model, NumpyModel)
    assert model.forward([1], model.make_state(), need_logits=True) is not None


def test_ctrl_c_while_compiling_counts_after_the_kernel_under_way(folder: Path) -> None:
    heard: list[int] = []

    def press(done: int, total: int) -> None:
        heard.append(done)
        if done == 0:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    shutil.rmtree(folder)
    with pytest.raises(KeyboardInterrupt):
        KernelLibrary(folder, on_compile=press).load(NAMES)
    assert heard == [0, len(NAMES)]
    assert signal.getsignal(signal.SIGINT) == before
    assert compiled_by(folder) == [(0, 1), (1, 1)]  # the one that was under way is kept


def test_a_kernel_in_the_place_of_another_is_compiled_again(folder: Path) -> None:
    first, second = sorted(folder.rglob("*.o"))[:2]
    shutil.copy(first, second)
    assert compiled_by(folder) == [(0, 1), (1, 1)]


# --- in a process of its own ---


def apart(folder: Path, on_compile: Callable[[int, int], None]) -> None:
    kernels = KernelLibrary(folder, on_compile=on_compile, is_apart=True).load(NAMES)
    assert all(kernels.address_of(name) for name in NAMES)


def test_kernels_compiled_apart_are_heard_of_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, int]] = []
    hide(monkeypatch, "numba")  # from this process, which is not to need it
    apart(tmp_path, lambda done, total: heard.append((done, total)))
    assert heard == [(0, 2), (1, 2), (2, 2)]
    assert compiled_by(tmp_path) == []


def test_what_cannot_be_compiled_apart_is_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    apart(tmp_path, lambda done, total: None)
    assert compiled_by(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_left_to_this_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    heard: list[tuple[int, int]] = []
    apart(tmp_path / "file", lambda done, total: heard.append((done, total)))
    assert heard[-3:] == [(0, 2), (1, 2), (2, 2)]


def test_an_interrupt_ends_the_other_process_too(tmp_path: Path) -> None:
    def press(done: int, total: int) -> None:
        if done < total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart(tmp_path, press)
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if "kernel_compiler" in " ".join(child.cmdline())] == []
