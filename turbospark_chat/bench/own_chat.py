"""A chat with this program, as a subject of measurement: through the session and the thread that the screen uses."""

import threading
import time
from dataclasses import asdict
from pathlib import Path

from turbospark_chat.assembly import choose_arithmetic, open_chat_model
from turbospark_chat.bench.chat_plan import LONG_MESSAGE, MESSAGES, PAUSE_MS, REPLY_TOKENS
from turbospark_chat.bench.chat_report import TurnFigures
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnResult
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.engine.completion import CompletionConfig
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.sampling_config import SamplingConfig

_MS = 1000


class OwnChat:
    """A model in this process. Its cache grows as it must, so `n_positions` is for others."""

    def __init__(self, path: Path, *, n_threads: int, n_positions: int) -> None:
        self._model = open_chat_model(path, context_length=None, arithmetic=choose_arithmetic(n_threads))

    def describe(self) -> dict[str, str]:
        """Return what this is."""
        return {"name": "turbospark_chat", "arithmetic": self._model.arithmetic}

    def count_paste(self) -> int:
        """Return how many tokens the message has that is pasted."""
        return len(self._model.tokenizer.encode(LONG_MESSAGE))

    def talk(self, n_turns: int) -> list[dict[str, float]]:
        """Return the figures of each turn of a conversation that begins cold."""
        return self._talk(n_turns, is_read_ahead=False)

    def talk_ahead(self, n_turns: int) -> list[dict[str, float]]:
        """Return the same where the model has read what it could before each message was sent."""
        return self._talk(n_turns, is_read_ahead=True)

    def paste(self, wait_ms: int) -> float:
        """Return the seconds to the first token of a long message that was sent so long after it was pasted."""
        return self._paste(wait_ms, is_read_ahead=False)

    def paste_ahead(self, wait_ms: int) -> float:
        """Return the same where the model reads the message meanwhile, as it does behind the screen."""
        return self._paste(wait_ms, is_read_ahead=True)

    def _talk(self, n_turns: int, *, is_read_ahead: bool) -> list[dict[str, float]]:
        session, n_held = self._begin(), 0
        figures = []
        for message in MESSAGES[:n_turns]:
            if is_read_ahead:
                for draft in ("", message):
                    session.read_ahead(draft, cancel=threading.Event())
            result, seconds = _send(session, message, threading.Event())
            raw = result.raw
            figures.append(
                TurnFigures(
                    n_prompt=raw.prompt_tokens,
                    n_new=raw.prompt_tokens - n_held,
                    n_evaluated=raw.prefilled_tokens,
                    n_ahead=result.n_ahead,
                    seconds=seconds,
                )
            )
            n_held = raw.kv_position
        return [asdict(figure) for figure in figures]

    def _paste(self, wait_ms: int, *, is_read_ahead: bool) -> float:
        session, thread = self._begin(), ModelThread()

        def read(draft: str) -> Job[None, int]:
            return thread.submit(lambda cancel, report: session.read_ahead(draft, cancel=cancel))

        _send(session, MESSAGES[0], threading.Event())
        if is_read_ahead:
            read("").wait()
        time.sleep(min(PAUSE_MS, wait_ms) / _MS)
        reading = read(LONG_MESSAGE) if is_read_ahead else None
        time.sleep(max(wait_ms - PAUSE_MS, 0) / _MS)
        # What the model has not read by now it is told to leave: the turn waits until it does.
        sent = time.perf_counter()
        if reading is not None:
            reading.cancel()
        turn: Job[None, tuple[TurnResult, float]] = thread.submit(
            lambda cancel, report: _send(session, LONG_MESSAGE, cancel, since=sent)
        )
        _, seconds = turn.result()
        thread.close()
        return seconds

    def _begin(self) -> ChatSession:
        """Return a session of an empty cache that refuses rather than leave turns out."""
        self._model.producer.reset()
        completion = CompletionConfig(max_new_tokens=REPLY_TOKENS, sampling=SamplingConfig(temperature=0.0))
        return ChatSession(self._model, options=ChatOptions(completion, on_overflow=OverflowPolicy.ERROR))


def _send(
    session: ChatSession, message: str, cancel: threading.Event, *, since: float | None = None
) -> tuple[TurnResult, float]:
    """Return what came of a turn, and the seconds to the first text of the reply."""
    heard: list[float] = []

    def listen(event: TurnEvent) -> None:
        if isinstance(event, ReplyText) and event.text and not heard:
            heard.append(time.perf_counter())

    started = time.perf_counter() if since is None else since
    result = session.send(message, cancel=cancel, on_event=listen)
    # A reply without a text comes when it is over.
    return result, (heard[0] if heard else time.perf_counter()) - started
