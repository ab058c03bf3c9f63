"""Storing keys and values, and attending to them, against `layers.attention` in float64 over all positions at once.

Only the rounding of keys and values to 16 bits may tell: the bound is 1e-4 of the largest value.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import KernelProgram, error, random_rows

from turbospark_chat.models import layers
from turbospark_chat.models.kernels.layout import BLOCK, GROUP, MAX_SPLITS, MAX_TOKENS, SPLIT
from turbospark_chat.models.layers import Array

BOUND = 1e-4
HEADS = [
    (16, 1, 2),
    (64, 3, 1),
    (80, 3, 2),
    (128, 1, 1),
    (256, 4, 1),
]  # Hd, query heads to a key head, key heads


class Attention:
    """A program of one attention, fed random rows, and what has been fed to it."""

    def __init__(
        self,
        n_rows: int,
        heads: tuple[int, int, int] = HEADS[0],
        *,
        n_threads: int = 1,
        seed: int = 0,
        window: int | None = None,
        slack: int = 0,
    ) -> None:
        self.head_dim, group, self.n_kv_heads = heads
        self.n_heads = group * self.n_kv_heads
        self.q = random_rows(n_rows, self.n_heads * self.head_dim, seed=seed, scale=2)
        self.k, self.v = (
            random_rows(n_rows, self.n_kv_heads * self.head_dim, seed=seed + number) for number in (1, 2)
        )
        self.n_threads, self.window, self.slack = n_threads, window, slack

    def program(self) -> KernelProgram:
        return KernelProgram(
            lambda builder, q, k, v: builder.attention(q, k, v, 0),
            self.q,
            self.k,
            self.v,
            n_threads=self.n_threads,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            windows=[self.window],
            slack=self.slack,
        )

    def expected(self, first: int, last: int) -> Array:
        """Return the outputs of rows first to last, where row t stands at position t."""
        q, k, v = (
            rows[:last].astype(np.float64).reshape(last, -1, self.head_dim)
            for rows in (self.q, self.k, self.v)
        )
        return layers.attention(
            q[first:], k.transpose(1, 0, 2), v.transpose(1, 0, 2), first, window=self.window
        )

    def check(self, found: Array, first: int, last: int, *, bound: float = BOUND) -> None:
        assert error(found, self.expected(first, last), abs(self.v[:last]).max()) < bound


@pytest.mark.parametrize("heads", HEADS, ids=str)
@settings(deadline=None, max_examples=8)
@given(sizes=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=8), seed=st.integers(0, 2**32 - 1))
def test_tokens_in_any_passes(heads: tuple[int, int, int], sizes: list[int], seed: int) -> None:
    attention = Attention(sum(sizes), heads, seed=seed)
    attention.check(attention.program().run_all(sizes), 0, sum(sizes))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize(
    "edge", [GROUP, BLOCK, SPLIT, 2 * SPLIT], ids=["group", "block", "split", "2 splits"]
)
def test_passes_that_end_at_and_around_an_edge(heads: tuple[int, int, int], edge: int) -> None:
    attention = Attention(edge + 70, heads)
    for start in range(edge - 2, edge + 3):
        full, rest = divmod(start, MAX_TOKENS)
        sizes = [*[MAX_TOKENS] * full, *[rest] * (rest > 0), 1, 1, 33]
        attention.check(attention.program().run_all(sizes), 0, sum(sizes))


WINDOWS = [1, 2, GROUP - 1, GROUP, GROUP + 1, BLOCK - 1, BLOCK, BLOCK + 1, SPLIT, 200]


@pytest.mark.parametrize("heads", [HEADS[0], HEADS[-1]], ids=str)
@settings(deadline=None, max_examples=20)
@given(
    window=st.one_of(st.sampled_from(WINDOWS), st.integers(1, 300)),
    slack=st.sampled_from([0, 1, 40, 500]),
    sizes=st.lists(st.one_of(st.just(1), st.integers(1, MAX_TOKENS)), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_token_sees_its_window_and_nothing_before(
    heads: tuple[int, int, int], window: int, slack: int, sizes: list[int], seed: int
) -> None:
    attention = Attention(sum(sizes), heads, window=window, slack=slack, seed=seed)
    attention.check(attention.program().run_all(sizes), 0, sum(sizes))


@pytest.mark.parametrize("size", [1, 7, MAX_TOKENS])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_of_any_size_far_past_its_first_positions(window: int, size: int) -> None:
    n_rows = 700 // size * size
    attention = Attention(n_rows, (16, 2, 2), window=window)
    program = attention.program()
    found = program.run_all([size] * (n_rows // size))
    attention.check(found, 0, n_rows)
    assert program.cache.room.start > 0  # so that rows were dropped, and addresses are of what is gone


@pytest.mark.parametrize("size", [1, 16], ids=["one", "many"])
def test_what_is_outside_the_window_leaves_no_trace(size: int) -> None:
    attention = Attention(96, window=32, slack=1000)  # nothing is dropped
    attention.k[:32] = attention.v[:32] = np.nan
    found = attention.program().run_all([size] * (96 // size))
    first = 63 if size == 1 else 64  # a group of tokens reads all that its first token sees
    attention.k[:32] = attention.v[:32] = 0
    attention.check(found[first:], first, 96)


@pytest.mark.parametrize("size", [1, 20], ids=["one", "many"])
def test_a_pass_that_would_read_what_was_dropped_is_refused(size: int) -> None:
    attention = Attention(600, window=32)
    program = attention.program()
    program.run_all([60] * 10)
    first = program.cache.room.start
    assert 0 < first <= 600
    with pytest.raises(ValueError, match="do not fit"):
        program.runner.run(range(size), first - 1)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_more_positions_than_the_least_pieces_cover(n_threads: int) -> None:
    edge = MAX_SPLITS * SPLIT  # from here on the pieces grow
    attention = Attention(edge + 130, (16, 3, 2), n_threads=n_threads)
    program = attention.program()
    program.run_all([MAX_TOKENS] * (edge // MAX_TOKENS - 1))
    for size in (63, 1, 1, 1, 62, 1):  # the third of them stands at the edge
        first = len(program.cache)
        attention.check(program.run(range(first, first + size), first), first, first + size)


@pytest.mark.parametrize("size", [1, 20], ids=["one", "many"])
def test_scores_far_apart_choose_one_position(size: int) -> None:
    attention = Attention(148)
    attention.q *= 100  # scores of hundreds, of which exp alone would make infinity
    found = attention.program().run_all([64, 64, *[size] * (20 // size)])
    attention.check(found, 0, 148, bound=100 * BOUND)  # as much larger as the scores


@pytest.mark.parametrize("size", [1, 16], ids=["one", "many"])
@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1e-10, 1e10, 1e30])
def test_values_of_any_magnitude(scale: float, size: int) -> None:
    attention = Attention(32)
    attention.v = (attention.v * scale).astype(np.float32)
    found = attention.program().run_all([size] * (32 // size))
    assert error(found, attention.expected(0, 32), max(abs(attention.v).max(), 1e-30)) < BOUND


@pytest.mark.parametrize("size", [1, 16], ids=["one", "many"])
def test_a_position_of_zeros_weighs_as_a_score_of_zero(size: int) -> None:
    attention = Attention(32)
    attention.k[5], attention.v[6] = 0, 0
    attention.check(attention.program().run_all([size] * (32 // size)), 0, 32)


@pytest.mark.parametrize("size", [1, 16], ids=["one", "many"])
def test_positions_cut_off_and_written_anew_leave_no_trace(size: int) -> None:
    attention = Attention(160)
    good = attention.k[32:].copy()
    attention.k[32:] = np.nan  # rows are read when they are fed
    program = attention.program()
    program.run_all([64, 64, 32])
    attention.k[32:] = good
    fresh = attention.program()
    fresh.cache = program.cache
    fresh.cache.truncate(32)
    found = [fresh.run(range(start, start + size), start) for start in range(32, 64, size)]
    attention.check(np.concatenate(found), 32, 64)


@pytest.mark.parametrize("size", [1, 16], ids=["one", "many"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_number_that_is_none_shows_in_its_own_heads(name: str, value: float, size: int) -> None:
    attention = Attention(48, (16, 1, 2))
    getattr(attention, name)[20, 3] = value  # of the first of two heads
    found = attention.program().run_all([size] * (48 // size)).reshape(48, 2, 16)
    is_finite = np.isfinite(found).all(axis=-1)
    seen_from_20_on = not is_finite[20, 0] and (name == "q" or not is_finite[20:, 0].any())
    assert seen_from_20_on
    assert is_finite[:16].all()
    assert is_finite[:, 1].all()


def test_layers_do_not_share_their_positions() -> None:
    x, y = random_rows(40, 32), random_rows(40, 32, seed=1)
    sizes = [30, 1, 9]

    def one_layer(rows: Array) -> Array:
        return KernelProgram(
            lambda builder, x: builder.attention(x, x, x, 0), rows, n_heads=2, n_kv_heads=2
        ).run_all(sizes)

    both = KernelProgram(
        lambda builder, x, y: builder.add(builder.attention(x, x, x, 0), builder.attention(y, y, y, 1)),
        x,
        y,
        n_heads=2,
        n_kv_heads=2,
        windows=[None, None],
    ).run_all(sizes)
    assert error(both, one_layer(x) + one_layer(y), 1.0) < 1e-6
