"""Measures a producer: tokens a second of prefill and decode. Knows no model and prints nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from turbospark_chat.engine.completion import CompletionConfig, rate
from turbospark_chat.engine.producer import LogitProducer

PREFILL_LENGTHS = (32, 512)
DECODE_CONTEXTS = (0, 512)
DECODE_STEPS = 32


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure, in tokens per second; None where no time was measured."""

    name: str
    rate: float | None


def measure(producer: LogitProducer, *, context_length: int, clock: Callable[[], float]) -> list[Measurement]:
    """Measure what fits the context. The producer is empty afterwards."""
    rows = [
        Measurement(f"prefill of {length}", rate(length, _timed(clock, _prefill, producer, length)))
        for length in PREFILL_LENGTHS
        if length <= context_length
    ]
    for context in DECODE_CONTEXTS:
        if context + DECODE_STEPS <= context_length:
            _prefill(producer, context)
            seconds = _timed(clock, _decode, producer, context)
            rows.append(Measurement(f"decode at context {context}", rate(DECODE_STEPS, seconds)))
    producer.reset()
    return rows


def _timed(
    clock: Callable[[], float],
    work: Callable[[LogitProducer, int], None],
    producer: LogitProducer,
    length: int,
) -> float:
    started = clock()
    work(producer, length)
    return clock() - started


def _ids(producer: LogitProducer, length: int) -> list[int]:
    """Return ids spread over the vocabulary; speed does not depend on which."""
    return [(index * 7919) % producer.vocab_size for index in range(length)]


def _prefill(producer: LogitProducer, length: int) -> None:
    producer.reset()
    step, ids = CompletionConfig().chunk_size, _ids(producer, length)
    for position in range(0, length, step):
        chunk = ids[position : position + step]
        producer.produce_chunk(chunk, position, need_logits=position + len(chunk) == length)


def _decode(producer: LogitProducer, context: int) -> None:
    for position, token in enumerate(_ids(producer, DECODE_STEPS), start=context):
        producer.produce(token, position)
