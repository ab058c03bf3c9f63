"""The threads that run programs together, as many as asked for, the caller's own among them."""

import ctypes
import threading
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_Run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)  # lets other Python threads run


class KernelTeam:
    """Worker threads asleep until a run; they end with the team.

    They do not survive a fork; the engine refuses to run in a child.
    """

    def __init__(self, address_of: Callable[[str], int], *, n_threads: int) -> None:
        """Start the workers. `address_of` finds a kernel, and keeps the code in memory as long as it lives."""
        self._run = _Run(address_of("run"))
        self._workers: list[_Worker] = []
        weakref.finalize(self, _dismiss, self._workers)
        with suppress(RuntimeError):  # the system allows no more threads: those there are will do
            for number in range(1, n_threads):
                self._workers.append(_Worker(number, self._run, address_of))

    @property
    def n_threads(self) -> int:
        """How many threads take part."""
        return len(self._workers) + 1

    def run(self, code: NDArray[np.int64], context: NDArray[np.int64]) -> None:
        """Run a program to its end."""
        program, fields = code.ctypes.data, context.ctypes.data
        for worker in self._workers:
            worker.ring((program, fields, context))
        self._run(program, fields, 0)


class _Worker:
    """One thread. It may wake when a run is long over, even when the team is gone.

    So it keeps what it then looks at: the code of `run`, and the context.
    """

    def __init__(self, number: int, run: Callable[[int, int, int], None], code_owner: object) -> None:
        self._number, self._run, self._code_owner = number, run, code_owner
        self._job: tuple[int, int, object] | None = None
        self._bell = allocate_lock()
        self._bell.acquire()
        threading.Thread(target=self._work, name=f"kernels-{number}", daemon=True).start()

    def ring(self, job: tuple[int, int, object] | None) -> None:
        """Wake the thread for the program and the context at these addresses, or, with None, to end."""
        self._job = job
        if self._bell.locked():  # else it has not heard the last ring yet, and finds this job when it does
            self._bell.release()

    def _work(self) -> None:
        while True:
            self._bell.acquire()
            job = self._job
            if job is None:
                return
            program, fields, _owner = job
            self._run(program, fields, self._number)


def _dismiss(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.ring(None)
