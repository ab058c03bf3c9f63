"""Our engine as a subject: the work behind each figure is the work it is named for."""

from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from turbospark_chat.bench.own_subject import OwnSubject


@pytest.fixture
def subject(tmp_path: Path) -> OwnSubject:
    return OwnSubject(
        write_tiny_model(tmp_path / "tiny.gguf", context_length=2048), n_threads=1, n_positions=512
    )


@pytest.fixture
def fed(subject: OwnSubject, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Position, number of tokens and whether logits were asked for, of every feeding."""
    seen: list[tuple[int, int, bool]] = []
    producer = subject._producer
    feed = producer.produce_chunk

    def produce_chunk(tokens: list[int], position: int, *, need_logits: bool) -> object:
        seen.append((position, len(tokens), need_logits))
        return feed(tokens, position, need_logits=need_logits)

    monkeypatch.setattr(producer, "produce_chunk", produce_chunk)
    return seen


def test_a_prefill_starts_from_nothing_and_asks_for_the_last_logits(
    subject: OwnSubject, fed: list[tuple[int, int, bool]]
) -> None:
    for _ in range(2):
        assert subject.prefill(150) > 0
    assert fed == [(0, 64, False), (64, 64, False), (128, 22, True)] * 2


def test_what_comes_before_is_read_once(subject: OwnSubject, fed: list[tuple[int, int, bool]]) -> None:
    for _ in range(3):
        subject.extend(100, 20)
    assert fed == [(0, 64, False), (64, 36, True)] + [(100, 20, True)] * 3


def test_a_decode_feeds_one_by_one(subject: OwnSubject, fed: list[tuple[int, int, bool]]) -> None:
    subject.decode(64, 3)
    subject.decode(64, 3)
    assert fed == [(0, 64, True)] + [(64, 1, True), (65, 1, True), (66, 1, True)] * 2


def test_figures_in_any_order_stand_on_their_own_context(
    subject: OwnSubject, fed: list[tuple[int, int, bool]]
) -> None:
    subject.decode(128, 1)
    subject.decode(64, 1)  # cuts what came after
    fed.clear()
    subject.decode(128, 1)
    assert fed[-1] == (128, 1, True)
    assert sum(n for position, n, _ in fed if position < 128) == 128


def test_every_conversation_begins_cold_and_goes_on_warm(
    subject: OwnSubject, fed: list[tuple[int, int, bool]]
) -> None:
    rounds = []
    for _ in range(2):
        fed.clear()
        waits = subject.turns(3)
        assert len(waits) == 3 and min(waits) > 0
        rounds.append([(position, n) for position, n, _ in fed if n > 1])
    assert rounds[0] == rounds[1]
    assert rounds[0][0][0] == 0 and all(position > 0 for position, _ in rounds[0][2:])


def test_the_bytes_of_a_token_are_the_matrices_and_the_cache(subject: OwnSubject) -> None:
    at_0, at_10 = subject.bytes_a_token(0), subject.bytes_a_token(10)
    matrices = 259 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)  # the embedding is the head as well
    assert at_0 == 4 * matrices
    assert at_10 - at_0 == 10 * 2 * 2 * 2 * 8 * 4
