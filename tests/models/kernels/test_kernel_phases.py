"""The run loop: however many threads take part, and whenever they come, the same bits come out, and the right ones."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import THETA, KernelProgram, error, f32_weight, load_kernels, random_rows

from turbospark_chat.models import layers
from turbospark_chat.models.kernels.layout import WIDTH, Context, Field
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array
from turbospark_chat.models.numpy_model import NumpyPass

HEAD_DIM, N_HEADS, N_KV_HEADS = 16, 4, 2
DIM = HEAD_DIM * N_HEADS
KV_DIM = HEAD_DIM * N_KV_HEADS
SHAPE = {"n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "head_dim": HEAD_DIM}
MATRICES = [random_rows(DIM, DIM, seed=seed, scale=DIM**-0.5) for seed in range(3)]
TO_KEYS = random_rows(KV_DIM, DIM, seed=3, scale=DIM**-0.5)
NORM = 1 + random_rows(1, DIM, seed=4, scale=0.1)[0]

THETAS = (THETA, 100.0)
WINDOWS = (None, 20, None, 33)  # of the first layers, and over again
OPERATIONS = ["add", "swiglu", "geglu", "scale", "head_norm", "linear", "rope", "attention"]

Step = tuple[str, int, int]  # what to do, and with which of the results so far
STEPS = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.integers(0, 100),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=12,
)
SIZES = st.lists(st.sampled_from([1, 1, 2, 16, 17, 40, 64]), min_size=1, max_size=4)


def follow(steps: Sequence[Step], run: Any, x: Any, as_weight: Callable[[Array], Any]) -> Any:
    """Take the steps in any forward pass; each result is normed, so that none grows, and added up at the end."""
    results, n_layers = [x], 0
    for operation, first, second in steps:
        x, y = results[first % len(results)], results[second % len(results)]
        if operation == "add":
            new = run.add(x, y)
        elif operation in ("swiglu", "geglu"):
            new = getattr(run, operation)(x, y)
        elif operation == "scale":
            new = run.scale(x, second - 1.5)
        elif operation == "head_norm":
            new = run.head_norm(x, NORM[:HEAD_DIM], 1e-3, HEAD_DIM)
        elif operation == "linear":
            new = run.linear(x, as_weight(MATRICES[second % len(MATRICES)]), NORM if first % 2 else None)
        elif operation == "rope":
            new = run.rope(x, HEAD_DIM, interleaved=bool(second % 2), table=first % 2)
        else:
            keys = as_weight(TO_KEYS)
            new = run.attention(x, run.linear(y, keys, None), run.linear(x, keys, None), n_layers)
            n_layers += 1
        results.append(run.rms_norm(new, NORM, 1e-3))
    total = results[0]
    for result in results[1:]:
        total = run.add(total, result)
    return total


def windows_of(steps: Sequence[Step]) -> list[int | None]:
    return [WINDOWS[index % len(WINDOWS)] for index in range(len(steps))]


def compiled(steps: Sequence[Step], rows: Array, n_threads: int) -> KernelProgram:
    return KernelProgram(
        lambda builder, x: follow(steps, builder, x, f32_weight),
        rows,
        n_threads=n_threads,
        windows=windows_of(steps),
        thetas=THETAS,
        **SHAPE,
    )


def in_numpy(steps: Sequence[Step], rows: Array, sizes: Sequence[int]) -> Array:
    cache = KvCache(windows=windows_of(steps), n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM)
    frequencies = [layers.rope_frequencies(HEAD_DIM, theta) for theta in THETAS]
    outputs = []
    for size in sizes:
        position = len(cache)
        tables = [layers.rope_table(row, position, size) for row in frequencies]
        run = NumpyPass(range(position, position + size), cache, tables)
        outputs.append(follow(steps, run, run.embed(rows), lambda matrix: matrix))
        cache.commit(position + size)
    return np.concatenate(outputs)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, sizes=SIZES, n_threads=st.sampled_from([2, 3, 8]))
def test_any_program_computes_what_numpy_does_and_the_same_bits_on_any_threads(
    steps: list[Step], sizes: list[int], n_threads: int
) -> None:
    rows = random_rows(sum(sizes), DIM)
    alone = compiled(steps, rows, 1).run_all(sizes)
    expected = in_numpy(steps, rows, sizes)
    assert error(alone, expected, abs(expected).max()) < 1e-3  # a norm may enlarge what rounding did
    assert np.array_equal(compiled(steps, rows, n_threads).run_all(sizes), alone)


# A layer of a model twice over, every kernel in it, with chunks enough for eight threads.
BUSY: list[Step] = [
    ("rope", 0, 1), ("attention", 1, 0), ("add", 0, 2), ("linear", 3, 0), ("linear", 3, 1), ("swiglu", 4, 5),
    ("linear", 6, 2), ("head_norm", 7, 0), ("rope", 7, 0), ("attention", 8, 3), ("scale", 9, 2), ("add", 7, 10),
    ("geglu", 11, 3),
]  # fmt: skip


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_many_runs_on_more_threads_than_processors_give_the_same_bits(n_threads: int) -> None:
    rows = random_rows(64, DIM)
    sizes = [17, 1, 1, 40, 1, 1, 1, 2]
    expected = compiled(BUSY, rows, 1).run_all(sizes)
    program = compiled(BUSY, rows, n_threads)
    for _ in range(200):
        assert np.array_equal(program.run_all(sizes), expected)


def test_a_run_begun_while_workers_of_the_one_before_are_late_does_not_mix() -> None:
    # A program so short that the caller has done it before most workers are awake, over and over with other tokens.
    rows = random_rows(1000, 32)
    program = KernelProgram(lambda builder, x: builder.add(x, x), rows, n_threads=8)
    program.cache.reserve(1000)
    for start in range(0, 1000, 2):
        for tokens in ([start], [start, start + 1]):
            assert np.array_equal(program.run(tokens), 2 * rows[tokens])


def test_programs_of_several_python_threads_run_side_by_side() -> None:
    rows = random_rows(64, DIM)
    sizes = [30, 1, 1, 17, 1]
    expected = compiled(BUSY, rows, 1).run_all(sizes)
    wrong: list[int] = []

    def work(number: int) -> None:
        program = compiled(BUSY, rows, 2)
        for _ in range(20):
            if not np.array_equal(program.run_all(sizes), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_programs_take_turns_with_one_cache() -> None:
    rows = random_rows(60, DIM)
    sizes = [20, 1, 20, 1, 1, 17]
    expected = compiled(BUSY, rows, 1).run_all(sizes)
    programs = [compiled(BUSY, rows, n_threads) for n_threads in (1, 2)]
    programs[1].cache = programs[0].cache
    found, position = [], 0
    for number, size in enumerate(sizes):
        found.append(programs[number % 2].run(range(position, position + size), position))
        position += size
    assert np.array_equal(np.concatenate(found), expected)


def test_the_first_instructions_alone_can_be_run() -> None:
    rows = random_rows(8, 32)
    program = KernelProgram(lambda builder, x: builder.add(builder.add(x, x), x), rows)
    program.run([0, 1, 2])
    before = program.program.output.copy()
    program.runner.run([5, 6, 7], 0, n_instructions=2)
    assert np.array_equal(program.program.output, before)
    program.runner.run([5, 6, 7], 0, n_instructions=3)
    assert not np.array_equal(program.program.output, before)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_instructions_can_be_skipped(n_threads: int, n_tokens: int) -> None:
    program = KernelProgram(
        lambda builder, x: builder.add(builder.add(x, x), x), random_rows(8, 32), n_threads=n_threads
    )
    tokens = [5, 6, 7][:n_tokens]
    program.run(tokens)
    output = program.program.output
    expected = output.copy()
    output.fill(0)
    program.runner.run(tokens, 0, skipped=slice(2, 3))
    assert not output.any()
    program.runner.run(tokens, 0, skipped=slice(2))  # on what the run before left
    assert np.array_equal(output, expected)


# --- the loop itself, one thread's call at a time ---


class OneChunk:
    """A program of one chunk, which copies x to y, and the context of a run that nobody has begun."""

    def __init__(self) -> None:
        self.kernels = load_kernels(["last"])
        self.x, self.y = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
        self.counters = np.zeros((2, 1), np.int64)
        self.code = np.zeros((1, WIDTH), np.int64)
        self.code[0, Field.KERNEL] = self.kernels.address_of("last")
        self.code[0, Field.CHUNKS_ONE] = 1
        self.code[0, Field.ARG0 : Field.ARG0 + 3] = self.x.ctypes.data, self.y.ctypes.data, 16
        self.context = np.zeros(Context.N_FIELDS, np.int64)
        self.context[[Context.N_TOKENS, Context.STRIDE, Context.N_INSTRUCTIONS]] = 1
        self.context[[Context.TAKEN, Context.DONE]] = [row.ctypes.data for row in self.counters]

    def run(self, thread: int) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        kind(self.kernels.address_of("run"))(self.code.ctypes.data, self.context.ctypes.data, thread)

    def run_beside(self) -> threading.Thread:
        """Let another Python thread run as the caller, and give it time to get as far as it can."""
        caller = threading.Thread(target=self.run, args=(0,))
        caller.start()
        caller.join(timeout=0.2)
        return caller


def test_a_worker_takes_part_in_an_open_run() -> None:
    program = OneChunk()
    program.context[Context.IS_OPEN] = 1
    program.run(1)
    assert np.array_equal(program.y, program.x)
    assert program.counters.tolist() == [[1], [1]]
    assert program.context[Context.N_INSIDE] == 0


def test_a_worker_that_comes_while_no_run_is_open_touches_nothing() -> None:
    program = OneChunk()
    program.run(1)
    assert not program.y.any()
    assert program.counters.tolist() == [[0], [0]]
    assert program.context[Context.N_INSIDE] == 0


def test_the_caller_waits_for_a_chunk_that_another_has_begun() -> None:
    program = OneChunk()
    program.counters[0] = 1
    caller = program.run_beside()
    assert caller.is_alive()
    program.counters[1] = 1
    caller.join(timeout=60)
    assert not caller.is_alive()
    assert not program.y.any()


def test_the_caller_closes_the_run_and_waits_until_nobody_is_inside() -> None:
    program = OneChunk()
    program.context[Context.N_INSIDE] = 1
    caller = program.run_beside()
    assert caller.is_alive()
    assert np.array_equal(program.y, program.x)
    assert program.context[Context.IS_OPEN] == 0
    program.context[Context.N_INSIDE] = 0
    caller.join(timeout=60)
    assert not caller.is_alive()
