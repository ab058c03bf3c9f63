"""How fast the threads of a run read memory: what a decode step, which reads every weight once, is measured by."""

import time

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.instruction import Buffer, Chunks, Instruction
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.program import assemble
from turbospark_chat.models.program_runner import KERNELS, ProgramRunner

_CHUNK_BYTES = 1 << 18
_N_RUNS = 5


def measure_read_bandwidth(data: NDArray[np.uint8], library: KernelLibrary, *, n_threads: int) -> float:
    """Return bytes a second of the fastest of a few readings, by the same threads that compute; 0 of too few bytes.

    Raises:
        KernelsUnavailableError: a kernel is not compiled and cannot be.
    """
    code = library.load((*KERNELS, "read"))
    n_chunks, found = len(data) // _CHUNK_BYTES, Buffer(n_features=16, is_single=True)
    read = Instruction("read", Chunks(one=n_chunks), (data.ctypes.data, _CHUNK_BYTES, found), (found,))
    program = assemble([read], code.address_of, outputs=[found], scratch_bytes=64, keep_alive=(data, code))
    runner = ProgramRunner(program, code.address_of, n_threads=n_threads, n_pairs=0)
    seconds = []
    for _ in range(_N_RUNS):
        started = time.perf_counter()
        runner.run([0], 0)
        seconds.append(time.perf_counter() - started)
    return n_chunks * _CHUNK_BYTES / min(seconds)
