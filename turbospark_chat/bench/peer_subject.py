"""llama.cpp through its wheel `xllamacpp`, as a subject of measurement: no dependency, but used where installed."""

from pathlib import Path
from typing import Any

from turbospark_chat.bench.plan import TURN_MESSAGE, TURN_TOKENS, spread_ids

_MS = 1000

# A whole program that answers once, as short as its users write it: what start-up is compared with.
ONE_SHOT_PROGRAM = """
import sys
path, threads, prompt, n_tokens = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
messages = [{"role": "user", "content": prompt}]
try:
    import llama_cpp
except ImportError:
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = path, 512, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    xllamacpp.Server(params).handle_chat_completions({"messages": messages, "max_tokens": n_tokens})
else:
    model = llama_cpp.Llama(path, verbose=False, n_ctx=512, n_threads=threads, n_threads_batch=threads)
    model.create_chat_completion(messages, max_tokens=n_tokens)
"""


class PeerSubject:
    """A server of llama.cpp in this process. Its own timings count: what stands around them is not held against it."""

    def __init__(self, path: Path, *, n_threads: int, n_positions: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = n_positions, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
        self._version = str(xllamacpp.__version__)
        self._server = xllamacpp.Server(params)
        self._ids = spread_ids(n_positions, 4096)
        self._n_positions = n_positions

    def describe(self) -> dict[str, str]:
        """Return what this is."""
        return {"name": "llama.cpp", "arithmetic": f"xllamacpp {self._version}"}

    def context_length(self) -> int:
        """Return how many positions fit."""
        return self._n_positions

    def prefill(self, n_tokens: int) -> float:
        """Return the seconds to read so many tokens into an empty cache."""
        return float(self._complete(n_tokens, n_predict=1, is_cached=False)["prompt_ms"]) / _MS

    def extend(self, context: int, n_tokens: int) -> float:
        """Return the seconds to read so many tokens after `context` others."""
        self._complete(context, n_predict=1, is_cached=True)
        return float(self._complete(context + n_tokens, n_predict=1, is_cached=True)["prompt_ms"]) / _MS

    def decode(self, context: int, n_tokens: int) -> float:
        """Return the seconds to generate so many tokens after `context` others."""
        # Its time runs from the first token sampled to the last, which is one step fewer than tokens.
        timings = self._complete(max(context, 1), n_predict=n_tokens + 1, is_cached=True)
        return n_tokens * float(timings["predicted_ms"]) / (float(timings["predicted_n"]) - 1) / _MS

    def turns(self, n_turns: int) -> list[float]:
        """Return for each turn of a conversation the seconds of its prompt."""
        messages: list[dict[str, str]] = []
        waits: list[float] = []
        for _ in range(n_turns):
            messages.append({"role": "user", "content": TURN_MESSAGE})
            request = {
                "messages": messages,
                "max_tokens": TURN_TOKENS,
                "temperature": 0,
                "cache_prompt": bool(waits),  # the first begins cold
            }
            answer = self._server.handle_chat_completions(request)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            waits.append(answer["timings"]["prompt_ms"] / _MS)
        return waits

    def _complete(self, n_prompt: int, *, n_predict: int, is_cached: bool) -> Any:
        request = {
            "prompt": self._ids[:n_prompt], "n_predict": n_predict, "cache_prompt": is_cached,
            "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        return self._server.handle_completions(request)["timings"]
