"""Sampling: the order of the steps, their edges, and that no draw ever falls off the end."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turbospark_chat.engine.sampler import Sampler, draw, largest
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import ModelWarning, NoFiniteLogitsError, SettingError

INF, NAN = np.inf, np.nan
BELOW_ONE = float(np.nextafter(1.0, 0.0))
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def f4(*values):
    return np.array(values, dtype=np.float32)


def make_sampler(vocab_size, n_tokens=None, **settings):
    return Sampler(SamplingConfig(**(OFF | settings)), vocab_size=vocab_size, n_tokens=n_tokens)


def sample(logits, history=(), n_prompt=0, **settings):
    return make_sampler(logits.size, **settings).sample(logits, history, n_prompt)


def possible(logits, n_draws=300, **settings):
    """Return every id that turns up in many draws."""
    sampler = make_sampler(logits.size, **settings)
    return {sampler.sample(logits, (), 0) for _ in range(n_draws)}


def penalised(logits, history, n_prompt, **settings):
    return make_sampler(logits.size, **settings).process_logits(logits, history, n_prompt).tolist()


# Temperature, NaN and infinities


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-7, 1e-4])
def test_no_or_almost_no_temperature_takes_the_likeliest(temperature):  # cases 14a, D15
    assert sample(f4(1, 2), temperature=temperature) == 1
    assert sample(f4(-80, 80, 79.99), temperature=temperature) == 1


@pytest.mark.parametrize("temperature", [0, 1e-7, 0.7, 1, 100])
def test_only_finite_logit_wins_at_any_temperature(temperature):  # case 14b
    assert sample(f4(-INF, 1, -INF), temperature=temperature) == 1


@pytest.mark.parametrize("temperature", [0, 1e-7])
def test_nan_is_passed_over_with_one_warning_a_sampler(temperature):  # case 14c
    sampler = make_sampler(3, temperature=temperature)
    with pytest.warns(ModelWarning, match="NaN for 1 of 3") as caught:
        assert [sampler.sample(f4(0, NAN, 3), (), 0) for _ in range(3)] == [2, 2, 2]
    assert len(caught) == 1


@pytest.mark.parametrize("settings", [{"temperature": 0}, {}, {"top_k": 2, "top_p": 0.9, "min_p": 0.1}])
def test_plus_infinity_wins_over_everything_finite(settings):  # case 14c
    assert sample(f4(INF, 1), **settings) == 0
    assert possible(f4(1, INF, 5, INF), **settings) == ({1} if settings == {"temperature": 0} else {1, 3})


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("logits", [f4(-INF, -INF), f4(NAN, NAN), f4(NAN, -INF)], ids=str)
def test_nothing_finite_is_an_error_and_not_id_0(logits, temperature):  # case 14c
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        with pytest.raises(NoFiniteLogitsError, match="all 2 logits"):
            sample(logits, temperature=temperature)


def test_temperature_0_takes_the_lowest_of_equal_ids_after_bias_and_penalties():
    assert sample(f4(1, 3, 3, 2), temperature=0) == 1
    assert sample(f4(1, 3, 2, 2), temperature=0, logit_bias={0: 5}) == 0
    assert sample(f4(1, 3, 2, 2), [1], 1, temperature=0, repetition_penalty=2) == 2


def test_temperature_shapes_the_odds():
    logits = np.log(f4(0.8, 0.2))
    for temperature, share in [(1, 0.8), (0.5, 16 / 17), (100, 0.5)]:
        sampler = make_sampler(2, temperature=temperature)
        drawn = [sampler.sample(logits, (), 0) for _ in range(4_000)]
        assert drawn.count(0) / len(drawn) == pytest.approx(share, abs=0.03)


# The draw


def test_draw_stays_inside_a_large_vocabulary_where_float32_sums_fall_short():  # cases 14d, D15
    logits = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    float32_sums = np.cumsum(np.exp(logits) / np.exp(logits).sum())
    assert np.searchsorted(float32_sums, 0.99999994) == 150_000  # the fault this guards against
    weights = np.exp(logits.astype(np.float64) - logits.max())
    for u in [0.0, 5e-324, 0.5, 0.99999237, 0.99999994, BELOW_ONE]:
        assert draw(weights, u) < 150_000


# Weights as the sampler makes them: relative to the likeliest, so one is 1, and many may be 0 or next to it.
some_weights = st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-17, 0.1, 0.3, 1.0]), max_size=15)
relative_weights = st.tuples(some_weights, st.just([1.0]), some_weights).map(np.concatenate)
units = st.floats(0, BELOW_ONE) | st.sampled_from([0.0, 5e-324, BELOW_ONE])


@given(weights=relative_weights, u=units)
def test_every_draw_has_a_probability_above_0(weights, u):  # case 14d
    assert weights[draw(weights, u)] > 0


def test_draw_at_the_very_end_is_inside_for_every_total():  # case 14d
    powers = 2.0 ** np.arange(19)
    random = np.random.default_rng(4).uniform(1, 262_144, size=2_000)
    for total in np.concatenate([powers, np.nextafter(powers, np.inf), np.nextafter(powers[1:], 0), random]):
        assert draw(np.array([total, 0.0]), BELOW_ONE) == 0


def test_draw_inverts_the_running_sum():
    weights = np.array([1.0, 0.0, 2.0, 1.0])
    assert [draw(weights, u) for u in (0, 0.24, 0.25, 0.74, 0.75, BELOW_ONE)] == [0, 0, 2, 2, 3, 3]


@given(
    logits=st.lists(st.sampled_from([-INF, -90, 0, 1, 80]), min_size=1, max_size=12),
    temperature=st.sampled_from([0, 1e-300, 1e-4, 1, 100]),
    top_k=st.integers(-1, 15),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_any_settings_draw_an_id_that_has_a_finite_logit(logits, temperature, top_k, top_p, min_p):
    assume(max(logits) > -INF)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert logits[sample(f4(*logits), **settings)] > -INF


# Filters


@pytest.mark.parametrize("top_k", [-1, 0, 5, 9])
def test_top_k_of_none_or_of_the_whole_vocabulary_keeps_all(top_k):  # case D4: -1 is the same as 0
    assert possible(np.zeros(5, np.float32), top_k=top_k) == {0, 1, 2, 3, 4}


def test_top_k_keeps_the_likeliest_and_of_equals_the_lowest_ids():  # case D4
    logits = f4(1, 2, 0, 2, 2)
    assert possible(logits, top_k=1) == {int(logits.argmax())}
    assert possible(logits, top_k=2) == {1, 3}
    assert possible(logits, top_k=4) == {0, 1, 3, 4}


def test_top_k_beyond_what_is_possible_keeps_only_the_possible():
    assert possible(f4(0, -INF, 1, -INF), top_k=3) == {0, 2}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0, {0}), (0.49, {0}), (0.51, {0, 2}), (0.74, {0, 2}), (0.76, {0, 1, 2}), (0.999, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p, kept):  # case D2
    assert possible(np.log2(f4(8, 2, 4, 2)) * np.log(f4(2)), n_draws=500, top_p=top_p) == kept


def test_top_p_takes_the_lowest_of_equals_and_no_more_than_reach_it():  # case D2
    assert possible(f4(0, 1, 1), top_p=0) == {1}
    assert possible(f4(1, 1, 1, 1), top_p=0.5) == {0, 1}


def test_top_p_of_1_keeps_even_the_least_likely():  # case D2
    logits = np.log(f4(1, 1e-9, 1e-30))
    assert possible(logits, top_p=1 - 1e-8, temperature=100) == {0}
    assert possible(logits, top_p=1, temperature=100) == {0, 1, 2}  # heat, which comes last, evens the odds


def test_min_p_drops_what_is_below_its_share_of_the_likeliest():
    logits = np.log(f4(0.6, 0.29, 0.11))
    assert possible(logits, min_p=0.5) == {0}
    assert possible(logits, min_p=0.4) == {0, 1}
    assert possible(logits, min_p=0.15) == {0, 1, 2}
    assert possible(f4(2, 2, 1), min_p=1) == {0, 1}


def test_each_filter_sees_what_the_one_before_left_and_temperature_comes_last():
    logits = np.log(f4(0.4, 0.3, 0.2, 0.1))
    # Of the top 2, id 0 has 4/7 = 0.57: enough for top-p 0.5. Of all four it has 0.4, which would not be.
    assert possible(logits, top_k=2, top_p=0.5) == {0}
    assert possible(logits, top_p=0.5) == {0, 1}
    # Heat evens the odds; were it applied before the filters, they would keep everything.
    assert possible(logits, top_p=0.5, temperature=100) == {0, 1}
    assert possible(logits, min_p=0.4, temperature=100) == {0, 1, 2}


@given(values=st.lists(st.sampled_from([-INF, 0, 1, 2]), max_size=20), n=st.integers(0, 25))
def test_largest_equals_a_stable_sort(values, n):
    scores = np.array(values, dtype=np.float64)
    assert largest(scores, n).tolist() == sorted(np.argsort(-scores, kind="stable")[:n].tolist())


# Padding rows, bias and penalties


def test_padding_rows_of_the_head_never_win():  # case B4
    logits = f4(0, 1, 90, INF, NAN)
    sampler = make_sampler(5, n_tokens=2, temperature=0, logit_bias={2: 100}, repetition_penalty=2)
    assert sampler.sample(logits, [2, 3, 4], 1) == 1
    assert {id_ for id_, _ in sampler.top_logprobs(logits, 5)} == {0, 1}


def test_tokenizer_larger_than_the_head_is_no_trouble():
    sampler = make_sampler(2, n_tokens=9, temperature=0, repetition_penalty=2)
    assert sampler.sample(f4(0, 1), [0, 5], 1) == 1


def test_bias_outside_the_vocabulary_is_refused_before_generation():  # case D13
    with pytest.raises(SettingError, match="token id 5: give ids below 5"):
        make_sampler(5, logit_bias={4: 1, 5: 1})


def test_bias_bans_and_forces():  # case D13
    logits = f4(9, 8, -9)
    assert possible(logits, logit_bias={"0": -100}, min_p=0.01) == {1}
    assert possible(logits, logit_bias={2: 100}, min_p=0.01) == {2}


def test_bias_comes_before_penalties_and_filters():  # case D13
    assert penalised(f4(-1, 0), [0], 1, logit_bias={0: 3}, repetition_penalty=2) == [1, 0]
    assert possible(f4(0, 1), logit_bias={0: 5}, top_k=1) == {0}


@pytest.mark.parametrize("history", [[0, 1], [0, 1, 0, 0], [0, 0, 1]])
def test_repetition_penalty_lowers_each_seen_id_once(history):  # cases D6, D7
    assert penalised(f4(2, -2, 0.5), history, 1, repetition_penalty=1.5) == pytest.approx([2 / 1.5, -3, 0.5])


def test_repetition_penalty_of_1_changes_no_bit():  # case D6
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    assert penalised(logits, range(50), 10, repetition_penalty=1) == logits.astype(np.float64).tolist()


@pytest.mark.parametrize(
    ("window", "touched"), [(2, {1, 2}), (0, set()), (-1, {1, 2, 7, 8}), (99, {1, 2, 7, 8}), (5, {1, 2, 7})]
)
def test_repetition_window_is_the_end_of_the_history(window, touched):  # case D8
    settings = {"repetition_penalty": 2, "repetition_window": window}
    scores = penalised(np.ones(9, np.float32), [8, 7, 7, 7, 1, 2], 3, **settings)
    assert {token_id for token_id, score in enumerate(scores) if score == 0.5} == touched


def test_repetition_penalty_counts_the_prompt_and_the_reply():  # case D10
    assert penalised(f4(1, 1, 1), [0, 1], 1, repetition_penalty=2) == [0.5, 0.5, 1]


def test_presence_and_frequency_count_the_reply_only():  # case D10
    logits = np.zeros(10, np.float32)
    scores = penalised(logits, [5, 5, 9, 9], 3, frequency_penalty=0.5, presence_penalty=0.25)
    assert scores == [0] * 9 + [-0.75]
    assert penalised(logits, [5, 9, 9, 9], 1, frequency_penalty=0.5, presence_penalty=0.25)[9] == -1.75


def test_penalties_follow_from_the_ids_given_not_from_earlier_calls():  # case D10
    settings = {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    logits = np.random.default_rng(2).normal(size=10).astype(np.float32)
    used = make_sampler(10, **settings)
    for end in range(6):
        used.sample(logits, [5, 5, 9, 1, 1][:end], 3)
    history = [5, 5, 9, 9]
    assert used.process_logits(logits, history, 3).tolist() == penalised(logits, history, 3, **settings)


def test_history_ids_that_cannot_be_sampled_are_passed_over():
    assert penalised(f4(1, 1), [-1, 5, 0], 0, repetition_penalty=2, presence_penalty=0.25) == [0.25, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_callers_logits_are_never_changed(dtype):
    logits = np.array([0, NAN, INF, 3], dtype)
    before = logits.copy()
    logits.flags.writeable = False
    sampler = make_sampler(4, logit_bias={0: 1}, repetition_penalty=2, presence_penalty=1, top_p=0.9, top_k=3)
    with pytest.warns(ModelWarning):
        sampler.sample(logits, [0, 3], 1)
        sampler.top_logprobs(logits, 4)
    np.testing.assert_array_equal(logits, before)


def test_logits_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\), not \(4,\)"):
        make_sampler(4).sample(f4(1, 2, 3), (), 0)


# Seeds


def reply(seed, n=24):
    sampler = make_sampler(97, seed=seed)
    rng = np.random.default_rng(3)
    return [sampler.sample(rng.normal(size=97).astype(np.float32), (), 0) for _ in range(n)]


@pytest.mark.parametrize("seed", [0, 42])
def test_seed_gives_the_same_ids_whatever_ran_before(seed):  # case D11: 0 is a real seed
    first = reply(seed)
    reply(seed + 1)
    np.random.seed(5)
    assert reply(seed) == first


def test_no_seed_and_another_seed_give_other_ids():  # case D11
    replies = {tuple(reply(seed)) for seed in (None, None, 0, 1)}
    assert len(replies) == 4


# Log-probabilities


def test_top_logprobs_are_the_models_own_likeliest_first():
    logits = np.log(f4(0.1, 0.6, 0.3)) + 7
    sampler = make_sampler(3, logit_bias={0: 100}, temperature=0.1)
    ids, logprobs = zip(*sampler.top_logprobs(logits, 2), strict=True)
    assert ids == (1, 2)
    assert logprobs == pytest.approx(np.log([0.6, 0.3]), abs=1e-6)


def test_more_logprobs_than_the_vocabulary_gives_the_vocabulary():  # case D16
    top = make_sampler(5).top_logprobs(f4(1, 2, 3, 2, 0), 20)
    assert [token_id for token_id, _ in top] == [2, 1, 3, 0, 4]
    assert sum(np.exp(logprob) for _, logprob in top) == pytest.approx(1)
    assert {type(value) for entry in top for value in entry} == {int, float}
    assert make_sampler(5).top_logprobs(np.zeros(5, np.float32), 0) == []


def test_impossible_ids_have_no_logprob():
    assert make_sampler(3).top_logprobs(f4(-INF, 4, -INF), 3) == [(1, 0.0)]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_draw_from_many_blocks_inverts_their_running_sum(size, dtype):
    rng = np.random.default_rng(size)
    weights = rng.integers(0, 5, size).astype(dtype)  # whole numbers, whose sums are exact in any order
    weights[-1] = 1
    running = np.cumsum(weights, dtype=np.float64)
    for u in (0.0, *rng.random(200), BELOW_ONE):
        assert draw(weights, u) == np.searchsorted(running, u * running[-1], side="right")
