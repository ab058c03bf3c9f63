"""A whole measurement: by turns, only what fits, and real processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from turbospark_chat.bench import runner
from turbospark_chat.bench.plan import TASKS
from turbospark_chat.bench.process import WholeRun


class FakeWorker:
    """Answers at once, and notes who was asked what in a list that all share."""

    asked: list[tuple[str, str]] = []
    context_length = 8192

    def __init__(self, kind: str, path: Path, *, n_threads: int, n_positions: int) -> None:
        self._kind = kind

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def call(self, name: str, *arguments: int) -> Any:
        FakeWorker.asked.append((self._kind, name))
        seconds = 1.0 if self._kind == "own" else 2.0
        return {
            "describe": {"name": self._kind},
            "context_length": self.context_length,
            "turns": [seconds] * (arguments[0] if arguments else 0),
            "read_bandwidth": 1e9,
            "bytes_a_token": 10_000_000,
        }.get(name, seconds)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    FakeWorker.asked = []
    monkeypatch.setattr(runner, "Worker", FakeWorker)

    def run(command: Sequence[str]) -> WholeRun:
        return WholeRun(1.0 if "complete" in command else 2.0, 100)

    monkeypatch.setattr(runner, "run_whole", run)
    return FakeWorker.asked


def test_each_figure_is_taken_of_both_by_turns(asked: list[tuple[str, str]]) -> None:
    report = runner.measure(Path("m.gguf"), n_threads=2, n_rounds=2, has_peer=True)
    prefills = [kind for kind, name in asked if name == "prefill"]
    assert prefills == ["own", "llama.cpp"] * 9  # three lengths, each once unmeasured and twice measured
    assert {row.ratio for row in report.rows if row.unit != "MB"} == {2.0}
    assert {len(row.own) for row in report.rows} == {len(row.peer) for row in report.rows} == {2}


def test_without_a_peer_nothing_is_asked_of_one(asked: list[tuple[str, str]]) -> None:
    report = runner.measure(Path("m.gguf"), n_threads=2, n_rounds=1, has_peer=False)
    assert {kind for kind, _ in asked} == {"own"}
    assert {row.ratio for row in report.rows} == {None}
    assert report.notes["decode at context 512"] == "10 MB a token, 0.3 GB/s, 32% of that"


def test_what_does_not_fit_the_context_is_left_out(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeWorker, "context_length", 512)
    report = runner.measure(Path("m.gguf"), n_threads=2, n_rounds=1, has_peer=False)
    fitting = [task.name for task in TASKS if task.n_positions <= 512]
    assert [row.name for row in report.rows if row.unit == "tok/s"] == fitting
    assert 0 < len(fitting) < len(TASKS)


def test_a_real_measurement_of_a_tiny_model(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", context_length=300)
    steps: list[str] = []
    report = runner.measure(path, n_threads=1, n_rounds=1, has_peer=False, on_step=steps.append)
    names = [row.name for row in report.rows]
    assert names == [
        "prefill of 32",
        "decode at context 0",
        *(f"time to first token of turn {turn}" for turn in (1, 2, 3, 4)),
        "one-shot answer, start to exit",
        "its peak memory",
    ]
    assert all(value > 0 for row in report.rows for value in row.own)
    assert steps[0] == "loading"
    assert steps[-1] == "start-up"
