"""The real weights of every catalogue model, in both arithmetics, against recorded numbers of another engine.

And the kernels against numpy: every logit, also where Gemma 3 sees 512 positions in all but every sixth layer.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import Arithmetic, LoadedModel, RunnableModel, load_model
from turbospark_chat.models.runner import Runner

pytestmark = pytest.mark.weights

TOLERANCE = 0.02  # between engines whose rounding differs; the kernels' keys and values have 16 bits
RANDOM_TOLERANCE = 0.05  # after hundreds of random ids, which no model is sure about
CACHE_TOLERANCE = 5e-3  # of the largest number of an array
N_ALONE = 8  # ids of a reply that are fed one by one; the others are scored in one pass
SLACK, WINDOW = 100, 512


@dataclass(frozen=True)
class Row:
    """A prompt, what its last logits are, and how the other engine goes on. `mean_nll` is of the prompt itself."""

    text: str
    ids: list[int]
    top_ids: list[int]
    top_logits: list[float]
    logit_mean: float
    logit_std: float
    mean_nll: float
    greedy: list[int]
    greedy_text: str


def rows_of(model: str) -> list[Row]:
    path = Path(__file__).parents[1] / "golden" / f"logits_{model}.json"
    return [Row(**row) for row in json.loads(path.read_text())]


ROWS = {model: rows_of(model) for model in ("smollm2", "gemma3")}
ARITHMETICS = ("numpy", "compiled")
MODELS = [(model, arithmetic) for model in ROWS for arithmetic in ARITHMETICS]
REPEATED = [504] * 100  # one word over and over, which a model spreads its attention over evenly
PROMPTS = [
    *((model, row.ids, f"{model}-{row.text[:24]}") for model in ROWS for row in ROWS[model]),
    ("smollm2", REPEATED, "smollm2-one word"),
    ("gemma3", [2, *REPEATED], "gemma3-one word"),
]


def rows(
    is_wanted: Callable[[Row], bool] = lambda row: True, arithmetics: Sequence[str] = ARITHMETICS
) -> pytest.MarkDecorator:
    """Parametrize a test by each model in each arithmetic, and the rows recorded of it."""
    params = [
        pytest.param(which, row, id=f"{'-'.join(which)}-{row.text[:24]}")
        for which in MODELS
        for row in ROWS[which[0]]
        if is_wanted(row) and which[1] in arithmetics
    ]
    return pytest.mark.parametrize(("which", "row"), params)


def is_short(row: Row) -> bool:
    return len(row.ids) < 50


Which = tuple[str, str]  # a model's name and its arithmetic
Open = Callable[[Which], LoadedModel]


@pytest.fixture(scope="module")
def open_model(smollm2_path: Path, gemma3_path: Path, compiled: Arithmetic) -> Open:
    """Return what loads a model, each once. Those in numpy keep whatever a window has passed."""
    paths = {"smollm2": smollm2_path, "gemma3": gemma3_path}
    choices = {"numpy": (Arithmetic(), 10_000), "compiled": (compiled, SLACK)}

    @cache
    def load(which: Which) -> LoadedModel:
        arithmetic, slack = choices[which[1]]
        loaded = load_model(paths[which[0]], available_bytes=2**40, arithmetic=arithmetic, window_slack=slack)
        assert loaded.model.arithmetic.startswith(which[1])
        return loaded

    return load


@pytest.fixture(scope="module")
def logits_after(open_model: Open) -> Callable[[Which, tuple[int, ...]], Array]:
    """Return what gives a model's logits after ids that are fed in one pass, each computed once."""
    return cache(lambda which, ids: last_logits(open_model(which).model, ids))


def last_logits(model: RunnableModel, *passes: Sequence[int], state: Any = None) -> Array:
    state = model.make_state() if state is None else state
    for ids in passes[:-1]:
        model.forward(ids, state, need_logits=False)
    logits = model.forward(passes[-1], state, need_logits=True)
    assert logits is not None
    return logits


@pytest.fixture
def loaded(open_model: Open, which: Which) -> LoadedModel:
    return open_model(which)


@pytest.fixture
def runner(loaded: LoadedModel) -> Runner[KvPrefix, Any]:
    return Runner(loaded.model, KvPrefix)


