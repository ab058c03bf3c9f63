"""Compiles kernels in a process of its own: numba and what it leaves, 200 MB, do not stay in the one that chats."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from turbospark_chat.models.sealed_file import write_sealed

OnCompile = Callable[[int, int], None]  # kernels compiled so far, and of how many


def compile_apart(folder: Path, names: Sequence[str], *, on_compile: OnCompile) -> None:
    """Compile kernels into a folder, hearing of each; it ends with the caller's interrupt.

    Whatever goes wrong there, the kernels are still missing afterwards, and nothing else has happened.
    """
    command = [sys.executable, "-m", "turbospark_chat.models.kernel_compiler", str(folder), *names]
    with suppress(OSError):
        # A session of its own, so that Ctrl-C at the terminal reaches only this process, which then ends that one.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            on_compile(0, len(names))
            for done, _ in enumerate(process.stdout, start=1):
                if done < len(names):
                    on_compile(done, len(names))
        finally:
            process.kill()
            process.communicate()


def main() -> None:
    """Compile the kernels that the arguments name after the folder; say a line for each.

    It ends where one cannot be compiled or kept: the caller then sees to it, and says why.
    """
    from turbospark_chat.models.kernel_library import compile_one, path_of

    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        if not write_sealed(path_of(folder, name), compile_one(name)):
            sys.exit(1)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
