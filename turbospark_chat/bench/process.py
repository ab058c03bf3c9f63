"""The processes that are measured: workers that hold a subject, and whole programs from start to exit."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospark_chat.errors import BenchError


class Worker:
    """A subject in a process of its own, so that neither's threads and memory are the other's. A context manager."""

    def __init__(self, kind: str, path: Path, *, n_threads: int, n_positions: int) -> None:
        self._kind = kind
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "turbospark_chat.bench.worker",
                kind, str(path), str(n_threads), str(n_positions),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8",
        )  # fmt: skip

    def __enter__(self) -> "Worker":
        """Return the worker itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def call(self, name: str, *arguments: int) -> Any:
        """Ask the subject and return its answer.

        Raises:
            BenchError: it failed, or its process is gone.
        """
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        except BrokenPipeError:
            answer = {"error": "its process ended"}
        if "error" in answer:
            raise BenchError(f"`{self._kind}` could not do `{name}`: {answer['error']}")
        return answer["result"]


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A program from its start to its exit."""

    seconds: float
    peak_bytes: int


def run_whole(command: Sequence[str]) -> WholeRun:
    """Run a program to its end.

    Raises:
        BenchError: it failed.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # Ctrl-C: it is not to run on
        process.kill()
        raise
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchError(f"`{' '.join(command[:4])} …` ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return WholeRun(seconds, usage.ru_maxrss * unit)