def chunks(ids: Sequence[int], sizes: Iterator[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Cut ids by `sizes` and yield each chunk with its position."""
    position = 0
    while position < len(ids):
        chunk = ids[position : position + next(sizes)]
        yield position, chunk
        position += len(chunk)


def check_last_logits(logits: NDArray[np.float32] | None, row: Row) -> None:
    assert logits is not None
    assert logits[row.top_ids] == pytest.approx(row.top_logits, abs=TOLERANCE)
    assert set(np.flatnonzero(logits > row.top_logits[-1] + TOLERANCE)) <= set(row.top_ids)
    assert float(logits.mean()) == pytest.approx(row.logit_mean, abs=TOLERANCE)
    assert float(logits.std()) == pytest.approx(row.logit_std, abs=TOLERANCE)


@rows(arithmetics=["compiled"])  # a tokenizer computes nothing
def test_text_gives_the_ids(row: Row, loaded: LoadedModel) -> None:
    encoded = loaded.tokenizer.encode(row.text, parse_special=True)
    assert loaded.tokenizer.with_bos(encoded) == row.ids


@rows()
def test_prompt_in_one_pass_gives_the_logits(
    row: Row, which: Which, logits_after: Callable[[Which, tuple[int, ...]], Array]
) -> None:
    check_last_logits(logits_after(which, tuple(row.ids)), row)


@rows(is_short)
def test_prompt_token_by_token_gives_the_logits_at_every_position(
    row: Row, runner: Runner[KvPrefix, Any]
) -> None:
    surprises = []
    for position, token in enumerate(row.ids):
        logits = runner.produce(token, position)
        if position + 1 < len(row.ids):
            shifted = logits.astype(float) - logits.max()
            surprises.append(np.log(np.exp(shifted).sum()) - shifted[row.ids[position + 1]])
    check_last_logits(logits, row)
    assert np.mean(surprises) == pytest.approx(row.mean_nll, abs=TOLERANCE)


@rows()
def test_prompt_in_chunks_gives_the_logits_and_greedy_decoding_the_ids(
    row: Row, runner: Runner[KvPrefix, Any], loaded: LoadedModel
) -> None:
    logits = None
    for position, chunk in chunks(
        row.ids, chain([7, 20, 100, 484], repeat(1))
    ):  # a long one ends token by token
        is_last = position + len(chunk) == len(row.ids)
        logits = runner.produce_chunk(chunk, position, need_logits=is_last)
    check_last_logits(logits, row)
    position = len(row.ids)
    each = [logits]
    for token in row.greedy[:N_ALONE]:
        each.append(runner.produce(token, position))
        position += 1
    each += list(runner.produce_each(row.greedy[N_ALONE:], position))
    for logits, token in zip(each, row.greedy, strict=False):
        assert logits is not None
        assert logits[token] >= logits.max() - TOLERANCE  # of two candidates this close, either
    assert loaded.tokenizer.decode(row.greedy, show_control=True) == row.greedy_text


# The kernels against numpy


def check(logits: Array, expected: Array, *, tolerance: float = TOLERANCE) -> None:
    assert np.abs(logits - expected).max() < tolerance
    assert expected[np.argmax(logits)] > expected.max() - tolerance


@pytest.mark.parametrize(("name", "ids"), [pytest.param(name, ids, id=label) for name, ids, label in PROMPTS])
def test_every_logit_is_numpys_and_so_is_the_choice_between_any_two_further_apart(
    name: str, ids: list[int], open_model: Open, logits_after: Callable[[Which, tuple[int, ...]], Array]
) -> None:
    expected = logits_after((name, "numpy"), tuple(ids))
    check(logits_after((name, "compiled"), tuple(ids)), expected)
    compiled = open_model((name, "compiled")).model
    check(last_logits(compiled, ids[:-4], ids[-4:-2], ids[-2:-1], ids[-1:]), expected)


class Followed:
    """A compiled state and the reference's, which keeps every position, fed the same random ids."""

    def __init__(self, compiled: RunnableModel, reference: RunnableModel) -> None:
        self._compiled, self._reference = compiled, reference
        self.state, self._expected = compiled.make_state(), reference.make_state()

    def feed(self, n: int, *, seed: int, size: int = 64) -> None:
        """Feed ids, the compiled model in passes of a size, and compare the last logits and both states."""
        ids = np.random.default_rng(seed).integers(100, 200_000, n).tolist()
        found = last_logits(self._compiled, *batched(ids, size), state=self.state)
        expected = last_logits(self._reference, ids, state=self._expected)
        check(found, expected, tolerance=RANDOM_TOLERANCE)
        for (name, ours), (other, theirs) in zip(
            self.state.as_floats(), self._expected.as_floats(), strict=True
        ):
            assert (name, ours.shape) == (other, theirs.shape)
            assert np.abs(ours - theirs).max() < CACHE_TOLERANCE * np.abs(theirs).max(), name

    def truncate(self, length: int, *, expected: int) -> None:
        assert self.state.truncate(length) == expected
        assert self._expected.truncate(expected) == expected


def batched(ids: list[int], size: int) -> list[list[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def test_past_its_window_gemma_goes_on_and_back_and_on_again_as_numpy_does(open_model: Open) -> None:
    compiled = open_model(("gemma3", "compiled")).model
    followed = Followed(compiled, open_model(("gemma3", "numpy")).model)
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
    restored = compiled.make_state()
    restored.restore(len(followed.state), followed.state.export())
    followed.state = restored
    followed.feed(20, size=5, seed=7)
