"""The run: admission, reuse, cancellable prefill, cancellable decode. Ids in, text events and a result out.

Knows no template and no conversation; all it asks of a model is the LogitProducer's few methods.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from turbospark_chat.engine.completion import CompletionConfig, PrefillMode, RawDecodeResult, StopReason
from turbospark_chat.engine.detokenizer import Detokenizer, PieceSource
from turbospark_chat.engine.pacing import Pacer
from turbospark_chat.engine.pressure import PressureProbe
from turbospark_chat.engine.producer import LogitProducer, Logits, ScoresEach
from turbospark_chat.engine.progress import Prefill, ProgressSink
from turbospark_chat.engine.reuse_miss import ReportsReuse, ReuseMiss
from turbospark_chat.engine.sampler import Sampler
from turbospark_chat.engine.speculation import Lookahead
from turbospark_chat.engine.stop_matcher import StopMatcher
from turbospark_chat.engine.token_sink import TokenSink
from turbospark_chat.errors import ContextOverflowError, EmptyPromptError, ZeroBudgetError


class CancelFlag(Protocol):
    """A flag another thread may raise; `threading.Event` is one."""

    def is_set(self) -> bool:
        """Whether to stop."""

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds, or until raised; return whether it is."""


class TokenText(PieceSource, Protocol):
    """What a run needs of a tokenizer: bytes of ids, and how many ids it knows."""

    @property
    def n_tokens(self) -> int:
        """Ids from here on are padding of the output head and are never sampled."""


