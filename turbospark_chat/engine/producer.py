"""The seam between the engine and a model: ids and positions in, logits out. Ships with its test double."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.engine.kv_prefix import KvPrefix

Logits = NDArray[np.float32]  # (V,)


class LogitProducer(Protocol):
    """A model with a state. After any exception or cancel its cache and its record of ids agree.

    `position` is absolute. At the cache's length it appends; before it, the cache is cut there first; past it is
    an error. Feeding returns only once cache and record both hold the tokens.
    """

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""

    @property
    def session_slot_evicted(self) -> bool:
        """Whether serving the latest prompt threw away another conversation's usable state."""

    def reset(self) -> None:
        """Forget everything: cache and record are empty afterwards."""

    def produce(self, token: int, position: int) -> Logits:
        """Feed one token and return the logits (V,) after it."""

    def produce_prefill(self, token: int, position: int) -> None:
        """Feed one token without computing logits."""

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Logits | None:
        """Feed several tokens; with `need_logits` return the logits (V,) after the last."""

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Cut the state back to what `prompt_ids` shares with it and return the number of positions kept.

        COMMITS: afterwards cache and record hold exactly that many positions. 0 where the state cannot go back,
        never a wrong state.
        """


@runtime_checkable
class ScoresEach(LogitProducer, Protocol):
    """A producer that can tell what follows each of several tokens, and take back those that did not come."""

    @property
    def slack(self) -> int:
        """How many of the positions fed last can be taken back for certain; 0 where it scores only the last token."""

    @property
    def n_guesses(self) -> int:
        """How many guessed tokens are best fed along with a sampled one; 0 where checking them costs what it saves."""

    def produce_each(self, tokens: Sequence[int], position: int) -> Logits:
        """Feed several tokens and return the logits (T, V) after each."""

    def rewind_to(self, position: int) -> int:
        """Cut cache and record to at most `position`, or as far back as it can go; return the positions kept."""


class ScriptedProducer:
    """A LogitProducer that says a given list of replies: for tests of anything above the engine.

    The first token sampled after a prompt is the next reply's first id; each fed id moves one further, and the
    reply's end is `end_id`, whatever the sampling. A prompt is recognised as the first feeding after
    `try_reuse_prefix` or `reset`. `fed` lists every id evaluated, so a test can count what reuse saved.

    >>> producer = ScriptedProducer([[3, 4]], vocab_size=8, end_id=0)
    >>> [int(producer.produce(token, position).argmax()) for position, token in enumerate([7, 3, 4])]
    [3, 4, 0]
    >>> producer.try_reuse_prefix([7, 3, 5])
    2
    """

    def __init__(self, replies: Sequence[Sequence[int]], *, vocab_size: int, end_id: int) -> None:
        self._replies = [list(reply) for reply in replies]
        self._vocab_size = vocab_size
        self._end_id = end_id
        self._prefix = KvPrefix()
        self._reply: list[int] = []
        self._at_prompt = True
        self.fed: list[int] = []
        self.session_slot_evicted = False

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""
        return self._vocab_size

    @property
    def record(self) -> tuple[int, ...]:
        """The ids the state holds."""
        return self._prefix.ids

    def reset(self) -> None:
        """Forget the state; replies not yet said stay queued."""
        self._prefix.clear()
        self._at_prompt = True

    def produce(self, token: int, position: int) -> Logits:
        """Feed one token and return logits (V,) that allow only the script's next id."""
        logits = self.produce_chunk([token], position, need_logits=True)
        assert logits is not None
        return logits

    def produce_prefill(self, token: int, position: int) -> None:
        """Feed one token without moving the script."""
        self.produce_chunk([token], position, need_logits=False)

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Logits | None:
        """Feed tokens; with `need_logits` return logits (V,) that allow only the script's next id."""
        if position > len(self._prefix):
            raise ValueError(f"position {position} leaves a gap after {len(self._prefix)}")
        self._prefix.record(tokens, position)
        self.fed.extend(tokens)
        if not need_logits:
            return None
        if self._at_prompt:
            self._reply = self._replies.pop(0) if self._replies else []
            self._at_prompt = False
        logits = np.full(self._vocab_size, -np.inf, np.float32)  # (V,)
        logits[self._reply.pop(0) if self._reply else self._end_id] = 0.0
        return logits

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Keep the common prefix and take the next reply for what follows."""
        self._at_prompt = True
        self._prefix.rewind_to(self._prefix.common_prefix(prompt_ids))
        return len(self._prefix)
