"""The real weights of every catalogue model, in both arithmetics, against recorded numbers of another engine."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.models.loader import Arithmetic, LoadedModel, load_model
from turbospark_chat.models.runner import Runner

pytestmark = pytest.mark.weights

TOLERANCE = 0.02  # between engines whose rounding differs


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
MODELS = [(model, arithmetic) for model in ROWS for arithmetic in ("numpy", "compiled")]


def rows(is_wanted: Callable[[Row], bool] = lambda row: True) -> pytest.MarkDecorator:
    """Parametrize a test by each model in each arithmetic, and the rows recorded of it."""
    params = [
        pytest.param(which, row, id=f"{'-'.join(which)}-{row.text[:24]}")
        for which in MODELS
        for row in ROWS[which[0]]
        if is_wanted(row)
    ]
    return pytest.mark.parametrize(("loaded", "row"), params, indirect=["loaded"])


def is_short(row: Row) -> bool:
    return len(row.ids) < 100


@pytest.fixture(scope="module")
def opened() -> dict[tuple[str, str], LoadedModel]:
    """Return the models loaded so far: each once, though its rows are parameters of their own."""
    return {}


@pytest.fixture
def loaded(
    request: pytest.FixtureRequest, compiled: Arithmetic, opened: dict[tuple[str, str], LoadedModel]
) -> LoadedModel:
    name, arithmetic = request.param
    if request.param not in opened:
        path = request.getfixturevalue(f"{name}_path")
        choice = {"numpy": Arithmetic(), "compiled": compiled}[arithmetic]
        opened[request.param] = load_model(path, available_bytes=2**40, arithmetic=choice)
    model = opened[request.param]
    assert model.model.arithmetic.startswith(arithmetic)
    return model


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


@rows()
def test_text_gives_the_ids(row: Row, loaded: LoadedModel) -> None:
    encoded = loaded.tokenizer.encode(row.text, parse_special=True)
    assert loaded.tokenizer.with_bos(encoded) == row.ids


@pytest.mark.parametrize("sizes", [[1000], [7, 20, 100, 1000]], ids=["one chunk", "several chunks"])
@rows()
def test_prompt_in_chunks_gives_the_logits(row: Row, sizes: list[int], runner: Runner[KvPrefix, Any]) -> None:
    logits = None
    for position, chunk in chunks(row.ids, iter(sizes)):
        is_last = position + len(chunk) == len(row.ids)
        logits = runner.produce_chunk(chunk, position, need_logits=is_last)
    check_last_logits(logits, row)


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


@rows(lambda row: not is_short(row))
def test_long_prompt_ending_token_by_token_gives_the_logits(row: Row, runner: Runner[KvPrefix, Any]) -> None:
    for position, chunk in chunks(row.ids, chain([len(row.ids) - 20], repeat(1))):
        logits = runner.produce_chunk(chunk, position, need_logits=True)
    check_last_logits(logits, row)


@rows()
def test_greedy_decoding_gives_the_ids(row: Row, runner: Runner[KvPrefix, Any], loaded: LoadedModel) -> None:
    logits = runner.produce_chunk(row.ids, 0, need_logits=True)
    assert logits is not None
    for position, token in enumerate(row.greedy, start=len(row.ids)):
        assert logits[token] >= logits.max() - TOLERANCE  # of two candidates this close, either
        logits = runner.produce(token, position)
    assert loaded.tokenizer.decode(row.greedy, show_control=True) == row.greedy_text
