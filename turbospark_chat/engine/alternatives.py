"""What a model might have said instead: for tokens it has said, the likeliest others and their probabilities.

Knows a producer and the ids it was fed; no text but the spelling of single ids, and no chat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

from turbospark_chat.engine.completion import CompletionConfig
from turbospark_chat.engine.kv_prefix import common_length
from turbospark_chat.engine.producer import LogitProducer, Logits
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.engine.sampler import Sampler
from turbospark_chat.engine.sampling_config import SamplingConfig


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have come, with the model's own probability: before bias, penalties and temperature."""

    token_id: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token that came, and the likeliest ones in its place, itself always among them, likeliest first.

    `rank` counts from 1, the likeliest.
    """

    token_id: int
    text: str
    probability: float
    rank: int
    alternatives: tuple[Alternative, ...]


def explain_tokens(
    producer: LogitProducer,
    ids: Sequence[int],
    first: int,
    *,
    held_ids: Sequence[int],
    n_alternatives: int,
    n_known: int,
    spell: Callable[[int], str],
    cancel: CancelFlag,
) -> tuple[TokenChoice, ...]:
    """Return the choices at the positions of `ids` from `first` on; only the earliest where it is cancelled.

    The same ids are fed again, each for the logits of the next. Afterwards the cache holds `held_ids` again. Where
    this was cancelled, or failed, it holds at most what `ids` begins with of them, and nothing that was not asked
    about is computed anew for it.

    Args:
        first: at least 1, since before the first id nothing was chosen.
        held_ids: what the cache holds, as far as that is known; empty leaves it with what was fed last.
        n_known: ids from here on are padding of the output head.

    Raises:
        NoFiniteLogitsError: the model gives nothing to choose from.
    """
    sampler = Sampler(SamplingConfig(), vocab_size=producer.vocab_size, n_tokens=n_known)
    choices: list[TokenChoice] = []
    try:
        _read(producer, ids[: first - 1], producer.try_reuse_prefix(ids[:first]), cancel)
        for position in range(first, len(ids)):
            if cancel.is_set():
                break
            logits = producer.produce(ids[position - 1], position - 1)
            choices.append(_choice(sampler, logits, ids[position], n_alternatives, spell))
    finally:
        if held_ids:
            _give_back(producer, ids, first, held_ids, is_done=len(choices) == len(ids) - first)
    return tuple(choices)


def _give_back(
    producer: LogitProducer, ids: Sequence[int], first: int, held_ids: Sequence[int], *, is_done: bool
) -> None:
    """Bring the cache back to `held_ids`; where it is not done, only as far as that takes no longer than it took."""
    if not is_done:
        held_ids = held_ids[: common_length(held_ids, ids)]
    # One id more than there are: of a prompt at least one is always left to feed.
    n_kept = producer.try_reuse_prefix([*held_ids, ids[0]])
    if is_done or n_kept >= first - 1:
        _read(producer, held_ids, n_kept, None)


def _read(producer: LogitProducer, ids: Sequence[int], start: int, cancel: CancelFlag | None) -> None:
    """Feed ids from `start` on, which is what the cache holds of them, or as far as it comes."""
    if start == 0:
        producer.reset()
    config, position = CompletionConfig(), start
    while position < len(ids) and not (cancel and cancel.is_set()):
        chunk = ids[position : position + config.chunk_at(position)]
        producer.produce_chunk(chunk, position, need_logits=False)
        position += len(chunk)


def _choice(
    sampler: Sampler, logits: Logits, token_id: int, n_alternatives: int, spell: Callable[[int], str]
) -> TokenChoice:
    likeliest = sampler.top_logprobs(logits, max(n_alternatives, 1))
    scores = sampler.process_logits(logits, (), 0)  # (n_known,)
    best_id, best_logprob = likeliest[0]
    chosen = scores[token_id]
    # Of equals the lowest id comes first, as it does where temperature 0 chooses.
    rank = 1 + int((scores > chosen).sum() + (scores[:token_id] == chosen).sum())
    logprob = best_logprob + float(chosen - scores[best_id])
    if all(other_id != token_id for other_id, _ in likeliest):
        likeliest.append((token_id, logprob))
    alternatives = tuple(Alternative(id_, spell(id_), exp(other)) for id_, other in likeliest)
    return TokenChoice(token_id, spell(token_id), exp(logprob), rank, alternatives)
