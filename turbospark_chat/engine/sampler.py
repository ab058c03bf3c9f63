"""Choose the next token id from logits.

Owns the order of the steps: bias, penalties, top-k, top-p, min-p, temperature, draw. Knows no model, no text
and no cache; penalties follow from the ids given, so a reused prompt and a computed one are penalised alike.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.engine.producer import Logits
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import ModelWarning, NoFiniteLogitsError, SettingError

Ids = NDArray[np.intp]
_BLOCK = 64  # scores of which only the largest is looked at first
_FIRST_SORTED = 256
_TINY = 1e-30

Scores = NDArray[np.float64]  # logits being worked on; float64, so no step overflows and sums reach 1


class Sampler:
    """Draws the token ids of one run, with random numbers that start at `config.seed`.

    Temperature 0 takes the highest score after bias and penalties, the lowest id of equals, and draws
    nothing. Rows of the output head that the tokenizer does not know (ids from `n_tokens` on) can never win.
    NaN counts as minus infinity, with one ModelWarning per sampler, and plus infinity as the largest float32.
    """

    def __init__(self, config: SamplingConfig, *, vocab_size: int, n_tokens: int | None = None) -> None:
        """Sample from logits (vocab_size,), of whose ids the tokenizer knows the first `n_tokens`.

        Raises:
            SettingError: `logit_bias` names an id outside the vocabulary.
        """
        outside = [token_id for token_id in config.logit_bias if token_id >= vocab_size]
        if outside:
            raise SettingError(f"logit_bias names token id {outside[0]}: give ids below {vocab_size}")
        self._config = config
        self._vocab_size = vocab_size
        self._n_tokens = vocab_size if n_tokens is None else min(n_tokens, vocab_size)
        self._biases = {id_: bias for id_, bias in config.logit_bias.items() if id_ < self._n_tokens}
        self._rng = np.random.default_rng(config.seed)
        self._has_warned = False

    def sample(self, logits: Logits, history: Sequence[int], n_prompt: int) -> int:
        """Return the next id after `history`, of which the first `n_prompt` ids are the prompt.

        Raises:
            NoFiniteLogitsError: no id has a logit above minus infinity.
        """
        if self._config.temperature == 0:
            return self._greatest(logits, history, n_prompt)
        ids, scores = self._filter(*self._candidates(logits, history, n_prompt))
        return _pick(ids, draw(_weights(scores, self._config.temperature), self._rng.random()))

    def _greatest(self, logits: Logits, history: Sequence[int], n_prompt: int) -> int:
        if self._is_plain(logits):
            return int(logits[: self._n_tokens].argmax())
        return int(self.process_logits(logits, history, n_prompt).argmax())

    def _candidates(
        self, logits: Logits, history: Sequence[int], n_prompt: int
    ) -> tuple[Ids | None, Scores | Logits]:
        """Return the ids that top-k leaves, ascending, and their scores; None is every id."""
        top_k = self._config.top_k
        scores: Scores | Logits
        if self._is_plain(logits):
            scores = logits[: self._n_tokens]
        else:
            scores = self.process_logits(logits, history, n_prompt)
        if not 0 < top_k < self._n_tokens:
            return None, scores
        ids = largest(scores, top_k)
        return ids, scores[ids].astype(np.float64)

    def _is_plain(self, logits: Logits) -> bool:
        """Whether the scores are the logits as they are: nothing changes them, and none is NaN or plus infinity.

        To copy those of a quarter of a million words takes longer than all the rest.
        """
        self._check_shape(logits)
        config = self._config
        is_changed = (
            self._biases
            or config.repetition_penalty != 1
            or config.presence_penalty
            or config.frequency_penalty
        )
        return not is_changed and bool(np.isfinite(logits[: self._n_tokens].max()))

    def process_logits(self, logits: Logits, history: Sequence[int], n_prompt: int) -> Scores:
        """Return the scores (n_tokens,) after bias and penalties; `logits` is left as it was.

        The repetition penalty sees the last `repetition_window` ids of prompt and reply together, each id
        once: a positive score is divided by it, a negative one multiplied. Then presence and frequency
        penalties are subtracted for the ids of the reply alone.
        """
        config = self._config
        scores = self._to_scores(logits)
        for token_id, bias in self._biases.items():
            scores[token_id] += bias
        factor, window = config.repetition_penalty, config.repetition_window
        if factor != 1 and window != 0:
            ids, _ = self._count(history if window < 0 else history[-window:])
            seen = scores[ids]
            scores[ids] = np.where(seen > 0, seen / factor, seen * factor)
        if config.presence_penalty or config.frequency_penalty:
            ids, counts = self._count(history[n_prompt:])
            scores[ids] -= config.presence_penalty + config.frequency_penalty * counts
        return scores

    def top_logprobs(self, logits: Logits, n: int) -> list[tuple[int, float]]:
        """Return the `n` likeliest ids with the model's own log-probabilities, likeliest first.

        Before bias, penalties and temperature. Ids at minus infinity are left out, so there may be fewer.

        Raises:
            NoFiniteLogitsError: no id has a logit above minus infinity.
        """
        scores = self._to_scores(logits)
        ids = largest(scores, n)
        ids = ids[scores[ids] > -np.inf]
        ids = ids[np.argsort(-scores[ids], kind="stable")]
        highest = scores.max()
        logprobs = scores[ids] - highest - np.log(np.exp(scores - highest).sum())
        return list(zip(ids.tolist(), logprobs.tolist(), strict=True))

    def _check_shape(self, logits: Logits) -> None:
        if logits.shape != (self._vocab_size,):
            raise ValueError(f"logits have shape {logits.shape}, not ({self._vocab_size},)")

    def _to_scores(self, logits: Logits) -> Scores:
        """Copy the logits of known ids, with NaN and plus infinity replaced."""
        self._check_shape(logits)
        known = logits[: self._n_tokens]
        scores = known.astype(np.float64)  # (n_tokens,), always a copy
        if np.isfinite(known.max(initial=-np.inf)):  # NaN would be the maximum, so there is none to replace
            return scores
        is_nan = np.isnan(scores)
        if is_nan.any():
            scores[is_nan] = -np.inf
            if not self._has_warned:
                self._has_warned = True
                message = f"the model gave NaN for {is_nan.sum()} of {scores.size} tokens: passed over"
                warnings.warn(message, ModelWarning, stacklevel=3)
        np.minimum(scores, np.finfo(np.float32).max, out=scores)
        if scores.max(initial=-np.inf) == -np.inf:
            raise NoFiniteLogitsError(
                f"no token can be chosen: all {scores.size} logits are NaN or -inf;"
                " the model file may be damaged"
            )
        return scores

    def _count(self, history: Sequence[int]) -> tuple[Ids, Ids]:
        """Return the distinct ids of `history` and how often each occurs, without ids that can never win."""
        ids, counts = np.unique(np.asarray(history, dtype=np.intp), return_counts=True)
        known = (ids >= 0) & (ids < self._n_tokens)
        return ids[known], counts[known]

    def _filter(self, ids: Ids | None, scores: Scores | Logits) -> tuple[Ids | None, Scores | Logits]:
        """Return what passes top-p, and of that what passes min-p."""
        config = self._config
        if config.top_p < 1:
            ids, scores = _take(ids, scores, top_p(scores, config.top_p))
        if config.min_p > 0:
            ids, scores = _take(ids, scores, np.flatnonzero(_weights(scores) >= config.min_p))
        return ids, scores


def _pick(ids: Ids | None, index: int) -> int:
    return index if ids is None else int(ids[index])


def _take(ids: Ids | None, scores: Scores | Logits, kept: Ids) -> tuple[Ids, Scores | Logits]:
    return kept if ids is None else ids[kept], scores[kept]


def largest(scores: Scores | Logits, n: int) -> Ids:
    """Return the indexes of the `n` largest scores, ascending; of equal scores the lowest indexes.

    Partitions by value, since `argpartition` leaves it to the machine which of equal scores it keeps; and only what
    has a chance, since partitioning a whole vocabulary takes a tenth of a decode step.
    """
    if n >= scores.size:
        return np.arange(scores.size)
    if n <= 0:
        return np.arange(0)
    candidates = np.flatnonzero(scores >= _floor(scores, n))
    scores = scores[candidates]
    threshold = np.partition(scores, -n)[-n]
    above = np.flatnonzero(scores > threshold)
    equal = np.flatnonzero(scores == threshold)
    chosen: Ids = candidates[np.sort(np.concatenate([above, equal[: n - above.size]]))]
    return chosen


def top_p(scores: Scores | Logits, p: float) -> Ids:
    """Return the indexes of the fewest largest scores whose probabilities sum to `p`: at least one.

    Sorts a few of the largest, more only where they do not reach `p`: of a vocabulary, most weigh next to nothing.
    """
    weights = _weights(scores)
    whole, n_sorted = weights.sum(dtype=np.float64), _FIRST_SORTED
    while True:
        ids: Ids = largest(scores, n_sorted)
        cumulative = np.cumsum(np.sort(weights[ids])[::-1], dtype=np.float64)
        if ids.size == scores.size:
            whole = cumulative[-1]
        if cumulative[-1] >= p * whole:
            fewest: Ids = ids[largest(scores[ids], int(np.searchsorted(cumulative, p * whole)) + 1)]
            return fewest
        n_sorted *= 8


def _floor(scores: Scores | Logits, n: int) -> float:
    """Return a number that at least `n` scores reach: the n-th largest of the blocks' largest."""
    n_blocks = scores.size // _BLOCK
    if n_blocks < n:
        return -np.inf
    largest_of_each = scores[: n_blocks * _BLOCK].reshape(_BLOCK, n_blocks).max(axis=0)
    return float(np.partition(largest_of_each, -n)[-n])


