"""Whether a state is that of its ids: what is found where it is not, and how far apart sound states may be."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashModel, RecurrentModel
from numpy.typing import NDArray
from sessions import NEVER, CancelAfter
from tiny_model import load_tiny_model

from turbospark_chat.models.loader import Arithmetic, load_model
from turbospark_chat.models.state import Model, State
from turbospark_chat.models.verification import (
    CACHE_TOLERANCE,
    LOGIT_TOLERANCE,
    Verification,
    verify_state,
)

IDS = tuple((7 * at * at + 3 * at) % 89 for at in range(150))
OTHER_ID = 91  # not among them
ALL_KINDS = ("full", "recurrent", "numpy", "compiled")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, compiled: Arithmetic) -> Mapping[str, Model[Any]]:
    """Return a model of each kind; of those that only hash, and of a tiny one in both arithmetics."""
    return {
        "full": HashModel(),
        "window": HashModel(window=4),
        "recurrent": RecurrentModel(marks=True),
        "numpy": load_tiny_model(tmp_path_factory.mktemp("numpy")).model,
        "compiled": load_tiny_model(tmp_path_factory.mktemp("compiled"), compiled).model,
    }


@pytest.fixture(params=ALL_KINDS)
def model(request: pytest.FixtureRequest, models: Mapping[str, Model[Any]]) -> Model[Any]:
    """Return a model whose state holds something of every id that was fed."""
    return models[request.param]


def feed(model: Model[Any], ids: Sequence[int], state: State | None = None) -> Any:
    """Feed ids by one, by two, by three, and so on, to a state or a new one."""
    state = model.make_state() if state is None else state
    start, size = 0, 1
    while start < len(ids):
        model.forward(ids[start : start + size], state, need_logits=True)
        start, size = start + size, size + 1
    return state


def verify(model: Model[Any], ids: Sequence[int], live: State) -> Verification:
    found = verify_state(model, ids, live, cancel=NEVER)
    assert found is not None
    return found


def snapshot(state: State) -> tuple[int, dict[str, NDArray[Any]]]:
    return len(state), {name: array.copy() for name, array in state.export().items()}


def is_as_before(state: State, before: tuple[int, dict[str, NDArray[Any]]]) -> bool:
    length, arrays = snapshot(state)
    is_same = all(np.array_equal(array, before[1][name]) for name, array in arrays.items())
    return length == before[0] and arrays.keys() == before[1].keys() and is_same


@pytest.mark.parametrize("kind", [*ALL_KINDS, "window"])
@pytest.mark.parametrize("n_ids", [0, 1, 2, 64, 65, len(IDS)])
def test_a_state_that_was_fed_its_ids_is_sound_and_stays_as_it_is(
    kind: str, n_ids: int, models: Mapping[str, Model[Any]]
) -> None:
    model = models[kind]
    live = feed(model, IDS[:n_ids])
    before = snapshot(live)
    found = verify(model, IDS[:n_ids], live)
    assert found.is_sound and found.is_same_token
    assert (found.n_ids, found.n_positions) == (n_ids, n_ids)
    assert is_as_before(live, before)


def test_a_state_that_went_back_and_on_is_sound(model: Model[Any]) -> None:
    live = feed(model, IDS[:90])
    live.mark()
    feed(model, [OTHER_ID] * 20, live)
    assert live.truncate(90) == 90
    feed(model, IDS[90:], live)
    assert verify(model, IDS, live).is_sound


@pytest.mark.parametrize("position", [0, 1, 63, 64, 100, 148, 149])
def test_one_wrong_id_is_found_wherever_it_is(model: Model[Any], position: int) -> None:
    live = feed(model, [*IDS[:position], OTHER_ID, *IDS[position + 1 :]])
    assert not verify(model, IDS, live).is_sound


@pytest.mark.parametrize("position", [0, 63, 100, 148])
def test_two_ids_in_each_others_place_are_found(model: Model[Any], position: int) -> None:
    one, other = IDS[position : position + 2]
    live = feed(model, [*IDS[:position], other, one, *IDS[position + 2 :]])
    assert not verify(model, IDS, live).is_sound


@pytest.mark.parametrize("n_ids", [len(IDS) - 1, len(IDS) + 1, 0])
def test_a_record_that_is_too_short_or_too_long_is_found(model: Model[Any], n_ids: int) -> None:
    live = feed(model, IDS)
    found = verify(model, (*IDS, OTHER_ID)[:n_ids], live)
    assert (found.n_ids, found.n_positions, found.is_sound) == (n_ids, len(IDS), False)


def test_a_window_hides_only_what_no_token_sees_any_more(models: Mapping[str, Model[Any]]) -> None:
    model = models["window"]  # of 4
    is_sound = [
        verify(model, IDS, feed(model, [*IDS[:at], OTHER_ID, *IDS[at + 1 :]])).is_sound
        for at in range(140, 150)
    ]
    assert is_sound == [True] * 6 + [False] * 4


# What is done to a row of an array, by the type of its numbers.
ALTER: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "float32": lambda row: row * np.float32(1.5),
    "int16": lambda row: row // 2,
}


def altered(model: Model[Any], live: State, name: str, position: int, alter: Callable[..., Any]) -> Any:
    """Return a copy of a state of keys and values (KV, S, ...) in which one position of an array is another."""
    length, arrays = snapshot(live)
    arrays[name][:, position] = alter(arrays[name][:, position])
    other = model.make_state()
    other.restore(length, arrays)
    return other


@pytest.mark.parametrize("kind", ["numpy", "compiled"])
@pytest.mark.parametrize("position", [0, 70, 149])
def test_one_altered_row_of_any_array_is_found_and_named(
    kind: str, position: int, models: Mapping[str, Model[Any]]
) -> None:
    model = models[kind]
    live = feed(model, IDS)
    for name, array in live.export().items():
        other = altered(model, live, name, position, ALTER[str(array.dtype)])
        found = verify(model, IDS, other)
        assert not found.is_sound
        assert found.differs_most == name.replace("key scales", "keys").replace("value scales", "values")


@pytest.mark.parametrize("kind", ["numpy", "compiled"])
def test_what_is_no_number_is_found(kind: str, models: Mapping[str, Model[Any]]) -> None:
    model = models[kind]
    live = feed(model, IDS)
    name = next(name for name, array in live.export().items() if array.dtype == np.float32)
    with np.errstate(invalid="ignore"):
        found = verify(model, IDS, altered(model, live, name, 5, lambda row: row * np.nan))
    assert (found.is_sound, found.cache_difference) == (False, math.inf)


def test_what_hardly_changes_a_number_but_all_that_follows_is_found_by_the_logits() -> None:
    model = RecurrentModel()
    live = feed(model, IDS)
    live.value += 1
    found = verify(model, IDS, live)
    assert found.cache_difference < CACHE_TOLERANCE
    assert (found.is_sound, found.is_same_token, found.logit_difference) == (False, False, 1.0)


def test_any_number_where_there_is_to_be_none_but_zeros_is_found() -> None:
    model = HashModel()
    found = verify(model, [0], feed(model, [5]))
    assert (found.is_sound, found.cache_difference, found.differs_most) == (False, math.inf, "entries")


@pytest.mark.parametrize(
    ("changes", "is_sound"),
    [
        ({}, True),
        ({"cache_difference": CACHE_TOLERANCE, "logit_difference": LOGIT_TOLERANCE}, True),
        ({"is_same_token": False}, True),  # two may be equally likely
        ({"cache_difference": CACHE_TOLERANCE * 1.01}, False),
        ({"logit_difference": LOGIT_TOLERANCE * 1.01}, False),
        ({"n_ids": 9}, False),
        ({"n_ids": 11}, False),
    ],
)
def test_what_is_sound(changes: dict[str, Any], is_sound: bool) -> None:
    values: dict[str, Any] = {
        "n_ids": 10, "n_positions": 10, "cache_difference": 0.0, "differs_most": "", "logit_difference": 0.0,
        "is_same_token": True,
    }  # fmt: skip
    assert Verification(**values | changes).is_sound is is_sound


def test_the_last_position_counts_for_the_logits_too(models: Mapping[str, Model[Any]]) -> None:
    model = models["numpy"]
    found = verify(model, IDS, feed(model, [*IDS[:-1], OTHER_ID]))
    assert found.logit_difference > LOGIT_TOLERANCE


@pytest.mark.parametrize("n_looks", [0, 1, 2])
def test_a_cancelled_verification_is_none_and_computes_no_further(n_looks: int) -> None:
    model = HashModel()
    live = feed(model, IDS)
    before, n_before = snapshot(live), model.evaluated
    assert verify_state(model, IDS, live, cancel=CancelAfter(n_looks)) is None
    assert model.evaluated - n_before == 64 * n_looks
    assert is_as_before(live, before)


@pytest.mark.parametrize("boundary", ["before a chunk", "after its write", "after its commit"])
# Three chunks of the ids, and in two states the token after them.
@pytest.mark.parametrize("n_passed", range(5))
def test_what_fails_leaves_the_live_state_as_it_is(boundary: str, n_passed: int) -> None:
    model = HashModel()
    live = feed(model, IDS)
    before, passed = snapshot(live), []

    def fail(name: str) -> None:
        passed.append(name)
        if passed.count(boundary) > n_passed:
            raise MemoryError

    model.on_boundary = fail
    with pytest.raises(MemoryError):
        verify(model, IDS, live)
    assert is_as_before(live, before)


def test_progress_counts_the_ids() -> None:
    model, seen = HashModel(), []
    live = feed(model, IDS)
    verify_state(model, IDS, live, cancel=NEVER, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(64, 150), (128, 150), (150, 150)]


@pytest.mark.weights
@pytest.mark.parametrize("arithmetic", ["numpy", "compiled"])
def test_on_the_default_model_sound_and_wrong_states_lie_far_on_both_sides_of_the_bounds(
    arithmetic: str, smollm2_path: Path, compiled: Arithmetic
) -> None:
    chosen = compiled if arithmetic == "compiled" else Arithmetic()
    model = load_model(smollm2_path, available_bytes=2**40, arithmetic=chosen).model
    ids = [1, *((37 * at * at + 11 * at) % 40_000 + 20 for at in range(1, 200))]
    live = feed(model, ids[:150])
    live.truncate(100)  # and on in other cuts than before
    feed(model, ids[100:], live)
    sound = verify(model, ids, live)
    wrong = [verify(model, [*ids[:at], 504, *ids[at + 1 :]], live) for at in (0, 199)]
    assert sound.is_sound and not any(found.is_sound for found in wrong)
    assert sound.cache_difference * 10 < CACHE_TOLERANCE < min(one.cache_difference for one in wrong) / 10
    assert sound.logit_difference * 5 < LOGIT_TOLERANCE < min(one.logit_difference for one in wrong)
