"""The kernels between the products, and the exponential function, against numpy at the same inputs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import THETA, compute, error, random_rows
from numba import njit
from numpy.typing import NDArray

from turbospark_chat.models import layers
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.exponential import exp
from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.layers import Array

EXACT = 3e-7  # of a number: a few roundings of float32
EPS = 1e-5
SIZES = st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=3)
WIDTHS = st.integers(1, 40).map(lambda n: 32 * n)  # over a chunk of one token, and of several
SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=20)
@given(n_features=WIDTHS, sizes=SIZES, seed=SEEDS, power=st.integers(-10, 10))
def test_rms_norm(n_features: int, sizes: list[int], seed: int, power: int) -> None:
    x = random_rows(sum(sizes), n_features, seed=seed, scale=10.0**power)
    weight = random_rows(1, n_features, seed=seed + 1)[0]
    found = compute(lambda builder, x: builder.rms_norm(x, weight, EPS), x, sizes=sizes)
    expected = layers.rms_norm(x.astype(np.float64), weight, EPS)
    assert error(found, expected, abs(expected)) < 3e-6


@settings(deadline=None, max_examples=30)
@given(
    head_dim=st.sampled_from([16, 32, 64, 256]),
    n_heads=st.integers(1, 5),
    sizes=SIZES,
    seed=SEEDS,
    power=st.integers(-10, 10),
)
def test_head_norm(head_dim: int, n_heads: int, sizes: list[int], seed: int, power: int) -> None:
    n_heads *= 2  # so that a row is a multiple of 32
    x = random_rows(sum(sizes), n_heads * head_dim, seed=seed, scale=10.0**power)
    weight = random_rows(1, head_dim, seed=seed + 1)[0]
    found = compute(lambda builder, x: builder.head_norm(x, weight, EPS, head_dim), x, sizes=sizes)
    heads = x.astype(np.float64).reshape(-1, n_heads, head_dim)
    expected = layers.rms_norm(heads, weight, EPS).reshape(x.shape)
    assert error(found, expected, abs(expected)) < 3e-6


def test_rms_norm_of_zeros_is_zeros() -> None:
    x, weight = np.zeros((4, 64), np.float32), np.ones(64, np.float32)
    assert not compute(lambda builder, x: builder.rms_norm(x, weight, EPS), x, sizes=[1, 3]).any()


@settings(deadline=None, max_examples=20)
@given(n_features=WIDTHS, sizes=SIZES, seed=SEEDS)
def test_add_is_exact(n_features: int, sizes: list[int], seed: int) -> None:
    x, y = (random_rows(sum(sizes), n_features, seed=seed + number) for number in (0, 1))
    assert np.array_equal(compute(lambda builder, x, y: builder.add(x, y), x, y, sizes=sizes), x + y)


@settings(deadline=None, max_examples=20)
@given(n_features=WIDTHS, sizes=SIZES, seed=SEEDS, factor=st.sampled_from([0.0, -1.5, 640**0.5, 1e30]))
def test_scale_is_exact(n_features: int, sizes: list[int], seed: int, factor: float) -> None:
    x = random_rows(sum(sizes), n_features, seed=seed)
    found = compute(lambda builder, x: builder.scale(x, factor), x, sizes=sizes)
    assert np.array_equal(found, x * np.float32(factor))


def gelu_in_float64(gate: Array, up: Array) -> NDArray[np.float64]:
    """Return gelu(gate) * up without what 1 + tanh loses where the gate is negative."""
    x = gate.astype(np.float64)
    return np.multiply(x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), up)


GATES = {"swiglu": lambda gate, up: layers.swiglu(gate.astype(np.float64), up), "geglu": gelu_in_float64}
each_gate = pytest.mark.parametrize("name", GATES)


@each_gate
@settings(deadline=None, max_examples=20)
@given(n_features=WIDTHS, sizes=SIZES, seed=SEEDS, scale=st.sampled_from([0.01, 1.0, 10.0, 100.0]))
def test_gates(name: str, n_features: int, sizes: list[int], seed: int, scale: float) -> None:
    gate = random_rows(sum(sizes), n_features, seed=seed, scale=scale)
    up = random_rows(sum(sizes), n_features, seed=seed + 1)
    check_gate(name, gate, up, sizes)


def check_gate(name: str, gate: Array, up: Array, sizes: list[int]) -> None:
    found = compute(lambda builder, gate, up: getattr(builder, name)(gate, up), gate, up, sizes=sizes)
    with np.errstate(over="ignore"):
        expected = GATES[name](gate, up)
    # Below the range of `exp` it stands still, so that nothing comes out as up to 1e-29. An exponent of 20 has 2e-6 of
    # rounding, which is as much of its exponential.
    assert error(found, expected, np.maximum(abs(expected), 1e-20)) < (3e-6 if name == "swiglu" else 1e-4)
    assert error(found, expected, np.maximum(abs(expected), 1e-3)) < 3e-6


@each_gate
@pytest.mark.parametrize("sizes", [[64], [1] * 64], ids=["many", "one"])
def test_a_huge_gate_leaves_all_of_itself_or_nothing(name: str, sizes: list[int]) -> None:
    magnitudes = np.geomspace(50, 1e9, 32 * 32).reshape(32, 32)
    gate = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    check_gate(name, gate, np.ones_like(gate), sizes)


@each_gate
def test_the_gates_are_as_numpy_has_them_in_float32(name: str) -> None:
    gate, up = random_rows(9, 96, scale=2), random_rows(9, 96, seed=1)
    found = compute(lambda builder, gate, up: getattr(builder, name)(gate, up), gate, up, sizes=[8, 1])
    assert error(found, getattr(layers, name)(gate, up), 1.0) < 1e-6


@pytest.mark.parametrize("sizes", [[4], [1] * 4], ids=["many", "one"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "operation", ["rms_norm", "head_norm", "add", "scale", "swiglu", "geglu", "rope", "last"]
)
def test_a_number_that_is_none_shows(operation: str, value: float, sizes: list[int]) -> None:
    x, y = random_rows(4, 32), random_rows(4, 32, seed=1)
    x[3, 5] = value
    weight = np.ones(32, np.float32)
    found = compute(
        lambda builder, x, y: {
            "rms_norm": lambda: builder.rms_norm(x, weight, EPS),
            "head_norm": lambda: builder.head_norm(x, weight[:16], EPS, 16),
            "add": lambda: builder.add(x, y),
            "scale": lambda: builder.scale(x, 0.5),
            "swiglu": lambda: builder.swiglu(x, y),
            "geglu": lambda: builder.geglu(x, y),
            "rope": lambda: builder.rope(x, 16, interleaved=True),
            "last": lambda: builder.last(x),
        }[operation](),
        x,
        y,
        sizes=sizes,
    )
    assert not np.isfinite(found[-1]).all()
    assert np.isfinite(found[:-1]).all()


@settings(deadline=None, max_examples=40)
@given(
    head=st.sampled_from([(16, 16), (16, 8), (32, 2), (64, 64), (80, 32), (128, 128), (128, 64)]),
    n_heads=st.integers(1, 5),
    sizes=SIZES,
    position=st.sampled_from([0, 1, 77, 8000]),
    interleaved=st.booleans(),
    seed=SEEDS,
)
def test_rope(
    head: tuple[int, int], n_heads: int, sizes: list[int], position: int, interleaved: bool, seed: int
) -> None:
    head_dim, rope_dim = head
    n_heads *= 2  # so that a row is a multiple of 32
    x = random_rows(sum(sizes), n_heads * head_dim, seed=seed)
    found = compute(
        lambda builder, x: builder.rope(x, head_dim, interleaved=interleaved),
        x,
        sizes=sizes,
        position=position,
        head_dim=head_dim,
        rope_dim=rope_dim,
    )
    cos, sin = layers.rope_table(layers.rope_frequencies(rope_dim, THETA), position, len(x))
    heads = x.reshape(len(x), n_heads, head_dim)
    expected = layers.apply_rope(heads, cos, sin, interleaved=interleaved)
    length = np.linalg.norm(heads, axis=-1, keepdims=True)  # which a rotation keeps
    assert error(found.reshape(heads.shape), expected, length) < EXACT
    assert np.array_equal(found.reshape(heads.shape)[..., rope_dim:], heads[..., rope_dim:])


@pytest.mark.parametrize("sizes", [[1], [16], [17, 1, 40]], ids=str)
def test_each_rope_turns_by_its_own_table(sizes: list[int]) -> None:
    # F10: local and global layers, each with their angles
    thetas, position = (1e4, 1e6, 50.0), 3000
    x = random_rows(sum(sizes), 64)
    for table, theta in enumerate(thetas):
        found = compute(
            lambda builder, x, table=table: builder.rope(x, 32, interleaved=False, table=table),
            x,
            sizes=sizes,
            position=position,
            head_dim=32,
            thetas=thetas,
        )
        cos, sin = layers.rope_table(layers.rope_frequencies(32, theta), position, len(x))
        expected = layers.apply_rope(x.reshape(-1, 2, 32), cos, sin, interleaved=False).reshape(x.shape)
        assert error(found, expected, np.linalg.norm(x.reshape(-1, 2, 32), axis=-1).max()) < EXACT


@pytest.mark.parametrize("n_tokens", [1, 2, 15, 16, 17, 33, 64])
def test_last_is_the_last_tokens_row(n_tokens: int) -> None:
    x = random_rows(n_tokens, 96)
    assert np.array_equal(compute(lambda builder, x: builder.last(x), x), x[-1:])


@pytest.mark.parametrize("sizes", [[1], [2], [40], [64, 1, 17]], ids=str)
def test_what_follows_last_is_computed_for_the_last_token_alone(sizes: list[int]) -> None:
    x, weight = random_rows(sum(sizes), 1120), 1 + random_rows(1, 1120, seed=1)[0]
    found = compute(
        lambda builder, x: builder.add(
            builder.swiglu(builder.last(x), builder.last(x)), builder.rms_norm(builder.last(x), weight, EPS)
        ),
        x,
        sizes=sizes,
    )
    last = x[np.cumsum(sizes) - 1].astype(np.float64)
    expected = layers.swiglu(last, last) + layers.rms_norm(last, weight, EPS)
    assert error(found, expected, np.maximum(abs(expected), 1)) < 3e-6


@njit
def _exp_of_all(source: int, target: int, n_bytes: int) -> None:
    for offset in range(0, n_bytes, 4 * v.LANES):
        v.store_floats(target + offset, exp(v.load_floats(source + offset)))


def exp_of(x: Array) -> Array:
    y = np.empty_like(x)
    _exp_of_all(x.ctypes.data, y.ctypes.data, x.nbytes)
    return y


def test_the_exponential_is_exact_over_its_range() -> None:
    x = np.linspace(-87.3, 88.3, 1 << 18, dtype=np.float32)
    x[: 1 << 12] = np.linspace(-1e-3, 1e-3, 1 << 12)
    expected = np.exp(x.astype(np.float64))
    assert error(exp_of(x), expected, expected) < 2e-7


def test_the_exponential_stays_at_the_ends_of_its_range_and_at_nan() -> None:
    x = np.full(16, -87.3, np.float32)
    x[:7] = -np.inf, -1e30, -100, 100, 1e30, np.inf, np.nan
    found = exp_of(x)
    assert np.all((found[:3] > 0) & (found[:3] < 2e-38))
    assert np.all((found[3:6] > 2e38) & np.isfinite(found[3:6]))
    assert np.isnan(found[6])
