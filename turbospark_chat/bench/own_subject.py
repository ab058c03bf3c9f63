"""This program's engine, as a subject of measurement."""

import threading
import time
from pathlib import Path

import numpy as np

from turbospark_chat.assembly import choose_arithmetic, open_chat_model
from turbospark_chat.bench.plan import TURN_MESSAGE, TURN_TOKENS, spread_ids
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent
from turbospark_chat.engine.completion import CompletionConfig
from turbospark_chat.engine.sampler import Sampler
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import KernelsUnavailableError
from turbospark_chat.models.bandwidth import measure_read_bandwidth
from turbospark_chat.models.config import read_config
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import footprint
from turbospark_chat.settings import Locations


class OwnSubject:
    """A model in this process. What is before the part measured is prefilled once and kept."""

    def __init__(self, path: Path, *, n_threads: int, n_positions: int) -> None:
        self._path, self._n_threads = path, n_threads
        arithmetic = choose_arithmetic(n_threads)
        self._model = open_chat_model(path, context_length=None, arithmetic=arithmetic)
        self._producer = self._model.producer
        self._ids = spread_ids(n_positions, self._producer.vocab_size)
        self._n_ready = 0  # positions from the start that hold `_ids`

    def describe(self) -> dict[str, str]:
        """Return what this is."""
        return {"name": "turbospark_chat", "arithmetic": self._model.arithmetic}

    def context_length(self) -> int:
        """Return how many positions fit."""
        return self._model.context_length

    def prefill(self, n_tokens: int) -> float:
        """Return the seconds to read so many tokens into an empty cache."""
        self._n_ready = 0
        started = time.perf_counter()
        self._read(0, n_tokens)
        seconds = time.perf_counter() - started
        self._n_ready = n_tokens
        return seconds

    def extend(self, context: int, n_tokens: int) -> float:
        """Return the seconds to read so many tokens after `context` others."""
        self._prepare(context)
        started = time.perf_counter()
        self._read(context, context + n_tokens)
        return time.perf_counter() - started

    def decode(self, context: int, n_tokens: int) -> float:
        """Return the seconds to feed so many tokens one by one and to choose one after each, after `context` others."""
        self._prepare(context)
        sampler = Sampler(SamplingConfig(temperature=0.0), vocab_size=self._producer.vocab_size)
        started = time.perf_counter()
        for position in range(context, context + n_tokens):
            logits = self._producer.produce(self._ids[position], position)
            sampler.sample(logits, self._ids[:position], context)
        return time.perf_counter() - started

    def turns(self, n_turns: int) -> list[float]:
        """Return for each turn of a conversation the seconds from sending to the first token."""
        self._n_ready = 0
        self._producer.reset()
        completion = CompletionConfig(max_new_tokens=TURN_TOKENS, sampling=SamplingConfig(temperature=0.0))
        session = ChatSession(self._model, options=ChatOptions(completion))
        waits: list[float] = []
        for _ in range(n_turns):
            heard: list[float] = []

            def listen(event: TurnEvent, heard: list[float] = heard) -> None:
                if isinstance(event, ReplyText):
                    heard.append(time.perf_counter())

            started = time.perf_counter()
            session.send(TURN_MESSAGE, cancel=threading.Event(), on_event=listen)
            # A reply that ends at once says nothing: its first token came when it was over.
            waits.append((heard[0] if heard else time.perf_counter()) - started)
        return waits

    def read_bandwidth(self) -> float:
        """Return the bytes a second that the threads together read of the model's file; 0 if that cannot be told."""
        library = KernelLibrary(Locations.of_user().kernels)
        data = np.memmap(self._path, np.uint8, mode="r")
        try:
            return measure_read_bandwidth(data, library, n_threads=self._n_threads)
        except KernelsUnavailableError:
            return 0.0

    def bytes_a_token(self, context: int) -> int:
        """Return how much of weights and cache a decode step after `context` others reads."""
        with GgufFile.open(self._path) as file:
            matrices = {name: info.n_bytes for name, info in file.tensors.items() if len(info.shape) == 2}
            if "output.weight" in matrices:  # else the embedding is the output head as well
                matrices["token_embd.weight"] = 0
            config = read_config(file.metadata, file.path)
            row_bytes = footprint(file, config, choose_arithmetic()).row_bytes
        n_rows = sum(min(context, window or context) for window in config.windows)
        return sum(matrices.values()) + n_rows * row_bytes

    def _prepare(self, context: int) -> None:
        if self._n_ready < context:
            self._read(0, context)
            self._n_ready = context
        # What is fed at `context` cuts the rest off.
        self._n_ready = min(self._n_ready, context)

    def _read(self, start: int, end: int) -> None:
        config, position = CompletionConfig(), start
        while position < end:
            chunk = self._ids[position : min(position + config.chunk_at(position), end)]
            position += len(chunk)
            self._producer.produce_chunk(chunk, position - len(chunk), need_logits=position == end)
