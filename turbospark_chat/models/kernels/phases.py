"""Runs a program on several threads: each takes chunks of the current instruction until none is left.

An instruction is finished once all its chunks are, whoever did them. So a thread that the system has put aside between
chunks holds nobody up, as it would at a barrier; only the end of a run waits for every thread that took part.
"""

from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels.layout import GROUP, WIDTH, Context, Field

_BYTES = 8 * WIDTH
_SPINS = 2000  # looks at a counter before another thread is let run
_KERNEL, _WAITS = int(Field.KERNEL), int(Field.WAITS)
_ONE, _ONE_SPLIT = int(Field.CHUNKS_ONE), int(Field.CHUNKS_ONE_SPLIT)
_FEW, _MANY, _MANY_GROUP = int(Field.CHUNKS_FEW), int(Field.CHUNKS_MANY), int(Field.CHUNKS_MANY_GROUP)
_N_TOKENS, _N_INSTRUCTIONS = int(Context.N_TOKENS), int(Context.N_INSTRUCTIONS)
_IS_OPEN, _N_INSIDE = int(Context.IS_OPEN), int(Context.N_INSIDE)
_TAKEN, _DONE = int(Context.TAKEN), int(Context.DONE)


@njit
def _n_chunks(instruction: int, context: int) -> int:
    n_tokens = memory.field(context, _N_TOKENS)
    if n_tokens == 1:
        n_each = memory.field(instruction, _ONE_SPLIT)
        return memory.field(instruction, _ONE) + (n_each * memory.n_splits(context) if n_each else 0)
    if memory.is_few(context):
        return memory.field(instruction, _FEW)
    n_groups = (n_tokens + GROUP - 1) // GROUP
    return memory.field(instruction, _MANY) + memory.field(instruction, _MANY_GROUP) * n_groups


@njit
def _relax(spins: int) -> int:
    """Wait a moment in a loop that has gone round so often; return how often it has now."""
    memory.pause()
    if spins % _SPINS == _SPINS - 1:
        memory.yield_processor()
    return spins + 1


@njit
def _wait(counter: int, n: int) -> None:
    spins = 0
    while memory.load_atomically(counter) < n:
        spins = _relax(spins)


@njit
def _take_part(program: int, context: int, thread: int) -> None:
    taken, done = memory.field(context, _TAKEN), memory.field(context, _DONE)
    n_seen = 0  # instructions seen to be finished
    n_instructions = memory.field(context, _N_INSTRUCTIONS)
    for index in range(n_instructions + 1):
        instruction = program + index * _BYTES
        if index == n_instructions or memory.field(instruction, _WAITS):
            for earlier in range(n_seen, index):
                _wait(done + 8 * earlier, _n_chunks(program + earlier * _BYTES, context))
            n_seen = index
        if index == n_instructions:
            return
        n_chunks, kernel = _n_chunks(instruction, context), memory.field(instruction, _KERNEL)
        while memory.load_atomically(taken + 8 * index) < n_chunks:
            chunk = memory.add_atomically(taken + 8 * index, 1)
            if chunk < n_chunks:
                memory.call_kernel(kernel, instruction, context, thread, chunk)
                memory.add_atomically(done + 8 * index, 1)


def run(program: int, context: int, thread: int) -> None:
    """Take part in a run. Thread 0 opens it, sees it finished, and returns once no other is inside.

    Any other thread returns at once where the run is not open: it was woken too late.
    """
    is_open, n_inside = context + 8 * _IS_OPEN, context + 8 * _N_INSIDE
    if thread == 0:
        memory.store_atomically(is_open, 1)
        _take_part(program, context, thread)
        memory.store_atomically(is_open, 0)
        spins = 0
        while memory.load_atomically(n_inside) > 0:
            spins = _relax(spins)
        return
    memory.add_atomically(n_inside, 1)
    if memory.load_atomically(is_open) == 1:
        _take_part(program, context, thread)
    memory.add_atomically(n_inside, -1)
