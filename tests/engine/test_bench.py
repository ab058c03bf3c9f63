"""What is measured, on a clock that counts tokens instead of seconds."""

import pytest
from fakes import hash_runner

from turbospark_chat.engine.bench import measure

SECONDS_PER_TOKEN = 0.25


@pytest.mark.parametrize(
    ("context_length", "names"),
    [
        (0, []),
        (31, []),
        (32, ["prefill of 32", "decode at context 0"]),
        (512, ["prefill of 32", "prefill of 512", "decode at context 0"]),
        (543, ["prefill of 32", "prefill of 512", "decode at context 0"]),
        (544, ["prefill of 32", "prefill of 512", "decode at context 0", "decode at context 512"]),
    ],
)
def test_what_fits_the_context_is_measured(context_length, names):
    producer, model = hash_runner()
    rows = measure(producer, context_length=context_length, clock=lambda: model.evaluated * SECONDS_PER_TOKEN)
    assert [row.name for row in rows] == names
    # A prefill counted into a decode, or one that is not cold, would show as another rate.
    assert {row.rate for row in rows} <= {1 / SECONDS_PER_TOKEN}


def test_the_state_never_exceeds_the_context_and_is_empty_afterwards():
    producer, model = hash_runner()
    longest = 0

    def watch(name):
        nonlocal longest
        longest = max(longest, len(producer.state))

    model.on_boundary = watch
    measure(producer, context_length=544, clock=lambda: 0.0)
    assert 512 <= longest <= 544
    assert (len(producer.record), len(producer.state)) == (0, 0)


def test_no_rate_comes_from_a_clock_that_stands_still():
    producer, _ = hash_runner()
    rows = measure(producer, context_length=32, clock=lambda: 0.0)
    assert [row.rate for row in rows] == [None, None]


def test_every_id_lies_in_a_small_vocabulary():
    producer, model = hash_runner(vocab_size=2)
    assert len(measure(producer, context_length=64, clock=lambda: float(model.evaluated))) == 2
