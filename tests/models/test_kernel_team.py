"""The threads of a team: how many there are, and that they end when nobody needs them, whatever they are doing."""

import gc
import threading

import pytest
from kernel_harness import KernelProgram, random_rows, run_python


def worker_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("kernels-")}


def doubling(n_threads: int) -> KernelProgram:
    return KernelProgram(lambda builder, x: builder.add(x, x), random_rows(64, 32), n_threads=n_threads)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_the_callers_thread_is_one_of_the_team(n_threads: int) -> None:
    before = worker_threads()
    program = doubling(n_threads)
    assert program.runner.n_threads == n_threads
    started = worker_threads() - before
    assert sorted(thread.name for thread in started) == [
        f"kernels-{number}" for number in range(1, n_threads)
    ]
    assert all(thread.daemon for thread in started)


@pytest.mark.parametrize("has_run", [False, True])
def test_threads_end_with_their_team(has_run: bool) -> None:
    before = worker_threads()
    program = doubling(4)
    if has_run:
        program.run(range(64))
    started = worker_threads() - before
    del program
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)


LATE_WORKERS = """
from kernel_harness import KernelProgram, forget_kernels, random_rows
rows = random_rows(64, 32)
for _ in range(150):
    program = KernelProgram(lambda builder, x: builder.add(x, x), rows, n_threads=8)
    program.run(range(64))
    del program
    forget_kernels()
print("done")
"""


def test_a_worker_that_wakes_when_the_program_is_gone_finds_its_code_still_there() -> None:
    done = run_python(LATE_WORKERS)  # a process of its own: where the code is gone, it dies
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
