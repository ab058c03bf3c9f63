"""Measures a conversation by turns: each round once with this program, once reading ahead, and once with each peer."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from turbospark_chat.bench.chat_plan import MESSAGES, N_POSITIONS, READ_OVER_MS
from turbospark_chat.bench.chat_report import ChatReport, Paste, Talk, TurnFigures
from turbospark_chat.bench.process import Worker

OWN: Final = "own chat"

OnStep = Callable[[str], None]


def measure_chat(
    path: Path,
    *,
    n_threads: int,
    n_rounds: int,
    peers: Sequence[str] = (),
    n_turns: int = len(MESSAGES),
    read_over_ms: int = READ_OVER_MS,
    on_step: OnStep = lambda name: None,
) -> ChatReport:
    """Measure a conversation with a model, and with the named peers beside it; takes minutes.

    `on_step` hears what comes next.

    Raises:
        BenchError: a subject failed, such as at a conversation that does not fit the context.
    """
    with ExitStack() as stack:
        workers = {
            kind: stack.enter_context(Worker(kind, path, n_threads=n_threads, n_positions=N_POSITIONS))
            for kind in (OWN, *peers)
        }
        on_step("loading")
        subjects = [worker.call("describe") for worker in workers.values()]
        for worker in workers.values():  # what is slow only once is not measured
            worker.call("talk", 1)
        own = workers[OWN]
        asked = [
            ("turbospark_chat", own, "talk"),
            ("reading ahead", own, "talk_ahead"),
            *((peer, workers[peer], "talk") for peer in peers),
        ]
        rounds: dict[str, list[list[TurnFigures]]] = {name: [] for name, _, _ in asked}
        for number in range(1, n_rounds + 1):
            for name, worker, call in asked:
                on_step(f"{n_turns} turns, round {number} of {n_rounds}: {name}")
                rounds[name].append([TurnFigures(**figures) for figures in worker.call(call, n_turns)])
        on_step("a pasted message")
        without, ahead = [], []
        for _ in range(n_rounds):
            without.append(float(own.call("paste", read_over_ms)))
            ahead.append(float(own.call("paste_ahead", read_over_ms)))
        paste = Paste(own.call("count_paste"), read_over_ms, without, ahead)
    talks = [Talk(name, worker is own, rounds[name]) for name, worker, _ in asked]
    return ChatReport(path.name, n_threads, subjects, talks, paste)
