"""What is guessed, when, and that whoever feeds through a Lookahead gets what feeding one by one would give."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import MediaId
from turbospark_chat.engine.speculation import Lookahead, NgramIndex


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1, 2, 3], [], id="nothing-repeats"),
        pytest.param([1, 2, 1], [], id="one-id-alike-is-too-few"),
        pytest.param([1, 2, 7, 8, 9, 1, 2], [7, 8, 9], id="what-followed"),
        pytest.param([1, 2, 7, 7, 1, 2, 8, 8, 1, 2], [8, 8, 1], id="the-last-time"),
        pytest.param([5, 1, 2, 7, 7, 6, 1, 2, 8, 8, 5, 1, 2], [7, 7, 6], id="where-more-is-alike"),
        pytest.param([4, 4], [], id="not-itself"),
        pytest.param([4, 4, 4], [4, 4, 4], id="goes-on-repeating-one"),
        pytest.param([1, 2, 3, 1, 2], [3, 1, 2], id="goes-on-repeating-three"),
        pytest.param([1, 2, 1, 2], [1, 2, 1], id="goes-on-in-what-it-proposes"),
    ],
)
def test_what_followed_the_longest_repeated_end_is_proposed(ids, expected):
    assert NgramIndex(ids).propose(3) == expected


def looked_up(ids: Sequence[int], n_ids: int) -> list[int]:
    """Return what NgramIndex should propose, by looking through everything."""
    for length in (4, 3, 2):
        for start in reversed(range(len(ids) - length)):
            if ids[start : start + length] == ids[-length:]:
                text, first = list(ids), start + length
                for position in range(first, first + n_ids):
                    text.append(text[position])
                return text[len(ids) :]
    return []


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(0, n), max_size=60)), st.integers(1, 9))
def test_the_index_proposes_what_looking_through_everything_finds(ids, n_ids):
    grown = NgramIndex(ids[:7])
    for token_id in ids[7:]:
        grown.append(token_id)
    assert NgramIndex(ids).propose(n_ids) == grown.propose(n_ids) == looked_up(ids, n_ids)


def test_of_a_picture_only_the_placeholder_is_proposed():  # a guess must never taint the record
    picture = MediaId(9, None)
    proposed = NgramIndex([1, 2, picture, picture, 1, 2]).propose(2)
    assert proposed == [9, 9]
    assert {type(token_id) for token_id in proposed} == {int}


class Positions:
    """A ScoresEach whose logits after a token are the position it stands at."""

    vocab_size = 1
    session_slot_evicted = False

    def __init__(self, ids: Sequence[int], *, slack: int = 99) -> None:
        self.ids, self.slack = list(ids), slack
        self.passes: list[tuple[int, int]] = []  # where each began, and how many ids it was fed

    def produce(self, token, position):
        return self._feed([token], position)[0]

    def produce_each(self, tokens, position):
        assert len(tokens) > 1
        return self._feed(tokens, position)

    def rewind_to(self, position):
        assert len(self.ids) - position <= self.slack
        del self.ids[position:]
        return len(self.ids)

    def _feed(self, tokens, position):
        self.rewind_to(position)
        self.ids += tokens
        self.passes.append((position, len(tokens)))
        return np.arange(position, position + len(tokens), dtype=np.float32)[:, None]

    def reset(self): ...
    def produce_prefill(self, token, position): ...
    def produce_chunk(self, tokens, position, *, need_logits): ...
    def try_reuse_prefix(self, prompt_ids): ...


IDS = st.lists(st.integers(0, 1), min_size=1, max_size=80)


@settings(deadline=None)
@given(prompt=IDS, reply=IDS, most=st.integers(1, 15), slack=st.integers(0, 6), room=st.integers(0, 60))
def test_every_id_gets_its_own_logits_and_none_is_left_that_did_not_come(prompt, reply, most, slack, room):
    producer = Positions(prompt, slack=slack)
    lookahead = Lookahead(producer, prompt, most=most)
    for position, token in enumerate(reply, start=len(prompt)):
        end = max(len(prompt) + room, position + 1)
        assert lookahead.feed(token, position, most=end - position - 1) == [position]
        assert producer.ids[: position + 1] == [*prompt, *reply][: position + 1]
        assert len(producer.ids) <= end
    assert max(n_fed for _, n_fed in producer.passes) <= 1 + min(most, slack)
    assert len(producer.passes) + lookahead.n_accepted == len(reply)
    assert sum(n_fed - 1 for _, n_fed in producer.passes) == lookahead.n_proposed
    assert lookahead.finish(len(prompt) + len(reply)) == len(prompt) + len(reply)
    assert producer.ids == [*prompt, *reply]


def contrary(ids: list[int]) -> Iterator[int]:
    """Yield ids of which none is ever what NgramIndex proposes, though it always proposes something."""
    index = NgramIndex(ids)
    while True:
        (proposed,) = index.propose(1)
        index.append(1 - proposed)
        yield 1 - proposed


def test_after_guesses_that_fail_it_waits_twice_as_long_each_time_and_not_after_one_that_came_true():
    prompt = [0, 0, 1, 1, 0, 0]
    producer = Positions(prompt)
    lookahead = Lookahead(producer, prompt, most=4)
    position = len(prompt)
    for token, _ in zip(contrary(prompt), range(110), strict=False):
        lookahead.feed(token, position, most=99)
        position += 1
    begun = [start for start, n_fed in producer.passes if n_fed > 1]
    assert np.diff(begun).tolist() == [2, 3, 5, 9, 17, 33, 33]
    producer.passes.clear()
    for _ in range(60):
        lookahead.feed(1, position, most=99)
        position += 1
    first_true = next(index for index, (_, n_fed) in enumerate(producer.passes) if n_fed > 1)
    assert [n_fed for _, n_fed in producer.passes[first_true:-1]] == [5] * (
        len(producer.passes) - first_true - 1
    )


@pytest.mark.parametrize(
    ("n_guessed", "n_true", "guesses_again"),
    [(4, 0, False), (4, 1, False), (4, 2, True), (4, 4, True), (3, 0, False), (3, 1, True), (3, 3, True)],
)
def test_a_guess_of_which_a_third_comes_true_is_worth_another_at_once(n_guessed, n_true, guesses_again):
    prompt = [2, 9, 3, 9, 4, 9, 5, 9, 6, 9, 1, 2, 3, 4, 5, 6, 1]  # 9 came before, behind any of them
    producer = Positions(prompt)
    lookahead = Lookahead(producer, prompt, most=n_guessed)
    for position, token in enumerate([2, *[3, 4, 5, 6][:n_true], 9], start=len(prompt)):
        lookahead.feed(token, position, most=99)
    assert lookahead.n_accepted == n_true
    n_fed = n_guessed + 1
    assert producer.passes == [(17, n_fed), (18 + n_true, n_fed if guesses_again else 1)]
