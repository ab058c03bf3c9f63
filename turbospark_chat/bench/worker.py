"""A process that holds one subject and does what it is asked, a JSON object a line: see `runner`."""

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

# Where each kind of subject is.
_SUBJECTS: Final[Mapping[str, tuple[str, str]]] = {
    "own": ("own_subject", "OwnSubject"),
    "llama.cpp": ("peer_subject", "PeerSubject"),
    "own chat": ("own_chat", "OwnChat"),
    "llama-cpp-python": ("peer_chat", "BindingChat"),
    "llama.cpp's server": ("peer_chat", "ServerChat"),
}


def main() -> None:
    """Make the subject that the arguments name and serve it until stdin ends.

    Arguments: a kind of subject, the model's path, threads, positions. A library may print what it likes: the answers
    go out by a descriptor of their own.
    """
    kind, path, n_threads, n_positions = sys.argv[1:]
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        serve(lambda: _make_subject(kind, Path(path), int(n_threads), int(n_positions)), sys.stdin, answers)


def serve(make_subject: Any, requests: TextIO, answers: TextIO) -> None:
    """Answer each request `{"call": NAME, "arguments": [...]}` by `{"result": ...}` or `{"error": TEXT}`."""
    subject: Any = None
    for line in requests:
        request = json.loads(line)
        try:
            subject = subject or make_subject()
            answer = {"result": getattr(subject, request["call"])(*request["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _make_subject(kind: str, path: Path, n_threads: int, n_positions: int) -> Any:
    """Return a subject; only its own module is imported, since the others' libraries may not be installed."""
    module, name = _SUBJECTS[kind]
    subject = getattr(import_module(f"turbospark_chat.bench.{module}"), name)
    return subject(path, n_threads=n_threads, n_positions=n_positions)


if __name__ == "__main__":
    main()
