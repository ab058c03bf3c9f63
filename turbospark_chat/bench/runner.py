"""Measures by turns: each figure of one subject, then of the other, so that a machine's moods meet both."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

from turbospark_chat.bench.peer_subject import ONE_SHOT_PROGRAM
from turbospark_chat.bench.plan import N_TURNS, ONE_SHOT, TASKS, TURNS_SHOWN, Task
from turbospark_chat.bench.process import Worker, run_whole
from turbospark_chat.bench.report import Report, Row

PEER: Final = "llama.cpp"
_PROGRAM = "from turbospark_chat.cli import main; main()"  # what the command `ts` runs

OnStep = Callable[[str], None]


def measure(
    path: Path, *, n_threads: int, n_rounds: int, has_peer: bool, on_step: OnStep = lambda name: None
) -> Report:
    """Measure a model, and llama.cpp beside it if asked; takes minutes. `on_step` hears what comes next.

    Raises:
        BenchError: a subject failed.
    """
    kinds = ["own", PEER] if has_peer else ["own"]
    n_positions = max(task.n_positions for task in TASKS) + 64
    with ExitStack() as stack:
        workers = {
            kind: stack.enter_context(Worker(kind, path, n_threads=n_threads, n_positions=n_positions))
            for kind in kinds
        }
        on_step("loading")
        subjects = [worker.call("describe") for worker in workers.values()]
        context_length = workers["own"].call("context_length")
        rows = []
        for task in TASKS:
            if task.n_positions <= context_length:
                on_step(task.name)
                rows.append(_measure_task(task, workers, n_rounds))
        on_step(f"{N_TURNS} turns")
        rows += _measure_turns(workers, n_rounds, context_length)
        notes = _memory_notes(workers["own"], rows)
    on_step("start-up")
    rows += _measure_start(path, kinds, n_threads, n_rounds)
    if has_peer:
        notes["the peer's one-shot answer"] = "llama-cpp-python" if find_spec("llama_cpp") else "xllamacpp"
    return Report(path.name, n_threads, subjects, rows, notes)


def _measure_task(task: Task, workers: Mapping[str, Worker], n_rounds: int) -> Row:
    for worker in workers.values():  # once to have what comes before it in the cache
        worker.call(task.call, *task.arguments)
    figures = _by_turns(workers, n_rounds, lambda worker: task.rate(worker.call(task.call, *task.arguments)))
    return Row(task.name, "tok/s", *figures)


def _measure_turns(workers: Mapping[str, Worker], n_rounds: int, context_length: int) -> list[Row]:
    n_turns = min(N_TURNS, context_length // 64)
    waits = _by_turns(workers, n_rounds, lambda worker: worker.call("turns", n_turns))
    return [
        Row(
            f"time to first token of turn {turn}",
            "ms",
            *([1000 * conversation[turn - 1] for conversation in conversations] for conversations in waits),
            is_detail=turn not in TURNS_SHOWN,
        )
        for turn in range(1, n_turns + 1)
    ]


def _measure_start(path: Path, kinds: Sequence[str], n_threads: int, n_rounds: int) -> list[Row]:
    prompt, n_tokens = ONE_SHOT[0], str(ONE_SHOT[1])
    threads = str(n_threads)
    own = [
        sys.executable, "-c", _PROGRAM,
        "complete", "-q", prompt, "--max-tokens", n_tokens, "--threads", threads, "-m", str(path),
    ]  # fmt: skip
    peer = [sys.executable, "-c", ONE_SHOT_PROGRAM, str(path), threads, prompt, n_tokens]
    commands = {"own": own, PEER: peer}
    for kind in kinds:
        run_whole(commands[kind])
    runs = _by_turns({kind: commands[kind] for kind in kinds}, n_rounds, run_whole)
    return [
        Row("one-shot answer, start to exit", "s", *([run.seconds for run in some] for some in runs)),
        Row("its peak memory", "MB", *([run.peak_bytes / 1e6 for run in some] for some in runs)),
    ]


def _memory_notes(own: Worker, rows: Sequence[Row]) -> dict[str, str]:
    """Say how near decoding is to what memory allows: every step reads all weights and the cache once."""
    bandwidth = own.call("read_bandwidth")
    if not bandwidth:
        return {}
    notes = {"memory, read by all threads": f"{bandwidth / 1e9:.1f} GB/s"}
    rates = {row.name: median(row.own) for row in rows}
    for task in TASKS:
        if task.call == "decode" and task.name in rates:
            n_bytes = own.call("bytes_a_token", task.arguments[0])
            speed = n_bytes * rates[task.name]
            notes[task.name] = (
                f"{n_bytes / 1e6:.0f} MB a token, {speed / 1e9:.1f} GB/s, {speed / bandwidth:.0%} of that"
            )
    return notes


def _by_turns(subjects: Mapping[str, Any], n_rounds: int, work: Callable[[Any], Any]) -> list[list[Any]]:
    """Return each subject's figures, having worked for one after the other in every round."""
    figures: list[list[Any]] = [[] for _ in subjects]
    for _ in range(n_rounds):
        for figure, subject in zip(figures, subjects.values(), strict=True):
            figure.append(work(subject))
    return figures
