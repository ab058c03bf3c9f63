"""A whole measurement of a conversation: by turns, real processes, and the command that prints it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from turbospark_chat.bench import chat_runner, peer_chat
from turbospark_chat.bench.chat_runner import measure_chat

FIGURES = {"n_prompt": 9, "n_new": 8, "n_evaluated": 8, "n_ahead": 0, "seconds": 0.5}
Run = Callable[..., tuple[int, str, str]]


class FakeWorker:
    """Answers at once, and notes who was asked what in a list that all share."""

    asked: list[tuple[str, str]] = []

    def __init__(self, kind: str, path: Path, *, n_threads: int, n_positions: int) -> None:
        self._kind = kind

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def call(self, name: str, *arguments: int) -> Any:
        FakeWorker.asked.append((self._kind, name))
        if name.startswith("talk"):
            return [FIGURES] * arguments[0]
        return {"describe": {"name": self._kind}, "paste": 1.0, "paste_ahead": 0.25, "count_paste": 400}[name]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    FakeWorker.asked = []
    monkeypatch.setattr(chat_runner, "Worker", FakeWorker)
    return FakeWorker.asked


def test_all_converse_by_turns_and_each_once_unmeasured(asked: list[tuple[str, str]]) -> None:
    report = measure_chat(Path("m.gguf"), n_threads=2, n_rounds=2, peers=["llama-cpp-python"])
    talks = [(kind, call) for kind, call in asked if call.startswith("talk")]
    own, ahead, peer = ("own chat", "talk"), ("own chat", "talk_ahead"), ("llama-cpp-python", "talk")
    assert talks == [own, peer, *[own, ahead, peer] * 2]
    assert [(talk.name, talk.is_own) for talk in report.talks] == [
        ("turbospark_chat", True), ("reading ahead", True), ("llama-cpp-python", False),
    ]  # fmt: skip
    assert {len(talk.rounds) for talk in report.talks} == {2}
    assert {len(turns) for talk in report.talks for turns in talk.rounds} == {20}


def test_the_paste_is_measured_with_and_without_by_turns(asked: list[tuple[str, str]]) -> None:
    report = measure_chat(Path("m.gguf"), n_threads=2, n_rounds=5)
    assert [call for _, call in asked if call.startswith("paste")] == ["paste", "paste_ahead"] * 5
    assert (report.paste.n_tokens, report.paste.ratio) == (400, 0.25)


def test_a_real_measurement_of_a_tiny_model(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", context_length=4096)
    steps: list[str] = []
    report = measure_chat(path, n_threads=1, n_rounds=1, n_turns=3, read_over_ms=0, on_step=steps.append)
    plain, ahead = (talk.turns() for talk in report.talks)
    assert all(turn.n_evaluated == turn.n_new for turn in plain)
    assert all(turn.n_evaluated + turn.n_ahead == turn.n_new for turn in ahead)
    assert min(*report.paste.without, *report.paste.ahead) > 0
    assert (steps[0], steps[-1]) == ("loading", "a pasted message")


def test_the_command_prints_both_tables_and_the_paste(
    ts: Run, tiny_path: Path, asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_chat, "find_spec", lambda module: module)
    code, out, _ = ts("bench", tiny_path, "--chat", "--rounds", "1", "--peer", "llama.cpp")
    assert code == 0 and {kind for kind, _ in asked} == {"own chat", "llama-cpp-python", "llama.cpp's server"}
    tokens, times, paste = out.split("\n\n")
    assert tokens.splitlines()[-1].split() == ["all", "turns", *["160/160"] * 4]
    assert times.splitlines()[1].split() == ["turn", "1", *["500.0", "ms"] * 4]
    assert paste.startswith("a message of 400 tokens") and paste.endswith("ratio 0.25\n")


def test_the_command_prints_one_json_object(ts: Run, tiny_path: Path, asked: list[tuple[str, str]]) -> None:
    code, out, _ = ts("bench", tiny_path, "--chat", "--rounds", "1", "--json")
    assert code == 0 and {kind for kind, _ in asked} == {"own chat"}
    assert json.loads(out)["paste"]["ratio"] == 0.25


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--against", "x.json"), "`--against` compares no conversations: leave it or `--chat` out"),
        (("--peer", "ollama"), "peer is 'ollama': give llama.cpp"),
        (("--peer", "llama.cpp"), "`--peer llama.cpp` needs a package of it"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    ts: Run, tiny_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.setattr(peer_chat, "find_spec", lambda module: None)
    code, out, err = ts("bench", tiny_path, "--chat", *flags)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {complaint}") and err.count("\n") == 1