def run_raw_completion(
    producer: LogitProducer,
    tokenizer: TokenText,
    prompt_ids: Sequence[int],
    config: CompletionConfig,
    *,
    max_context: int,
    cancel: CancelFlag,
    on_progress: ProgressSink,
    n_begun: int = 0,
    probe: PressureProbe | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RawDecodeResult:
    """Continue from what the producer already holds of `prompt_ids`, prefill the rest and generate.

    Cancelling is no error: the result is ordinary, and the next run continues from it. No forward pass starts
    once `cancel` is set. After an exception the producer's record and cache still agree; the last event, on
    every exit, is one Tail.

    Args:
        n_begun: how many of the prompt's last ids are the reply so far, for the penalties that look at replies only.

    Raises:
        EmptyPromptError, ZeroBudgetError, ContextOverflowError: refused before any state was touched.
        SettingError: a logit bias or stop string that cannot be used; also before.
        NoFiniteLogitsError: the model gave nothing to choose from.
    """
    budget = _admit(prompt_ids, config, max_context)
    run = _Run(producer, tokenizer, prompt_ids, config, cancel, on_progress, probe, clock)
    try:
        logits = run.prefill(need_logits=True)
        reason = StopReason.CANCELLED if logits is None else run.decode(logits, budget, n_begun)
    finally:
        run.flush()
    return run.result(reason)


def run_prefill(
    producer: LogitProducer,
    tokenizer: TokenText,
    prompt_ids: Sequence[int],
    config: CompletionConfig,
    *,
    max_context: int,
    cancel: CancelFlag,
    on_progress: ProgressSink,
    clock: Callable[[], float] = time.monotonic,
) -> RawDecodeResult:
    """Bring the prompt into the cache and generate nothing: what a budget of zero means to a user.

    The reason is MAX_TOKENS once the whole prompt is in the cache, else CANCELLED.

    Raises:
        EmptyPromptError, ContextOverflowError, SettingError: refused before any state was touched.
    """
    _admit_prompt(prompt_ids, 0, max_context)
    run = _Run(producer, tokenizer, prompt_ids, config, cancel, on_progress, None, clock)
    try:
        run.prefill(need_logits=False)
    finally:
        run.flush()
    return run.result(StopReason.MAX_TOKENS if run.is_prefilled else StopReason.CANCELLED)


def _admit(prompt_ids: Sequence[int], config: CompletionConfig, max_context: int) -> int:
    """Return how many tokens may be generated, or refuse."""
    if config.max_new_tokens == 0:
        raise ZeroBudgetError(config.max_new_tokens)
    _admit_prompt(prompt_ids, config.max_new_tokens or 1, max_context)
    return config.max_new_tokens or max_context - len(prompt_ids)


def _admit_prompt(prompt_ids: Sequence[int], n_reserved: int, max_context: int) -> None:
    if not prompt_ids:
        raise EmptyPromptError
    if len(prompt_ids) + n_reserved > max_context:
        raise ContextOverflowError(
            len(prompt_ids),
            n_reserved,
            max_context,
            advice="shorten the prompt, lower `max_tokens`, or raise `--ctx`",
        )


class _Run:
    """The moving parts of one run. `history` is always the ids the producer's cache holds, guesses aside."""

    def __init__(
        self,
        producer: LogitProducer,
        tokenizer: TokenText,
        prompt_ids: Sequence[int],
        config: CompletionConfig,
        cancel: CancelFlag,
        on_progress: ProgressSink,
        probe: PressureProbe | None,
        clock: Callable[[], float],
    ) -> None:
        # Everything that can refuse its settings is built first: a refusal must not have touched the state.
        self._sampler = Sampler(config.sampling, vocab_size=producer.vocab_size, n_tokens=tokenizer.n_tokens)
        stops = StopMatcher(config.stop_strings)
        self._sink = TokenSink(Detokenizer(tokenizer, vocab_size=producer.vocab_size), stops, on_progress)
        self._pacer = Pacer(config.power_profile, max_tokens_per_sec=config.max_tokens_per_sec, probe=probe)
        self._producer, self._prompt_ids, self._config = producer, prompt_ids, config
        self._cancel, self._on_progress, self._clock = cancel, on_progress, clock
        self._history: list[int] = []
        self._reused = 0
        self._miss: ReuseMiss | None = None
        self._slot_evicted = False
        self._prefill_seconds = 0.0
        self._decode_seconds = 0.0
        self._lookahead: Lookahead | None = None

    def prefill(self, *, need_logits: bool) -> Logits | None:
        """Feed what is not in the cache yet; return the last position's logits, or None when cancelled."""
        started = self._clock()
        self._pacer.poll()
        self._reuse()
        prompt = self._prompt_ids
        by_token = self._config.prefill_mode is PrefillMode.TOKENS
        logits: Logits | None = None
        position = self._reused
        while position < len(prompt):
            if self._cancel.is_set():
                return None
            chunk = prompt[position : position + (1 if by_token else self._config.chunk_at(position))]
            is_last = position + len(chunk) == len(prompt)
            logits = self._feed(chunk, position, need_logits=need_logits and is_last, by_token=by_token)
            position += len(chunk)
            self._prefill_seconds = self._clock() - started
            self._on_progress(Prefill(len(self._history), len(prompt), self._reused))
        return None if self._cancel.is_set() else logits

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt is in the cache."""
        return len(self._history) >= len(self._prompt_ids)

    def _reuse(self) -> None:
        """Cut the producer's state back to what it shares with the prompt, or to nothing."""
        prompt, producer = self._prompt_ids, self._producer
        if self._config.reuse:
            self._history = list(prompt[: producer.try_reuse_prefix(prompt)])
            self._slot_evicted = producer.session_slot_evicted
            report = producer.reuse_report if isinstance(producer, ReportsReuse) else None
            self._miss = None if report is None else ReuseMiss.of(report, prompt)
        self._reused = min(len(self._history), len(prompt) - 1)  # the last id gives the logits to start from
        if self._reused == 0:
            self._history.clear()
            producer.reset()

    def _feed(
        self, chunk: Sequence[int], position: int, *, need_logits: bool, by_token: bool
    ) -> Logits | None:
        logits = None
        if not by_token:
            logits = self._producer.produce_chunk(chunk, position, need_logits=need_logits)
        elif need_logits:
            logits = self._producer.produce(chunk[0], position)
        else:
            self._producer.produce_prefill(chunk[0], position)
        self._history[position:] = chunk
        return logits

    def decode(self, logits: Logits, budget: int, n_begun: int) -> StopReason:
        """Sample, commit, decide, pace, feed, until a reason to stop. A stopping token is never fed."""
        started = self._clock()
        n_prompt = len(self._prompt_ids) - n_begun
        # Without reuse nothing is to depend on how ids were cut into batches.
        if self._config.reuse and isinstance(self._producer, ScoresEach):
            asked = self._config.speculation
            most = self._producer.n_guesses if asked is None else asked
            self._lookahead = Lookahead(self._producer, self._history, most=most) if most else None
        try:
            while True:
                token = self._sampler.sample(logits, self._history, n_prompt)
                reason = self._commit(token, budget)
                if reason is None and self._pause():
                    reason = StopReason.CANCELLED
                if reason is not None:
                    return reason
                logits = self._feed_sampled(token, budget)
        finally:
            if self._lookahead is not None:
                del self._history[self._lookahead.finish(len(self._history)) :]
            self._decode_seconds = self._clock() - started

    def _feed_sampled(self, token: int, budget: int) -> Logits:
        position = len(self._history)
        if self._lookahead is None:
            logits = self._producer.produce(token, position)
        else:
            # The last token of the budget is not fed, so that nothing ever passes the end of the context either.
            logits = self._lookahead.feed(token, position, most=budget - self._sink.n_tokens - 1)
        self._history.append(token)
        return logits

    def flush(self) -> None:
        """Report the text still held back; every exit does."""
        self._sink.finish()

    def _commit(self, token: int, budget: int) -> StopReason | None:
        """Take a sampled token; return why the run ends here. Cancel is last: a run that ended by itself says so."""
        stop_reason = self._config.stop_ids.get(token)
        if stop_reason is not None:
            return stop_reason
        self._sink.commit(token)
        if self._sink.stop_string is not None:
            return StopReason.STOP_STRING
        if self._sink.n_tokens >= budget:
            return StopReason.MAX_TOKENS
        return StopReason.CANCELLED if self._cancel.is_set() else None

    def _pause(self) -> bool:
        """Wait for the pacer; return whether a cancel ended the wait."""
        delay = self._pacer.next_delay(self._clock())
        return delay > 0 and self._cancel.wait(delay)

    def result(self, reason: StopReason) -> RawDecodeResult:
        """Describe the run as it stands."""
        return RawDecodeResult(
            prompt_tokens=len(self._prompt_ids),
            new_tokens=self._sink.n_tokens,
            token_ids=self._sink.token_ids,
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            reason=reason,
            kv_position=len(self._history),
            kv_backed_token_ids=tuple(self._history),
            reused_prefix_tokens=self._reused,
            session_slot_evicted=self._slot_evicted,
            peak_memory_pressure=self._pacer.peak_memory_pressure,
            miss=self._miss,
            proposed_tokens=self._lookahead.n_proposed if self._lookahead else 0,
            accepted_tokens=self._lookahead.n_accepted if self._lookahead else 0,
        )
