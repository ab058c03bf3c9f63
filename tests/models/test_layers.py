"""The arithmetic against hand-worked numbers and against slow, plain double precision."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from turbospark_chat.models import layers

Doubles = NDArray[np.float64]


def random(rng: np.random.Generator, *shape: int) -> layers.Array:
    return rng.normal(size=shape).astype(np.float32)


def one_row(values: list[float]) -> layers.Array:
    return np.array([values], np.float32)


# --- projections and norms ---


def test_linear_multiplies_by_rows_and_adds_the_bias_once_a_token() -> None:
    weight = np.array([[1, 0, 2], [0, -1, 1]], np.float32)  # (out, in)
    x = np.array([[1, 2, 3], [0, 0, 1]], np.float32)
    assert layers.linear(x, weight).tolist() == [[7, 1], [2, 1]]
    assert layers.linear(x, weight, np.array([10, 20], np.float32)).tolist() == [[17, 21], [12, 21]]


@pytest.mark.parametrize(
    ("x", "weight", "eps", "expected"),
    [
        ([3, 4], [1.25, 1.25], 0.0, [1.0607, 1.4142]),  # F3: a GGUF file's weight is used as it is
        ([3, 4], [2, -1], 0.0, [1.6971, -1.1314]),
        ([0, 0], [1, 1], 1e-5, [0, 0]),
        ([1, 1], [1, 1], 3.0, [0.5, 0.5]),
    ],
)
def test_rms_norm(x: list[float], weight: list[float], eps: float, expected: list[float]) -> None:
    normed = layers.rms_norm(one_row(x), np.array(weight, np.float32), eps)
    assert normed.dtype == np.float32
    assert normed[0] == pytest.approx(expected, abs=1e-4)


def test_swiglu_of_moderate_values_is_silu_times_up() -> None:
    gate, up = [-2.0, 0.0, 1.5], [3.0, 5.0, -1.0]
    expected = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
    assert layers.swiglu(one_row(gate), one_row(up))[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("gate", [-3e38, -1000.0, -104.0, -89.0, 89.0, 1000.0, 3e38])
def test_swiglu_of_extreme_values_is_its_limit_and_warns_of_nothing(gate: float) -> None:
    y = layers.swiglu(one_row([gate]), one_row([1.0]))
    assert y[0, 0] == pytest.approx(max(gate, 0.0), abs=1e-30)


def test_geglu_of_moderate_values_is_nearly_gelu_times_up() -> None:
    gate, up = [-2.0, -0.3, 0.0, 1.5], [3.0, -7.0, 5.0, -1.0]
    y = layers.geglu(one_row(gate), one_row(up))[0]
    exact = [g * (1 + math.erf(g / math.sqrt(2))) / 2 * u for g, u in zip(gate, up, strict=True)]
    assert y == pytest.approx(exact, abs=2e-3)
    assert y[3] == pytest.approx(
        -1.3995715769802, rel=1e-6
    )  # by the approximation with tanh; the exact is 1.3998


@pytest.mark.parametrize("gate", [-3e38, -1000.0, -10.0, 10.0, 1000.0, 3e38])
def test_geglu_of_extreme_values_is_its_limit_and_warns_of_nothing(gate: float) -> None:
    y = layers.geglu(one_row([gate]), one_row([1.0]))
    assert y[0, 0] == pytest.approx(max(gate, 0.0), abs=1e-30)


# --- rotary positions ---


def test_a_pair_is_turned_by_its_angle() -> None:
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]], np.float32)  # one token, one head
    cos, sin = layers.rope_table(layers.rope_frequencies(4, 100.0), 3, 1)  # angles 3 and 0.3
    c, s, slow_c, slow_s = math.cos(3), math.sin(3), math.cos(0.3), math.sin(0.3)
    neighbours = [1 * c - 2 * s, 1 * s + 2 * c, 3 * slow_c - 4 * slow_s, 3 * slow_s + 4 * slow_c]
    halves = [1 * c - 3 * s, 2 * slow_c - 4 * slow_s, 1 * s + 3 * c, 2 * slow_s + 4 * slow_c]
    assert layers.apply_rope(x, cos, sin, interleaved=True)[0, 0] == pytest.approx(neighbours, rel=1e-6)
    assert layers.apply_rope(x, cos, sin, interleaved=False)[0, 0] == pytest.approx(halves, rel=1e-6)


@pytest.mark.parametrize("rope_dim", [8, 4])
def test_both_pairings_agree_up_to_the_order_of_dimensions(rope_dim: int) -> None:  # 18
    x = random(np.random.default_rng(0), 5, 3, 8)
    cos, sin = layers.rope_table(layers.rope_frequencies(rope_dim, 10000.0), 7, 5)
    # Where GGUF's converter puts each dimension of a head: 0 4 1 5 2 6 3 7 for eight.
    turned = np.arange(rope_dim).reshape(2, -1).T.reshape(-1)
    order = [*turned, *range(rope_dim, 8)]
    interleaved = layers.apply_rope(x[..., order], cos, sin, interleaved=True)
    assert np.array_equal(interleaved, layers.apply_rope(x, cos, sin, interleaved=False)[..., order])


@pytest.mark.parametrize("interleaved", [True, False])
def test_dimensions_past_rope_dim_and_the_argument_stay_as_they_are(interleaved: bool) -> None:
    x = random(np.random.default_rng(1), 2, 3, 8)
    before = x.copy()
    cos, sin = layers.rope_table(layers.rope_frequencies(4, 10000.0), 1, 2)
    turned = layers.apply_rope(x, cos, sin, interleaved=interleaved)
    assert np.array_equal(turned[..., 4:], before[..., 4:])
    assert not np.array_equal(turned[..., :4], before[..., :4])
    assert np.array_equal(x, before)


def test_linear_scaling_divides_every_angle() -> None:
    plain, scaled = (layers.rope_frequencies(8, 10000.0, scale=scale) for scale in (1.0, 8.0))
    assert scaled * 8 == pytest.approx(plain, rel=1e-15)


def test_angles_far_into_a_long_context_are_exact() -> None:
    position = 8191
    cos, sin = layers.rope_table(layers.rope_frequencies(64, 10000.0), position, 1)
    for pair in range(32):
        angle = position * 10000.0 ** (-2 * pair / 64)
        assert cos[0, pair] == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[0, pair] == pytest.approx(math.sin(angle), abs=1e-7)


def llama3_divisors(
    head_dim: int, theta: float, *, factor: float, low: float, high: float, original: int
) -> Doubles:
    """What `rope_freqs.weight` holds: 1 for short wave lengths, `factor` for long ones, between them a blend."""
    wave_lengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (original / wave_lengths - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    return np.where(
        wave_lengths < original / high, 1.0, np.where(wave_lengths > original / low, factor, blended)
    )


@pytest.mark.parametrize(
    ("head_dim", "factor", "n_unchanged", "n_blended", "figures"),
    [
        pytest.param(
            64, 32.0, 15, 3,
            {15: 0.00129054793, 16: 4.29556797e-4, 17: 9.70828780e-5, 18: 1.94616382e-5, 31: 9.41830673e-8},
            id="F8 head_dim 64",
        ),
        pytest.param(128, 8.0, 29, 6, {29: 0.00216657076, 34: 1.78507813e-4}, id="F8 head_dim 128"),
    ],
)  # fmt: skip
def test_llama3_scaling_comes_as_divisors(
    head_dim: int, factor: float, n_unchanged: int, n_blended: int, figures: dict[int, float]
) -> None:
    divisors = llama3_divisors(head_dim, 5e5, factor=factor, low=1.0, high=4.0, original=8192)
    plain = layers.rope_frequencies(head_dim, 5e5)
    scaled = layers.rope_frequencies(head_dim, 5e5, divisors=divisors.astype(np.float32))
    assert scaled[:n_unchanged] == pytest.approx(plain[:n_unchanged], rel=1e-15)
    assert scaled[n_unchanged + n_blended :] == pytest.approx(
        plain[n_unchanged + n_blended :] / factor, rel=1e-15
    )
    for pair, frequency in figures.items():
        assert scaled[pair] == pytest.approx(frequency, rel=1e-7)


def test_divisors_of_llama3_are_those_a_file_holds() -> None:  # F8
    divisors = llama3_divisors(64, 5e5, factor=32.0, low=1.0, high=4.0, original=8192)
    assert divisors[15] == pytest.approx(1.65132925, rel=1e-8)
    assert divisors[18] == 32.0


# --- attention ---


def naive_attention(
    q: layers.Array, k: layers.Array, v: layers.Array, position: int, window: int | None
) -> Doubles:
    """One token, one head, one earlier position at a time, in double precision."""
    n_tokens, n_heads, head_dim = q.shape
    group = n_heads // len(k)
    result = np.zeros((n_tokens, n_heads, head_dim))
    for token in range(n_tokens):
        for head in range(n_heads):
            keys, values = k[head // group].astype(float), v[head // group].astype(float)
            query = q[token, head].astype(float)
            end = position + token + 1
            seen = range(0 if window is None else max(0, end - window), end)
            scores = [float(query @ keys[at]) / math.sqrt(head_dim) for at in seen]
            shares = [math.exp(score - max(scores)) for score in scores]
            for at, share in zip(seen, shares, strict=True):
                result[token, head] += share / sum(shares) * values[at]
    return result.reshape(n_tokens, -1)


@given(
    n_tokens=st.integers(1, 6),
    position=st.integers(0, 9),
    n_kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([2, 5, 16]),
    window=st.none() | st.integers(1, 16),
    seed=st.integers(0, 2**32 - 1),
)
def test_attention_equals_the_naive_loop(
    n_tokens: int,
    position: int,
    n_kv_heads: int,
    group: int,
    head_dim: int,
    window: int | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    length = position + n_tokens
    q = random(rng, n_tokens, n_kv_heads * group, head_dim)
    k, v = random(rng, n_kv_heads, length, head_dim), random(rng, n_kv_heads, length, head_dim)
    mixed = layers.attention(q, k, v, position, window=window)
    assert mixed.shape == (n_tokens, n_kv_heads * group * head_dim)
    assert mixed == pytest.approx(naive_attention(q, k, v, position, window), abs=1e-5)


def test_scores_are_scaled_by_the_length_of_a_head() -> None:  # F6
    q = np.full((1, 1, 4), 2.0, np.float32)
    k = np.array([[[0, 0, 0, 0], [1, 1, 1, 1]]], np.float32)  # scores 0 and 8 / sqrt(4)
    v = np.array([[[0, 0, 0, 0], [1, 1, 1, 1]]], np.float32)
    share = math.exp(4) / (1 + math.exp(4))
    assert layers.attention(q, k, v, 1)[0] == pytest.approx([share] * 4, rel=1e-6)


def test_the_future_is_not_seen() -> None:
    rng = np.random.default_rng(2)
    q, k, v = random(rng, 3, 2, 4), random(rng, 2, 5, 4), random(rng, 2, 5, 4)
    before = layers.attention(q, k, v, 2)
    k[:, 4], v[:, 4] = 100.0, 100.0  # the last token's own position
    after = layers.attention(q, k, v, 2)
    assert np.array_equal(before[:2], after[:2])
    assert not np.array_equal(before[2], after[2])


def test_huge_scores_give_all_weight_to_the_largest_and_warn_of_nothing() -> None:
    q = np.full((1, 1, 2), 1e4, np.float32)
    k = np.array([[[1e4, 1e4], [-1e4, -1e4], [1e3, 1e3]]], np.float32)
    v = np.array([[[1, 2], [3, 4], [5, 6]]], np.float32)
    assert layers.attention(q, k, v, 2).tolist() == [[1, 2]]
