"""Chats with llama.cpp as subjects, over stand-ins of its modules: what is asked of them and what is counted."""

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turbospark_chat.bench import peer_chat
from turbospark_chat.bench.chat_plan import MESSAGES
from turbospark_chat.bench.peer_chat import BindingChat, ServerChat, installed_chats

REPLY = ["A", " re", "ply."]
N_AGAIN = 2  # of each turn's prompt after the first: what retokenising a reply costs a peer


class Peer:
    """What both stand-ins do: 30 tokens a message, 3 of each reply, and two that are evaluated once more.

    By its clock every text of a reply takes a second, and nothing else any time.
    """

    now = 0.0

    def __init__(self) -> None:
        self.n_held = 0
        self.asked: list[dict[str, Any]] = []

    def begin_turn(self, request: dict[str, Any]) -> tuple[int, int]:
        """Return how many tokens the prompt has, and how many of them are evaluated."""
        self.asked.append({**request, "messages": list(request["messages"])})
        is_first = len(request["messages"]) == 1
        n_prompt = 30 if is_first else self.n_held + 30
        n_evaluated = n_prompt if is_first else 30 + N_AGAIN
        self.n_held = n_prompt + len(REPLY) - 1
        return n_prompt, n_evaluated

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the reply: a role, then the texts."""
        yield chunk({"role": "assistant", "content": None})
        for text in REPLY:
            Peer.now += 1
            yield chunk({"content": text})


class Llama(Peer):
    made: "Llama"

    def __init__(self, path: str, **settings: object) -> None:
        super().__init__()
        Llama.made, self.path, self.settings, self.n_tokens = self, path, settings, 0

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, ids: list[int]) -> None:
        self.n_tokens += len(ids)

    def create_chat_completion(self, **request: Any) -> Iterator[dict[str, Any]]:
        n_prompt, n_evaluated = self.begin_turn(request)
        self.n_tokens = n_prompt - n_evaluated
        self.eval([1] * n_evaluated)
        for number, piece in enumerate(self.chunks()):
            if number > 1:
                self.eval([1])
            yield piece
        yield chunk({})


class Server(Peer):
    made: "Server"

    def __init__(self, params: SimpleNamespace) -> None:
        super().__init__()
        Server.made, self.params = self, params

    def handle_chat_completions(
        self, request: dict[str, Any], listen: Callable[[dict[str, Any]], bool]
    ) -> None:
        n_prompt, n_evaluated = self.begin_turn(request)
        timings = {"cache_n": n_prompt - n_evaluated, "prompt_n": n_evaluated, "predicted_n": len(REPLY)}
        for piece in chain(self.chunks(), [{"choices": []}, chunk({}) | {"timings": timings}]):
            assert listen(piece) is False  # or it stops


def chunk(delta: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def _params() -> SimpleNamespace:
    return SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )


@pytest.fixture(params=[BindingChat, ServerChat], ids=["binding", "server"])
def chat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    binding: Any = ModuleType("llama_cpp")
    binding.Llama, binding.__version__ = Llama, "0.3"
    server: Any = ModuleType("xllamacpp")
    server.CommonParams, server.Server, server.__version__ = _params, Server, "1.2"
    monkeypatch.setitem(sys.modules, "llama_cpp", binding)
    monkeypatch.setitem(sys.modules, "xllamacpp", server)
    return request.param(Path("m.gguf"), n_threads=3, n_positions=600)


def peer_of(chat: Any) -> Any:
    return Llama.made if isinstance(chat, BindingChat) else Server.made


def test_it_gets_the_same_threads_and_room(chat: Any) -> None:
    peer = peer_of(chat)
    if isinstance(chat, BindingChat):
        assert peer.path == "m.gguf"
        assert peer.settings == {"n_ctx": 600, "n_threads": 3, "n_threads_batch": 3, "verbose": False}
    else:
        params = peer.params
        assert (params.model.path, params.n_ctx, params.n_parallel) == ("m.gguf", 600, 1)
        assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3


def test_its_name_is_the_one_it_is_asked_for_by(chat: Any) -> None:
    assert chat.describe()["name"] in peer_chat._MODULES


def test_each_turn_counts_what_is_new_and_what_was_evaluated(chat: Any) -> None:
    turns = chat.talk(3)
    assert [turn["n_prompt"] for turn in turns] == [30, 62, 94]
    assert [turn["n_new"] for turn in turns] == [30, 30, 30]
    assert [turn["n_evaluated"] for turn in turns] == [30, 30 + N_AGAIN, 30 + N_AGAIN]
    assert all(turn["n_ahead"] == 0 and turn["seconds"] >= 0 for turn in turns)


def test_every_conversation_begins_cold(chat: Any) -> None:
    assert [turn["n_new"] for turn in chat.talk(2)] == [turn["n_new"] for turn in chat.talk(2)]


def test_replies_are_in_the_next_prompt_as_they_came(chat: Any) -> None:
    chat.talk(2)
    first, second = peer_of(chat).asked
    assert first["messages"] == [{"role": "user", "content": MESSAGES[0]}]
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "A reply."},
        {"role": "user", "content": MESSAGES[1]},
    ]
    assert (second["temperature"], second["max_tokens"], second["stream"]) == (0.0, 40, True)
    if isinstance(chat, ServerChat):
        assert [first["cache_prompt"], second["cache_prompt"]] == [False, True]


def test_time_ends_with_the_first_text(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_chat.time, "perf_counter", lambda: Peer.now)
    assert [turn["seconds"] for turn in chat.talk(2)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (("llama_cpp", "xllamacpp"), ["llama-cpp-python", "llama.cpp's server"]),
        (("xllamacpp",), ["llama.cpp's server"]),
        ((), []),
    ],
)
def test_those_are_offered_that_are_installed(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], names: list[str]
) -> None:
    monkeypatch.setattr(peer_chat, "find_spec", lambda module: module if module in modules else None)
    assert installed_chats() == names
