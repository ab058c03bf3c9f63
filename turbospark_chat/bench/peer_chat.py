"""Chats with llama.cpp as its users have them, as subjects of measurement: no dependencies, but used where installed.

Each keeps its cache between turns by its own means, and renders the model's template itself.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from turbospark_chat.bench.chat_plan import MESSAGES, REPLY_TOKENS
from turbospark_chat.bench.chat_report import TurnFigures

# Their names, and the modules they need.
_MODULES: Final[Mapping[str, str]] = {"llama-cpp-python": "llama_cpp", "llama.cpp's server": "xllamacpp"}

Request = dict[str, Any]


def installed_chats() -> list[str]:
    """Return the names of those whose modules are installed."""
    return [name for name, module in _MODULES.items() if find_spec(module)]


class BindingChat:
    """`llama_cpp.Llama`: of the ids in its cache it keeps those that the next prompt begins with."""

    def __init__(self, path: Path, *, n_threads: int, n_positions: int) -> None:
        llama_cpp: Any = import_module("llama_cpp")
        self._version = str(llama_cpp.__version__)
        self._model: Any = llama_cpp.Llama(
            str(path), n_ctx=n_positions, n_threads=n_threads, n_threads_batch=n_threads, verbose=False
        )
        self._n_fed: list[int] = []  # ids of each evaluation in this turn
        evaluate = self._model.eval

        def count_and_evaluate(ids: Any) -> None:
            self._n_fed.append(len(ids))
            evaluate(ids)

        self._model.eval = count_and_evaluate

    def describe(self) -> dict[str, str]:
        """Return what this is."""
        return {"name": "llama-cpp-python", "arithmetic": f"llama-cpp-python {self._version}"}

    def talk(self, n_turns: int) -> list[dict[str, float]]:
        """Return the figures of each turn of a conversation that begins cold."""
        self._model.reset()
        return [asdict(figures) for figures in _talk(n_turns, self._answer)]

    def _answer(self, request: Request, heard: Callable[[str], None]) -> tuple[int, int, int]:
        n_held = self._model.n_tokens
        self._n_fed.clear()
        for chunk in self._model.create_chat_completion(**request):
            heard(chunk["choices"][0]["delta"].get("content") or "")
        # First the prompt, then the tokens of the reply, without the last one, are evaluated.
        n_evaluated, *n_later = self._n_fed
        return self._model.n_tokens - sum(n_later), n_held, n_evaluated


class ServerChat:
    """The server of llama.cpp, in this process by the wheel `xllamacpp`, with its prompt cache."""

    def __init__(self, path: Path, *, n_threads: int, n_positions: int) -> None:
        xllamacpp: Any = import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = n_positions, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
        self._version = str(xllamacpp.__version__)
        self._server: Any = xllamacpp.Server(params)
        self._n_held = 0

    def describe(self) -> dict[str, str]:
        """Return what this is."""
        return {"name": "llama.cpp's server", "arithmetic": f"xllamacpp {self._version}"}

    def talk(self, n_turns: int) -> list[dict[str, float]]:
        """Return the figures of each turn of a conversation that begins cold."""
        self._n_held = 0
        return [asdict(figures) for figures in _talk(n_turns, self._answer)]

    def _answer(self, request: Request, heard: Callable[[str], None]) -> tuple[int, int, int]:
        timings: dict[str, int] = {}

        def listen(chunk: Any) -> bool:
            for choice in chunk["choices"]:
                heard(choice["delta"].get("content") or "")
            timings.update(chunk.get("timings", {}))
            return False  # it is to go on

        n_held = self._n_held
        self._server.handle_chat_completions({**request, "cache_prompt": n_held > 0}, listen)
        n_prompt = timings["cache_n"] + timings["prompt_n"]
        self._n_held = n_prompt + timings["predicted_n"] - 1  # the last one is not evaluated
        return n_prompt, n_held, timings["prompt_n"]


def _talk(
    n_turns: int, answer: Callable[[Request, Callable[[str], None]], tuple[int, int, int]]
) -> Iterator[TurnFigures]:
    """Yield the figures of each turn. `answer` hands on the texts of a reply.

    It returns how many tokens the prompt had, were in the cache before it, and were evaluated for it.
    """
    messages: list[dict[str, str]] = []
    for message in MESSAGES[:n_turns]:
        texts: list[str] = []
        times: list[float] = []

        def heard(text: str, texts: list[str] = texts, times: list[float] = times) -> None:
            if text:
                texts.append(text)
                times.append(time.perf_counter())

        messages.append({"role": "user", "content": message})
        request = {"messages": messages, "max_tokens": REPLY_TOKENS, "temperature": 0.0, "stream": True}
        started = time.perf_counter()
        n_prompt, n_held, n_evaluated = answer(request, heard)
        seconds = (times[0] if times else time.perf_counter()) - started
        messages.append({"role": "assistant", "content": "".join(texts)})
        yield TurnFigures(
            n_prompt=n_prompt, n_new=n_prompt - n_held, n_evaluated=n_evaluated, n_ahead=0, seconds=seconds
        )
