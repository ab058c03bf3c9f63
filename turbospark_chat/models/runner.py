"""The LogitProducer over a model: keeps the state and the record of its ids in step, whatever happens."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from turbospark_chat.errors import ForkedEngineError, TokenIdError
from turbospark_chat.models.layers import Array
from turbospark_chat.models.parking import Evicted, Parked, RecordT, StatePool
from turbospark_chat.models.reuse_report import ReuseReport
from turbospark_chat.models.state import Model, ScoringModel, StateT

_EVICTED_REMEMBERED = 16  # of states that were thrown away, to tell why a prompt was not served


class Runner(Generic[RecordT, StateT]):
    """Feeds a model and records what its state holds.

    After every call, also one that raised, the record is as long as the state: a failed forward pass leaves both
    at the position it started from, or, where the state cannot go back there, before it. No state is ever both live
    and parked. It belongs to the process that built it: worker threads do not survive a fork.

    With a `pool` it keeps several conversations. A prompt that a parked state serves better gets that one. Where the
    live state would lose all it holds, or the one that serves anything after `expect_return`, the prompt gets a copy
    of what they share, and that state is parked whole.
    """

    def __init__(
        self,
        model: Model[StateT],
        make_record: Callable[[], RecordT],
        *,
        pool: StatePool[RecordT, StateT] | None = None,
    ) -> None:
        self._model, self._make_record, self._pool = model, make_record, pool
        self._record = make_record()
        self._state = model.make_state()
        self._slot_evicted = False
        self._report: ReuseReport | None = None
        self._is_return_expected = False
        self._is_prompt_open = False  # since `try_reuse_prefix`, until logits are asked for
        # Where the latest prompt left what the state could not go back to.
        self._branches_at: int | None = None
        self.may_copy = True  # a state, where one is to stay whole; a check of the memory may forbid it
        self._evicted: deque[Evicted[RecordT]] = deque(maxlen=_EVICTED_REMEMBERED)
        self._pid = os.getpid()

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""
        return self._model.vocab_size

    @property
    def model(self) -> Model[StateT]:
        """The model that is fed."""
        return self._model

    @property
    def record(self) -> RecordT:
        """The record of the live state's ids."""
        return self._record

    @property
    def state(self) -> StateT:
        """The live state."""
        return self._state

    @property
    def session_slot_evicted(self) -> bool:
        """Whether serving the latest prompt threw away another conversation's usable state."""
        return self._slot_evicted

    @property
    def slack(self) -> int:
        """How many of the positions fed last can be taken back for certain; 0 where only the last is scored."""
        return self._state.slack if isinstance(self._model, ScoringModel) else 0

    @property
    def n_guesses(self) -> int:
        """How many guessed tokens are best fed along with a sampled one, by what the model measured."""
        return self._model.n_guesses if isinstance(self._model, ScoringModel) else 0

    @property
    def reuse_report(self) -> ReuseReport | None:
        """How the latest prompt was served; None before any."""
        return self._report

    def reset(self) -> None:
        """Empty record and live state; parked ones stay."""
        self._is_return_expected = False
        self._record.clear()
        self._state.truncate(0)

    def produce(self, token: int, position: int) -> Array:
        """Feed one token and return the logits (V,) after it."""
        logits = self.produce_chunk([token], position, need_logits=True)
        assert logits is not None
        return logits

    def produce_prefill(self, token: int, position: int) -> None:
        """Feed one token without the output head."""
        self.produce_chunk([token], position, need_logits=False)

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Array | None:
        """Feed tokens from `position` on; with `need_logits` return the logits (V,) after the last.

        A state is marked where conversations were seen to part and it could not go back to that; one that cannot go
        back anywhere also near the end of a prompt, so that the same prompt can be asked again.

        Raises:
            ValueError: there is nothing to feed, or the state cannot be brought to `position`: it is past the
                end, or too far back.
            TokenIdError: an id outside the vocabulary; nothing was fed.
            ForkedEngineError: called in a forked child.
        """
        self._check(tokens, position)
        self._bring_to(position)
        end, marks = position + len(tokens), {self._branches_at}
        if need_logits and self._is_prompt_open and self._state.slack < sys.maxsize:
            # Of a state with slack the last part's start will do: it costs no pass of its own.
            marks.add(position if self._state.slack else end - 1)
        for mark in sorted(mark for mark in marks if mark is not None):
            if position <= mark < end:
                self._feed_and_mark(tokens[: mark - position], position)
                tokens, position = tokens[mark - position :], mark
        logits = self._feed(tokens, position, need_logits=need_logits)
        self._is_prompt_open &= not need_logits
        return logits

    def produce_each(self, tokens: Sequence[int], position: int) -> Array:
        """Feed tokens from `position` on and return the logits (T, V) after each.

        Raises:
            ValueError, TokenIdError, ForkedEngineError: as `produce_chunk`; or the model scores only the last token.
        """
        model = self._model
        if not isinstance(model, ScoringModel):
            raise ValueError("this model scores only the last of several tokens")
        self._check(tokens, position)
        self._bring_to(position)
        with self._recording(tokens, position):
            return model.forward_each(tokens, self._state)

    def rewind_to(self, position: int) -> int:
        """Cut state and record to at most `position`, or as far back as the state can go; return what is kept."""
        self._cut(position)
        return len(self._state)

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Cut the state that serves most of a prompt, and its record, to what they share; return the positions kept."""
        self._slot_evicted, self._is_prompt_open = False, True
        if self._pool is not None:
            self._take_better(self._pool, prompt_ids)
        report = self._report_on(prompt_ids)
        if report.n_held == report.n_kept:  # nothing is lost, so that an expectation stands
            self._cut(report.n_common)
        else:
            is_return_expected, self._is_return_expected = self._is_return_expected, False
            stays_whole = is_return_expected or report.n_kept == 0
            if self._pool is not None and self.may_copy and stays_whole:
                self._fork(prompt_ids[: report.n_kept])
            else:
                self._cut(report.n_common)
        self._report = report
        self._branches_at = report.n_common if report.n_kept < report.n_common else None
        if len(self._state):
            self._state.mark()
        return len(self._state)

    def expect_return(self) -> None:
        """Note that another conversation follows: its first prompt that differs leaves the state that serves it whole.

        Without a pool it changes nothing.
        """
        self._is_return_expected = True

    def n_live(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt the live state holds, and can go back to."""
        # One id more, since of a prompt the last one is always left to feed.
        return self._state.reach(self._record.common_prefix((*prompt_ids, 0)))

    def n_parked(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt a parked state would serve."""
        return 0 if self._pool is None else self._pool.best_match(prompt_ids)

    def evict_parked(self) -> bool:
        """Throw the parked state away that waits longest, for its memory; return whether there was one."""
        evicted = self._pool.evict() if self._pool is not None else None
        self._note_evicted([evicted] if evicted is not None else [], by_prompt=False)
        return evicted is not None

    def adopt(self, record: RecordT, state: StateT) -> None:
        """Go on from a state that was computed elsewhere, and the record of its ids; the live one is parked.

        Raises:
            ValueError: they are not of the same length.
        """
        if len(record) != len(state):
            raise ValueError(f"a record of {len(record)} ids does not describe {len(state)} positions")
        self._is_return_expected = False
        self._note_evicted(self._replace_live(record, state), by_prompt=False)

    def _take_better(self, pool: StatePool[RecordT, StateT], prompt_ids: Sequence[int]) -> None:
        """Make a parked state live if it serves more of the prompt, or a copy where it is to stay whole."""
        n_kept = self._state.reach(self._record.common_prefix(prompt_ids))
        n_served = pool.best_match(prompt_ids)
        if n_served <= n_kept:
            return
        is_return_expected, self._is_return_expected = self._is_return_expected, False
        parked = pool.take(prompt_ids)
        assert parked is not None  # it has just matched
        record, state = parked.prefix, parked.state
        if is_return_expected and self.may_copy and n_served < len(record):
            record, state = self._copy(parked.state, prompt_ids[:n_served])
            self._note_evicted(pool.park(parked.prefix, parked.state))
        if n_kept == len(self._record):  # what is live holds nothing that this one does not
            self._record, self._state = record, state
        else:
            self._note_evicted(self._replace_live(record, state))

    def _fork(self, kept_ids: Sequence[int]) -> None:
        """Go on with a copy of the live state's beginning; the live one is parked whole."""
        self._note_evicted(self._replace_live(*self._copy(self._state, kept_ids)))

    def _copy(self, state: StateT, kept_ids: Sequence[int]) -> tuple[RecordT, StateT]:
        fork, record = state.fork(len(kept_ids)), self._make_record()
        record.record(kept_ids, 0)
        return record, fork

    def _replace_live(self, record: RecordT, state: StateT) -> Sequence[Parked[RecordT, StateT]]:
        """Park the live state, now that another takes its place; return the states thrown away for it."""
        left_record, left_state = self._record, self._state
        # Before it is parked: should that raise, a state is lost, but none is live and parked at once.
        self._record, self._state = record, state
        return () if self._pool is None else self._pool.park(left_record, left_state)

    def _note_evicted(self, evicted: Sequence[Parked[RecordT, StateT]], *, by_prompt: bool = True) -> None:
        self._evicted.extend(Evicted(parked.prefix, parked.state.slack) for parked in evicted)
        self._slot_evicted |= by_prompt and bool(evicted)

    def _report_on(self, prompt_ids: Sequence[int]) -> ReuseReport:
        held_ids, n_common = self._record.ids, self._record.common_prefix(prompt_ids)
        return ReuseReport(
            n_held=len(held_ids),
            n_common=n_common,
            n_kept=self._state.reach(n_common),
            held_id=held_ids[n_common] if n_common < len(held_ids) else None,
            is_tainted=self._record.is_tainted,
            n_evicted=max((evicted.n_served(prompt_ids) for evicted in self._evicted), default=0),
        )

    def _feed_and_mark(self, tokens: Sequence[int], position: int) -> None:
        if tokens:
            self._feed(tokens, position, need_logits=False)
        if position + len(tokens):
            self._state.mark()

    def _feed(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Array | None:
        with self._recording(tokens, position):
            return self._model.forward(tokens, self._state, need_logits=need_logits)

    @contextmanager
    def _recording(self, tokens: Sequence[int], position: int) -> Iterator[None]:
        """Record what a forward pass feeds at the state's end; if it fails, leave both at `position` or before it."""
        try:
            yield
            self._record.record(tokens, position)
        except BaseException:
            self._cut(position)
            raise

    def _bring_to(self, position: int) -> None:
        self._cut(position)
        if len(self._state) != position:
            raise ValueError(f"the state cannot go back to {position}: it is left with {len(self._state)}")

    def _cut(self, position: int) -> None:
        self._record.rewind_to(self._state.truncate(position))

    def _check(self, tokens: Sequence[int], position: int) -> None:
        if os.getpid() != self._pid:
            raise ForkedEngineError(
                f"the engine of process {self._pid} cannot run in its forked child {os.getpid()};"
                " load the model in the child, or start it as a new process"
            )
        if not tokens:
            raise ValueError("no tokens to feed")
        if not 0 <= position <= len(self._state):
            raise ValueError(f"position {position} leaves a gap after {len(self._state)}")
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise TokenIdError(token, self.vocab_size)
