"""Compiled kernels on real weights against numpy: every logit, and what greedy decoding takes.

Gemma 3 sees 512 positions in all but every sixth layer.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import Arithmetic, RunnableModel, load_model

pytestmark = pytest.mark.weights

TOLERANCE = 0.02  # of a logit: keys and values of 30 layers are rounded to 16 bits
RANDOM_TOLERANCE = 0.05  # after hundreds of random ids, which no model is sure about
CACHE_TOLERANCE = 5e-3  # of the largest number of an array
GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = [
    pytest.param(name, row, id=f"{name}, {len(row['ids'])} tokens")
    for name in ("smollm2", "gemma3")
    for row in json.loads((GOLDEN / f"logits_{name}.json").read_text())
]
REPEATED = [504] * 100  # one word over and over, which a model spreads its attention over evenly
PROMPTS = [
    *(pytest.param(param.values[0], param.values[1]["ids"], id=param.id) for param in ROWS),  # type: ignore[index]
    pytest.param("smollm2", REPEATED, id="smollm2, one word"),
    pytest.param("gemma3", [2, *REPEATED], id="gemma3, one word"),
]
SLACK, WINDOW = 100, 512


class Pair:
    """A model in both arithmetics."""

    def __init__(self, path: Path, compiled: Arithmetic) -> None:
        self.compiled = load_model(path, available_bytes=2**40, arithmetic=compiled, window_slack=SLACK).model
        assert self.compiled.arithmetic.startswith("compiled")
        self.reference = load_model(path, available_bytes=2**40, window_slack=10_000).model


@pytest.fixture(scope="module")
def pairs(smollm2_path: Path, gemma3_path: Path, compiled: Arithmetic) -> Callable[[str], Pair]:
    """Return what loads a pair by the model's name, each once."""
    paths = {"smollm2": smollm2_path, "gemma3": gemma3_path}
    return cache(lambda name: Pair(paths[name], compiled))


def last_logits(model: RunnableModel, *passes: list[int], state: Any = None) -> Array:
    state = model.make_state() if state is None else state
    for ids in passes[:-1]:
        model.forward(ids, state, need_logits=False)
    logits = model.forward(passes[-1], state, need_logits=True)
    assert logits is not None
    return logits


def check(logits: Array, expected: Array, *, tolerance: float = TOLERANCE) -> None:
    assert np.abs(logits - expected).max() < tolerance
    assert expected[np.argmax(logits)] > expected.max() - tolerance


@pytest.mark.parametrize(("name", "ids"), PROMPTS)
def test_every_logit_is_numpys_and_so_is_the_choice_between_any_two_further_apart(
    name: str, ids: list[int], pairs: Callable[[str], Pair]
) -> None:
    pair = pairs(name)
    expected = last_logits(pair.reference, ids)
    for passes in ([ids], [ids[:-4], ids[-4:-2], ids[-2:-1], ids[-1:]]):
        check(last_logits(pair.compiled, *passes), expected)


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_logits_and_greedy_ids_are_the_recorded_ones(
    name: str, row: dict[str, Any], pairs: Callable[[str], Pair]
) -> None:
    model = pairs(name).compiled
    state = model.make_state()
    logits = last_logits(model, row["ids"], state=state)
    assert logits[row["top_ids"]] == pytest.approx(row["top_logits"], abs=TOLERANCE)
    assert [logits.mean(), logits.std()] == pytest.approx(
        [row["logit_mean"], row["logit_std"]], abs=TOLERANCE
    )
    for token in row["greedy"]:
        assert logits[token] >= logits.max() - TOLERANCE  # of two candidates this close, either
        logits = last_logits(model, [token], state=state)


class Followed:
    """A compiled state and the reference's, which keeps every position, fed the same random ids."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._reference = pair, pair.reference.make_state()
        self.state = pair.compiled.make_state()

    def feed(self, n: int, *, seed: int, size: int = 64) -> None:
        """Feed ids, the compiled model in passes of a size, and compare the last logits and both states."""
        ids = np.random.default_rng(seed).integers(100, 200_000, n).tolist()
        found = last_logits(self._pair.compiled, *batched(ids, size), state=self.state)
        expected = last_logits(self._pair.reference, *batched(ids, 64), state=self._reference)
        check(found, expected, tolerance=RANDOM_TOLERANCE)
        for (name, ours), (other, theirs) in zip(
            self.state.as_floats(), self._reference.as_floats(), strict=True
        ):
            assert (name, ours.shape) == (other, theirs.shape)
            assert np.abs(ours - theirs).max() < CACHE_TOLERANCE * np.abs(theirs).max(), name

    def truncate(self, length: int, *, expected: int) -> None:
        assert self.state.truncate(length) == expected
        assert self._reference.truncate(expected) == expected


def batched(ids: list[int], size: int) -> list[list[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def test_past_its_window_gemma_goes_on_and_back_and_on_again_as_numpy_does(
    pairs: Callable[[str], Pair],
) -> None:
    pair = pairs("gemma3")
    followed = Followed(pair)
    followed.feed(WINDOW - 1, seed=0)
    for seed in (1, 2):  # the last that sees all, and the first that does not
        followed.feed(1, seed=seed)
    followed.feed(20, size=1, seed=3)
    followed.state.mark()
    n_marked = len(followed.state)
    followed.feed(260, seed=4)
    assert followed.state.room.start > n_marked  # of which the windows hold too little by now
    length = len(followed.state) - SLACK
    followed.truncate(length, expected=length)
    followed.feed(20, size=1, seed=5)
    followed.truncate(n_marked + 30, expected=n_marked)
    followed.feed(50, seed=6)
    restored = pair.compiled.make_state()
    restored.restore(len(followed.state), followed.state.export())
    followed.state = restored
    followed.feed(20, size=5, seed=7)
