"""Prefill before a message is sent: what is certain of the next prompt is computed while the model is idle.

Knows ids and a producer; which ids are certain, and why less was reused, is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import replace

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.receipt import Miss
from turbospark_chat.engine.completion import CompletionConfig, RawDecodeResult
from turbospark_chat.engine.raw_completion import CancelFlag, run_prefill
from turbospark_chat.engine.reuse_miss import ReuseMiss

CHUNK_SIZE = 16  # tokens between two looks at the cancel flag: whoever sends waits for one at most


class PromptAhead:
    """Computes ids ahead, and remembers from where on the cache was filled that way, and what that missed."""

    def __init__(self) -> None:
        # The positions computed ahead since the last turn, as far as they are still live.
        self._start: int | None = None
        self._end = 0
        self._missed: tuple[ReuseMiss, Miss] | None = (
            None  # the first since then, which the turn is to tell of
        )
        self._slot_evicted = False  # whether any reading threw another conversation's state away

    def read(
        self, model: ChatModel, ids: Sequence[int], config: CompletionConfig, cancel: CancelFlag
    ) -> RawDecodeResult:
        """Bring ids into the cache, from where it differs from them, until that is done or cancelled.

        Raises:
            ContextOverflowError: they do not fit.
        """
        raw = run_prefill(
            model.producer,
            model.tokenizer,
            ids,
            replace(config, chunk_size=CHUNK_SIZE),
            max_context=model.context_length,
            cancel=cancel,
            on_progress=lambda progress: None,
        )
        if raw.prefilled_tokens:
            started = raw.reused_prefix_tokens
            # What goes on behind the last reading's end goes on from a state that was parked meanwhile.
            is_elsewhere = self._start is None or not self._start <= started <= self._end
            self._start, self._end = started if is_elsewhere else self._start, raw.kv_position
        self._slot_evicted |= raw.session_slot_evicted
        return raw

    @property
    def has_missed(self) -> bool:
        """Whether a reading missed anything since the last turn."""
        return self._missed is not None

    def note_miss(self, miss: ReuseMiss | None, described: Miss | None) -> None:
        """Note what a reading missed, if that was something the conversation had said."""
        if miss is not None and described is not None and self._missed is None:
            self._missed = miss, described

    def missed_by(self, prompt_ids: Sequence[int]) -> Miss | None:
        """Return what the readings missed, unless the prompt has again what was held there."""
        if self._missed is None:
            return None
        miss, described = self._missed
        is_back = list(prompt_ids[miss.differs_at : miss.differs_at + 1]) == [miss.held_id]
        return None if is_back else described

    def count(self, n_held: int) -> int:
        """Return how many of so many positions were computed ahead since the last turn."""
        return 0 if self._start is None else max(min(n_held, self._end) - self._start, 0)

    def take(self, raw: RawDecodeResult) -> tuple[RawDecodeResult, int]:
        """Return the run of a turn with what was noted ahead of it, and how many reused positions were; begin anew."""
        n_ahead = self.count(raw.reused_prefix_tokens)
        raw = replace(raw, session_slot_evicted=raw.session_slot_evicted or self._slot_evicted)
        self._start, self._missed, self._slot_evicted = None, None, False
        return raw, n_ahead
