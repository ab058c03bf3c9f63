"""llama.cpp as a subject, over a stand-in of its module: what is asked of it and how its timings are read."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turbospark_chat.bench.peer_subject import ONE_SHOT_PROGRAM, PeerSubject


class Server:
    def __init__(self, params: SimpleNamespace) -> None:
        self.params = params
        self.requests: list[dict[str, Any]] = []
        Server.made = self

    made: "Server"

    def handle_completions(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        timings = {"prompt_ms": 10.0 * len(request["prompt"]), "predicted_n": request["n_predict"],
                   "predicted_ms": 5.0 * (request["n_predict"] - 1)}  # fmt: skip
        return {"timings": timings}

    def handle_chat_completions(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append({"n_messages": len(request["messages"]), "is_cached": request["cache_prompt"]})
        message = {"content": "A reply."}
        return {"choices": [{"message": message}], "timings": {"prompt_ms": 7.0}}


def _params() -> SimpleNamespace:
    return SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> PeerSubject:
    module: Any = ModuleType("xllamacpp")
    module.CommonParams, module.Server, module.__version__ = _params, Server, "1.2"
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return PeerSubject(Path("m.gguf"), n_threads=3, n_positions=600)


def test_it_gets_the_same_threads_and_room(subject: PeerSubject) -> None:
    params = Server.made.params
    assert (params.model.path, params.n_ctx, params.n_parallel) == ("m.gguf", 600, 1)
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3
    assert subject.describe() == {"name": "llama.cpp", "arithmetic": "xllamacpp 1.2"}


def test_a_cold_prefill_is_not_served_from_its_cache(subject: PeerSubject) -> None:
    assert subject.prefill(32) == pytest.approx(0.32)
    (request,) = Server.made.requests
    assert (len(request["prompt"]), request["cache_prompt"]) == (32, False)


def test_an_extension_is_read_after_its_context_was(subject: PeerSubject) -> None:
    subject.extend(512, 20)
    first, second = Server.made.requests
    assert second["prompt"][:512] == first["prompt"]
    assert (len(second["prompt"]), second["cache_prompt"]) == (532, True)


def test_a_decode_counts_steps(subject: PeerSubject) -> None:
    assert subject.decode(512, 32) == pytest.approx(32 * 0.005)
    assert subject.decode(0, 32) == pytest.approx(32 * 0.005)
    assert [len(request["prompt"]) for request in Server.made.requests] == [512, 1]


def test_turns_grow_one_conversation(subject: PeerSubject) -> None:
    assert subject.turns(3) == pytest.approx([0.007] * 3)
    assert [request["n_messages"] for request in Server.made.requests] == [1, 3, 5]
    assert [request["is_cached"] for request in Server.made.requests] == [False, True, True]


def test_the_one_shot_program_is_python() -> None:
    compile(ONE_SHOT_PROGRAM, "one_shot", "exec")
