"""The worker's side of a measurement: requests in, answers out, and the processes around it."""

import io
import json
import sys
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from turbospark_chat.bench.process import Worker, run_whole
from turbospark_chat.bench.worker import serve
from turbospark_chat.errors import BenchError


class Echo:
    def __init__(self) -> None:
        self.calls = 0

    def prefill(self, n_tokens: int) -> float:
        self.calls += 1
        if n_tokens < 0:
            raise ValueError("below 0")
        return n_tokens / 2 + self.calls


def answers(*requests: dict[str, object], make: object = Echo) -> list[dict[str, object]]:
    out = io.StringIO()
    serve(make, io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_one_subject_answers_every_request() -> None:
    call = {"call": "prefill", "arguments": [4]}
    assert answers(call, call) == [{"result": 3.0}, {"result": 4.0}]


def test_an_error_is_an_answer_and_the_next_request_is_served() -> None:
    bad, good = ({"call": "prefill", "arguments": [n]} for n in (-1, 4))
    assert answers(bad, good) == [{"error": "ValueError: below 0"}, {"result": 4.0}]


def test_a_subject_that_cannot_be_made_says_why() -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'xllamacpp'")

    request = {"call": "prefill", "arguments": [1]}
    assert answers(request, make=fail) == [{"error": "ModuleNotFoundError: No module named 'xllamacpp'"}]


def test_a_worker_holds_a_model_in_its_own_process(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    with Worker("own", path, n_threads=1, n_positions=64) as worker:
        assert worker.call("describe")["name"] == "turbospark_chat"
        assert worker.call("context_length") == 512
        assert worker.call("prefill", 32) > 0
        with pytest.raises(BenchError, match="`own` could not do `prefill`: TypeError"):
            worker.call("prefill")
        assert worker.call("decode", 16, 4) > 0  # and goes on


def test_a_worker_that_is_gone_is_an_error_not_a_wait(tmp_path: Path) -> None:
    with Worker("own", tmp_path / "missing.gguf", n_threads=1, n_positions=64) as worker:
        with pytest.raises(BenchError, match="no such file"):
            worker.call("describe")
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(BenchError, match="its process ended"):
            worker.call("describe")


def test_a_whole_run_has_its_time_and_peak_memory() -> None:
    run = run_whole([sys.executable, "-c", "x = bytearray(50_000_000); import time; time.sleep(0.2)"])
    assert 0.2 <= run.seconds < 30
    assert 50_000_000 < run.peak_bytes < 1_000_000_000


def test_a_program_that_fails_is_named() -> None:
    with pytest.raises(BenchError, match="ended with 3"):
        run_whole([sys.executable, "-c", "raise SystemExit(3)"])
