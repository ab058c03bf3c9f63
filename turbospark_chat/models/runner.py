"""The LogitProducer over a model: keeps the state and the record of its ids in step, whatever happens."""

import os
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from turbospark_chat.errors import ForkedEngineError, TokenIdError
from turbospark_chat.models.layers import Array


class State(Protocol):
    """What a model has computed so far: a KV cache, or whatever else stands for the positions behind it."""

    def __len__(self) -> int:
        """How many positions it holds."""

    @property
    def n_bytes(self) -> int:
        """Bytes it occupies."""

    def truncate(self, length: int) -> int:
        """Go back to at most `length` positions and return how many it now holds.

        A state that cannot go back that far goes back to where it can, 0 at the worst; never to a wrong state.
        """


StateT = TypeVar("StateT", bound=State)


class Model(Protocol[StateT]):
    """What an architecture offers: a forward pass over a state it is handed."""

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""

    def make_state(self) -> StateT:
        """Return an empty state."""

    def forward(self, tokens: Sequence[int], state: StateT, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state can still be truncated to where it began, or as far as it ever could.
        """


class PrefixRecord(Protocol):
    """The record of ids the runner keeps true (the engine's KvPrefix)."""

    def __len__(self) -> int:
        """How many positions it describes."""

    def record(self, tokens: Sequence[int], pos0: int) -> None:
        """Note that the state now holds `tokens` at positions `pos0` and up."""

    def rewind_to(self, position: int) -> None:
        """Cut to `position`; nothing happens when it is shorter."""

    def clear(self) -> None:
        """Empty it."""

    def common_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions can serve `prompt_ids`, at most all but its last id."""


RecordT = TypeVar("RecordT", bound=PrefixRecord)
RecordT_co = TypeVar("RecordT_co", bound=PrefixRecord, covariant=True)
StateT_co = TypeVar("StateT_co", bound=State, covariant=True)


class Parked(Protocol[RecordT_co, StateT_co]):
    """A state set aside, and the record of its ids."""

    @property
    def prefix(self) -> RecordT_co:
        """The record."""

    @property
    def state(self) -> StateT_co:
        """The state."""


class StatePool(Protocol[RecordT, StateT]):
    """Where states of other conversations wait (the engine's SessionPool)."""

    def park(self, prefix: RecordT, state: StateT) -> object | None:
        """Set a state aside; return the usable one thrown away for it, if any."""

    def best_match(self, prompt_ids: Sequence[int]) -> int:
        """Return the longest prefix of `prompt_ids` that a parked state holds."""

    def take(self, prompt_ids: Sequence[int]) -> Parked[RecordT, StateT] | None:
        """Remove and return that state."""


class Runner(Generic[RecordT, StateT]):
    """Feeds a model and records what its state holds.

    After every call, also one that raised, the record is as long as the state: a failed forward pass leaves both
    at the position it started from, or, where the state cannot go back there, before it. It belongs to the process
    that built it: worker threads do not survive a fork.
    With a `pool`, a prompt that a parked state serves better, or that shares nothing with the live state, parks the
    live one. Where two conversations begin alike and neither is parked, the second still cuts the first.
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
        self._pid = os.getpid()

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""
        return self._model.vocab_size

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

    def reset(self) -> None:
        """Empty record and live state; parked ones stay."""
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

        Raises:
            ValueError: there is nothing to feed, or the state cannot be brought to `position`: it is past the
                end, or too far back.
            TokenIdError: an id outside the vocabulary; nothing was fed.
            ForkedEngineError: called in a forked child.
        """
        self._check(tokens, position)
        self._cut(position)
        if len(self._state) != position:
            raise ValueError(f"the state cannot go back to {position}: it is left with {len(self._state)}")
        try:
            logits = self._model.forward(tokens, self._state, need_logits=need_logits)
            self._record.record(tokens, position)
        except BaseException:
            self._cut(position)
            raise
        return logits

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Cut state and record to what `prompt_ids` shares with them; return the positions kept."""
        self._slot_evicted = False
        if self._pool is not None:
            self._change_state(self._pool, prompt_ids)
        self._cut(self._record.common_prefix(prompt_ids))
        return len(self._state)

    def _change_state(self, pool: StatePool[RecordT, StateT], prompt_ids: Sequence[int]) -> None:
        """Swap the live state for a parked one that serves more of the prompt, or for a new one if it serves none."""
        live, best = self._record.common_prefix(prompt_ids), pool.best_match(prompt_ids)
        if best <= live and (live > 0 or len(self._record) == 0):
            return
        parked = pool.take(prompt_ids) if best > live else None
        new_record = parked.prefix if parked else self._make_record()
        new_state = parked.state if parked else self._model.make_state()
        self._slot_evicted = pool.park(self._record, self._state) is not None
        self._record, self._state = new_record, new_state

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
