"""The real runner over the cases' models, run and checked: for tests of the run itself.

Whatever a test is about, `Engine` checks after each run that record, state and result agree and that nothing was
evaluated but what the result says.
"""

import copy
import math
import threading
from collections.abc import Callable, Sequence

import pytest
from fakes import HashModel, HashState, PieceTable, RecurrentModel, RecurrentState

from turbospark_chat.engine.completion import CompletionConfig, PrefillMode, RawDecodeResult
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.progress import Prefill, Progress, Tail, Token
from turbospark_chat.engine.raw_completion import run_prefill, run_raw_completion
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.models.runner import Runner

GREEDY = SamplingConfig(temperature=0)
IDS = PieceTable({token_id: b"%d " % token_id for token_id in range(97)})
MODELS = {
    "full": HashModel,
    "window 2": lambda: HashModel(window=2),
    "window 4": lambda: HashModel(window=4),
    "recurrent": RecurrentModel,
    "marked": lambda: RecurrentModel(marks=True),
}
FEEDINGS = {
    "by token": {"prefill_mode": PrefillMode.TOKENS},
    "chunks of 1": {"chunk_size": 1},
    "chunks of 3": {"chunk_size": 3},
    "chunks of 64": {"chunk_size": 64},
}

every_model = pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
every_feeding = pytest.mark.parametrize("feeding", FEEDINGS.values(), ids=FEEDINGS)

TEN = list(range(30, 40))  # case 3's prompt, and what the full model replies to it
TEN_REPLY = (37, 36, 67, 59)


class Clock:
    """Seconds that pass only while someone waits on its flag."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Flag:
    """A cancel flag: raised by `set`, after `polls` looks at it, or in a wait. Waiting only moves a clock."""

    def __init__(
        self, *, polls: float = math.inf, raised_in_wait: int | None = None, clock: Clock | None = None
    ) -> None:
        self._polls_left, self._raised_in_wait, self._clock = polls, raised_in_wait, clock
        self.waits: list[float] = []

    def set(self) -> None:
        self._polls_left = 0

    def is_set(self) -> bool:
        if self._polls_left > 0:
            self._polls_left -= 1
            return False
        return True

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if self._clock is not None:
            self._clock.now += timeout
        if len(self.waits) == self._raised_in_wait:
            self.set()
        return self.is_set()


class Engine:
    """The real runner over a model, the events of its latest run, and how many tokens that run evaluated."""

    def __init__(
        self, model: HashModel | RecurrentModel | None = None, *, n_slots: int | None = None
    ) -> None:
        self.model = HashModel() if model is None else model
        pool = None if n_slots is None else SessionPool(n_slots)
        self.runner = Runner(self.model, KvPrefix, pool=pool)
        self.events: list[Progress] = []
        self.n_evaluated = 0

    def run(
        self,
        prompt_ids: Sequence[int],
        *,
        max_context: int = 4096,
        cancel: Flag | threading.Event | None = None,
        on_event: Callable[[Progress], None] = lambda event: None,
        tokenizer: PieceTable = IDS,
        is_prefill_only: bool = False,
        **changes: object,
    ) -> RawDecodeResult:
        """Run a prompt, greedily if not told otherwise; `probe` and `clock` are the run's, the rest is the config's."""
        arguments = {name: changes.pop(name) for name in ("probe", "clock") if name in changes}
        config = CompletionConfig(**{"sampling": GREEDY, **changes})
        evaluated, self.events = self.model.evaluated, []

        def take(event: Progress) -> None:
            self.events.append(event)
            on_event(event)

        run = run_prefill if is_prefill_only else run_raw_completion
        try:
            result = run(
                self.runner, tokenizer, prompt_ids, config,
                max_context=max_context, cancel=cancel or Flag(), on_progress=take, **arguments,
            )  # fmt: skip
        finally:
            self.n_evaluated = self.model.evaluated - evaluated
            self._check_state()
        self._check_result(result, prompt_ids)
        return result

    def _check_state(self) -> None:
        """The record names exactly what the state was built from."""
        ids, state = self.runner.record.ids, self.runner.state
        assert as_the_next_token_sees(state) == as_the_next_token_sees(
            built_from(ids, self.model.make_state())
        )

    def _check_result(self, result: RawDecodeResult, prompt_ids: Sequence[int]) -> None:
        assert result.kv_backed_token_ids == self.runner.record.ids
        assert result.kv_position == len(result.kv_backed_token_ids) == len(self.runner.state)
        n_refused = result.proposed_tokens - result.accepted_tokens
        assert self.n_evaluated == result.kv_position - result.reused_prefix_tokens + n_refused  # A20
        assert result.prompt_tokens == len(prompt_ids)
        assert result.new_tokens == len(result.token_ids)
        assert result.kv_backed_token_ids == (*prompt_ids, *result.token_ids)[: result.kv_position]
        assert [event.token_id for event in self.of_type(Token)] == list(result.token_ids)
        assert self.of_type(Tail) == self.events[-1:]

    def of_type(self, kind: type[Progress]) -> list[Progress]:
        """Return the latest run's events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        """All the text the latest run showed."""
        return "".join(event.text for event in self.events if not isinstance(event, Prefill))


State = HashState | RecurrentState


def built_from(ids: Sequence[int], state: State) -> State:
    """Feed the ids to the state and return it."""
    for token in ids:
        if isinstance(state, HashState):
            state.write(len(state), token)
            state.commit(len(state) + 1)
        else:
            state.feed(token)
    return state


def as_the_next_token_sees(state: State) -> tuple[int, object]:
    after = built_from([0], copy.deepcopy(state))
    return len(state), after.entries if isinstance(after, HashState) else after.value


def cold(make_model: Callable[[], HashModel | RecurrentModel], prompt_ids: Sequence[int], **changes: object):
    """Return what a new engine replies."""
    return Engine(make_model()).run(prompt_ids, **changes).token_ids