def draw(weights: Scores | Logits, u: float) -> int:
    """Return the index at which the running sum of `weights` passes `u` of the total, for any u in [0, 1).

    There is one, because u * total rounds to less than the total, as of any normal float64. Its weight is
    above 0, because only such a weight can raise the sum. Blocks are summed first, and only one of them is looked at
    number by number: a running sum over a vocabulary takes longer than everything else.
    """
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64))
    target = u * blocks[-1]
    block = int(np.searchsorted(blocks, target, side="right"))
    before = blocks[block - 1] if block else 0.0
    start = block * _BLOCK
    within = before + np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    # Summed in another order, the last number of a block may end a hair short of the block's own sum.
    index = min(int(np.searchsorted(within, target, side="right")), within.size - 1)
    return start + int(np.flatnonzero(weights[start : start + index + 1])[-1])


def _weights(scores: Scores | Logits, temperature: float = 1.0) -> Scores | Logits:
    """Return probabilities relative to the likeliest: exp((scores - max) / temperature)."""
    with np.errstate(over="ignore"):  # a tiny temperature: -inf is the right limit, and exp gives 0
        exponents: Scores | Logits = scores - scores.max()
        if temperature < _TINY:  # in float32 it would be 0
            exponents = exponents.astype(np.float64)
        if temperature != 1:
            exponents /= temperature
    np.exp(exponents, out=exponents)
    return exponents
