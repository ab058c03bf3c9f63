"""The LogitProducer over a model: keeps the cache and the record of its ids in step, whatever happens."""

import os
from collections.abc import Sequence
from typing import Protocol

from turbospark_chat.errors import ForkedEngineError, TokenIdError
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array


class Model(Protocol):
    """What an architecture offers: a forward pass over a cache it is handed."""

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""

    def make_cache(self) -> KvCache:
        """Return an empty state."""

    def forward(self, tokens: Sequence[int], cache: KvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the cache's end and commit them; with `need_logits` return logits (V,) after the last."""


class PrefixRecord(Protocol):
    """The record of ids the runner keeps true (the engine's KvPrefix)."""

    def __len__(self) -> int: ...
    def record(self, tokens: Sequence[int], pos0: int) -> None: ...
    def rewind_to(self, position: int) -> None: ...
    def clear(self) -> None: ...
    def common_prefix(self, prompt_ids: Sequence[int]) -> int: ...


class Runner:
    """Feeds a model and records what its cache holds.

    After every call, also one that raised, the record is as long as the cache: a failed forward pass leaves both
    at the position it started from. It belongs to the process that built it: worker threads do not survive a fork.
    """

    def __init__(self, model: Model, record: PrefixRecord) -> None:
        self._model = model
        self._record = record
        self._cache = model.make_cache()
        self._pid = os.getpid()

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""
        return self._model.vocab_size

    @property
    def cache_length(self) -> int:
        """How many positions the cache holds."""
        return len(self._cache)

    @property
    def cache_bytes(self) -> int:
        """Bytes the cache occupies."""
        return self._cache.n_bytes

    @property
    def session_slot_evicted(self) -> bool:
        """False: there is one slot, and continuing it evicts nobody else's."""
        return False

    def reset(self) -> None:
        """Empty cache and record."""
        self._record.clear()
        self._cache.truncate(0)

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
            TokenIdError: an id outside the vocabulary; nothing was fed.
            ForkedEngineError: called in a forked child.
        """
        self._check(tokens, position)
        self._cut(position)
        try:
            logits = self._model.forward(tokens, self._cache, need_logits=need_logits)
            self._record.record(tokens, position)
        except BaseException:
            self._cut(position)
            raise
        return logits

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Cut cache and record to what `prompt_ids` shares with them; return the positions kept."""
        self._cut(self._record.common_prefix(prompt_ids))
        return len(self._cache)

    def _cut(self, position: int) -> None:
        self._record.rewind_to(position)
        self._cache.truncate(position)

    def _check(self, tokens: Sequence[int], position: int) -> None:
        if os.getpid() != self._pid:
            raise ForkedEngineError(
                f"the engine of process {self._pid} cannot run in its forked child {os.getpid()};"
                " load the model in the child, or start it as a new process"
            )
        if not 0 <= position <= len(self._cache):
            raise ValueError(f"position {position} leaves a gap after {len(self._cache)}")
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise TokenIdError(token, self.vocab_size)
