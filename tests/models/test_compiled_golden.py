"""Compiled kernels on the default model's real weights against numpy: every logit, and what greedy decoding takes."""

import json
from pathlib import Path

import numpy as np
import pytest

from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import Arithmetic, RunnableModel, load_model

pytestmark = pytest.mark.weights

TOLERANCE = 0.02  # of a logit: keys and values of 30 layers are rounded to 16 bits
PROMPTS = [
    row["ids"] for row in json.loads((Path(__file__).parents[1] / "golden/logits_smollm2.json").read_text())
]
REPEATED = [504] * 100  # one word over and over, which a model spreads its attention over evenly


@pytest.fixture(scope="module")
def model(smollm2_path: Path, compiled: Arithmetic) -> RunnableModel:
    return load_model(smollm2_path, available_bytes=2**40, arithmetic=compiled).model


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> RunnableModel:
    return load_model(smollm2_path, available_bytes=2**40).model


def last_logits(model: RunnableModel, *passes: list[int]) -> Array:
    state = model.make_state()
    for ids in passes:
        logits = model.forward(ids, state, need_logits=True)
    assert logits is not None
    return logits


@pytest.mark.parametrize("ids", [*PROMPTS, REPEATED], ids=lambda ids: f"{len(ids)} tokens")
def test_every_logit_is_numpys_and_so_is_the_choice_between_any_two_further_apart(
    ids: list[int], model: RunnableModel, reference: RunnableModel
) -> None:
    expected = last_logits(reference, ids)
    for passes in ([ids], [ids[:-4], ids[-4:-2], ids[-2:-1], ids[-1:]]):
        logits = last_logits(model, *passes)
        assert np.abs(logits - expected).max() < TOLERANCE
        assert expected[np.argmax(logits)] > expected.max() - TOLERANCE
