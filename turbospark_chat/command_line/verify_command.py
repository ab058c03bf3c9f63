"""`ts verify`: a conversation of turns, a stopped one, a retry, an undo and a branch, each compared with cold.

Part of the composition root. It goes through the session that a chat goes through.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from typing import Final

from turbospark_chat.assembly import choose_arithmetic, open_chat_model
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnEventSink, TurnResult
from turbospark_chat.chat.verification import Verification
from turbospark_chat.command_line.model_files import install
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.models.catalog import resolve
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.listing import print_table
from turbospark_chat.terminal.progress_line import CompileLine, ProgressLine

EXIT_UNSOUND: Final = 1
_OPTIONS: Final = {"temperature": "0", "max_tokens": "24"}
_N_SLOTS: Final = 2  # so that branches are parked and taken up again
_N_BEFORE_STOP: Final = 5  # tokens of the reply that is stopped

Take = Callable[..., TurnResult]


@dataclass(frozen=True, slots=True)
class Step:
    """A turn: why it ended, what of its prompt was reused, and how the state then compares with one computed anew.

    A difference of None is one that no number tells.
    """

    step: str
    reason: str
    n_positions: int
    prompt_tokens: int
    reused_prefix_tokens: int
    cache_difference: float | None
    differs_most: str
    logit_difference: float | None
    is_same_token: bool
    are_ids_same: bool  # those that the turn reported and those on record
    is_sound: bool

    @classmethod
    def of(cls, name: str, turn: TurnResult, held_ids: Sequence[int], found: Verification) -> "Step":
        """Judge a step."""
        raw = turn.raw
        are_ids_same = raw.kv_backed_token_ids == tuple(held_ids)
        return cls(
            step=name,
            reason=raw.reason.value,
            n_positions=found.n_positions,
            prompt_tokens=raw.prompt_tokens,
            reused_prefix_tokens=raw.reused_prefix_tokens,
            cache_difference=_finite(found.cache_difference),
            differs_most=found.differs_most,
            logit_difference=_finite(found.logit_difference),
            is_same_token=found.is_same_token,
            are_ids_same=are_ids_same,
            is_sound=found.is_sound and are_ids_same,
        )

    @property
    def row(self) -> tuple[str, ...]:
        """The step for people."""
        return (
            self.step,
            str(self.n_positions),
            f"{self.reused_prefix_tokens}/{self.prompt_tokens}",
            _shown(self.cache_difference),
            _shown(self.logit_difference),
            "yes" if self.is_sound else "NO",
        )


_HEADING: Final = ("step", "positions", "reused", "cache differs", "logits differ", "sound")


def run_verify(model: str, n_threads: int | None, *, is_json: bool) -> int:
    """Have the conversation, print a row or an object a step, and return 1 where one is not sound."""
    path = install(resolve(model, Locations.of_user()), is_quiet=False)
    arithmetic = choose_arithmetic(n_threads, on_compile=CompileLine(sys.stderr).show)
    loaded = open_chat_model(path, context_length=None, arithmetic=arithmetic, n_slots=_N_SLOTS)
    session = ChatSession(loaded)
    steps = _run_steps(partial(_take_steps, session))
    if is_json:
        for step in steps:
            print(json.dumps(asdict(step)))
    else:
        print_table([_HEADING, *(step.row for step in steps)])
    return 0 if all(step.is_sound for step in steps) else EXIT_UNSOUND


def _run_steps(work: Callable[[CancelFlag, Callable[[str], None]], list[Step]]) -> list[Step]:
    """Do it on the model's thread; an interrupt stops it there before it is raised here."""
    line = ProgressLine(sys.stderr)
    with closing(ModelThread()) as thread:
        job: Job[str, list[Step]] = thread.submit(work)
        try:
            for name in job.events():
                line.draw(f"verifying: {name}")
            return job.result()
        except KeyboardInterrupt:
            job.cancel()
            raise
        finally:
            line.clear()


def _take_steps(session: ChatSession, cancel: CancelFlag, on_step: Callable[[str], None]) -> list[Step]:
    steps = []
    for name, take in _conversation(session):
        on_step(name)
        turn = take(cancel=cancel, on_event=lambda event: None)
        found = session.model.verify(cancel=cancel, on_progress=lambda done, total: None)
        if found is None:
            break
        held_ids = session.model.states.held_ids if session.model.states else ()
        steps.append(Step.of(name, turn, held_ids, found))
    return steps


def _conversation(session: ChatSession) -> Iterator[tuple[str, Take]]:
    """Yield every turn with its name; what is between turns is done when the next one is asked for."""
    for name, text in _OPTIONS.items():
        session.set_option(name, text)
    send = session.send
    yield "first turn", partial(send, "Hello! Who are you?")
    yield "second turn", partial(send, "Name three colours, and 3 numbers: 1, 22, 333.")
    yield "stopped turn", partial(_send_and_stop, session, "Tell me a long story.")
    yield "retry", session.retry
    session.undo()
    yield "another message after an undo", partial(send, "Write `x = 1` in Python. ¿Qué es? 你好 🙂")
    session.branch_off("other")
    yield "on a branch", partial(send, "And what is the capital of France?")
    session.switch("main")
    yield "back from it", partial(send, "And what is the capital of Italy?")


def _send_and_stop(
    session: ChatSession, message: str, *, cancel: CancelFlag, on_event: TurnEventSink
) -> TurnResult:
    """Send a message and stop the reply after a few tokens."""
    stop = threading.Event()

    def watch(event: TurnEvent) -> None:
        if cancel.is_set() or (isinstance(event, ReplyText) and event.n_tokens >= _N_BEFORE_STOP):
            stop.set()

    return session.send(message, cancel=stop, on_event=watch)


def _finite(difference: float) -> float | None:
    return difference if isfinite(difference) else None


def _shown(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:.1e}"
