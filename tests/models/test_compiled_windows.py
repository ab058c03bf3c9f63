"""A compiled model whose layers see a window, far past it, against numpy on the same weights fed from nothing.

The tiny model is Gemma's: windows of 24 positions, all but the third layer's. Logits may be off by 1e-3 of their
largest for each layer: the keys and values of each are rounded to 16 bits.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_file import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import error
from tiny_model import tiny_metadata, tiny_tensors

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.models.kernel_team import KernelTeam
from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import Arithmetic, RunnableModel, load_model
from turbospark_chat.models.packed_layer import PackedLayer
from turbospark_chat.models.retention import GROWTH_STEP
from turbospark_chat.models.runner import Runner

N_VOCAB, N_LAYERS, WINDOW, SLACK = 259, 4, 24, 50
SIZES = {"dim": 96, "ffn": 160, "heads": 4, "kv_heads": 2, "head_dim": 32, "layers": N_LAYERS}
BOUND = N_LAYERS * 1e-3
CONTEXT = 4096


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = tiny_tensors(N_VOCAB, kind="Q8_0", sizes=SIZES, architecture="gemma3")
    for _, shape, values in tensors.values():
        assert isinstance(values, np.ndarray)
        if len(shape) == 2:
            values /= values.std() * shape[1] ** 0.5
    metadata = tiny_metadata(
        context_length=CONTEXT,
        sizes=SIZES,
        architecture="gemma3",
        gemma3__attention__key_length=SIZES["head_dim"],
        gemma3__attention__value_length=SIZES["head_dim"],
        gemma3__attention__sliding_window=WINDOW,
        gemma3__attention__sliding_window_pattern=3,
    )
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", metadata, tensors)


def load(path: Path, arithmetic: Arithmetic, *, slack: int = SLACK) -> RunnableModel:
    loaded = load_model(path, available_bytes=2**40, arithmetic=arithmetic, window_slack=slack)
    assert loaded.config.windows == (WINDOW, WINDOW, None, WINDOW)
    assert loaded.model.arithmetic.startswith("numpy" if arithmetic.library is None else "compiled")
    return loaded.model


@pytest.fixture(scope="module")
def model(path: Path, compiled: Arithmetic) -> RunnableModel:
    return load(path, compiled)


@pytest.fixture(scope="module")
def reference(path: Path) -> RunnableModel:
    return load(path, Arithmetic())


def some_ids(n: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def feed(model: RunnableModel, ids: Sequence[int], state: Any, *, size: int = MAX_TOKENS) -> Array:
    """Feed what the state lacks of ids, in passes of a size; return the last logits."""
    logits = None
    while len(state) < len(ids):
        logits = model.forward(ids[len(state) : len(state) + size], state, need_logits=True)
    assert logits is not None
    return logits


def check(found: Array, expected: Array) -> None:
    assert error(found, expected, abs(expected).max()) < BOUND


def check_state(state: Any, other: Any) -> None:
    """Check that two states hold the same for the next token, up to rounding."""
    one, two = dict(state.as_floats()), dict(other.as_floats())
    assert {name: array.shape for name, array in one.items()} == {
        name: array.shape for name, array in two.items()
    }
    assert all(error(one[name], two[name], abs(two[name]).max()) < 3 * BOUND for name in one)


@pytest.mark.parametrize("size", [1, 7, 33, MAX_TOKENS, 1000])
def test_far_past_the_window_the_logits_are_numpys_in_passes_of_any_size(
    size: int, model: RunnableModel, reference: RunnableModel
) -> None:
    ids = some_ids(600)
    state, cold = model.make_state(), reference.make_state()
    for length in (WINDOW, 100, 300, 600):
        check(feed(model, ids[:length], state, size=size), feed(reference, ids[:length], cold))
        check_state(state, cold)


def test_what_the_windows_no_longer_see_still_counts_by_way_of_the_layer_that_sees_everything(
    model: RunnableModel,
) -> None:
    ids = some_ids(400)
    one = feed(model, ids, model.make_state())
    assert error(feed(model, [*ids[:5], 7, *ids[6:]], model.make_state()), one, abs(one).max()) > BOUND


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "back", "truncate", "mark", "fork", "restore"]), st.integers(1, 300)
    ),
    min_size=1,
    max_size=10,
)


@settings(deadline=None, max_examples=30)
@given(steps=STEPS, slack=st.sampled_from([0, 1, SLACK, 400]))
def test_whatever_is_done_to_a_state_its_logits_are_those_of_its_ids(
    path: Path, compiled: Arithmetic, reference: RunnableModel, steps: list[tuple[str, int]], slack: int
) -> None:
    model = loaded_once(path, compiled, slack)
    state, ids = model.make_state(), list[int]()
    for number, (step, n) in enumerate(steps):
        match step:
            case "feed":
                ids += some_ids(n, seed=number)
                feed(model, ids, state)
            case "back":
                n_kept = state.truncate(len(ids) - n % (slack + 1))
                assert n_kept == max(len(ids) - n % (slack + 1), 0)
                del ids[n_kept:]
            case "truncate":
                reachable = state.reach(n)
                assert state.truncate(n) == len(state) == reachable
                del ids[reachable:]
            case "mark":
                state.mark()
            case "fork":
                state = state.fork(n)
                del ids[len(state) :]
            case "restore":
                restored = model.make_state()
                restored.restore(len(state), {name: np.array(a) for name, a in state.export().items()})
                state = restored
    ids.append(7)
    cold = reference.make_state()
    check(feed(model, ids, state), feed(reference, ids, cold))
    check_state(state, cold)


@cache
def loaded_once(path: Path, compiled: Arithmetic, slack: int) -> RunnableModel:
    return load(path, compiled, slack=slack)


def test_a_state_goes_on_from_a_checkpoint_its_windows_have_left_behind(
    model: RunnableModel, reference: RunnableModel
) -> None:
    ids, other = some_ids(700), some_ids(700, seed=1)
    state = model.make_state()
    feed(model, ids[:200], state)
    state.mark()
    feed(model, ids, state)
    assert state.truncate(500) == 200
    ids = [*ids[:200], *other[:400]]
    check(feed(model, ids, state), feed(reference, ids, reference.make_state()))


@pytest.mark.parametrize("slack", [0, 1, SLACK])
def test_the_same_prompt_again_evaluates_one_token(slack: int, path: Path, compiled: Arithmetic) -> None:
    # A8: and the next token is the same
    runner = Runner(loaded_once(path, compiled, slack), KvPrefix)
    ids = some_ids(700)
    logits = []
    for n_reused in (0, 699, 699):
        assert runner.try_reuse_prefix(ids) == n_reused
        logits.append(runner.produce_chunk(ids[n_reused:], n_reused, need_logits=True))
    assert all(found is not None for found in logits)
    check(logits[1], logits[0])  # type: ignore[arg-type]
    assert np.array_equal(logits[2], logits[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("n_kept", [0, 100, 600, 640, 669])
def test_a_prompt_that_parts_ways_is_answered_as_from_cold(
    n_kept: int, model: RunnableModel, reference: RunnableModel
) -> None:
    # case 5: nothing is reused that the windows have dropped, and the answer is right either way
    runner = Runner(model, KvPrefix)
    ids, new = some_ids(700), some_ids(30, seed=2)
    runner.try_reuse_prefix(ids)
    for start in range(0, 700, 50):
        runner.produce_chunk(ids[start : start + 50], start, need_logits=start == 650)
    prompt = [*ids[:n_kept], N_VOCAB - 1, *new]
    n_reused = runner.try_reuse_prefix(prompt)
    assert n_reused in (0, n_kept)
    assert n_reused == n_kept or n_kept < 700 - SLACK
    logits = runner.produce_chunk(prompt[n_reused:], n_reused, need_logits=True)
    assert logits is not None
    check(logits, feed(reference, prompt, reference.make_state()))


class Failing:
    """Raises on the n-th time, but does what it stands for until then."""

    def __init__(self, whole: Any, n: int, error: type[BaseException]) -> None:
        self._whole, self._left, self._error = whole, n, error

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._whole(*arguments, **named)


@pytest.mark.parametrize(
    ("owner", "name", "n"),
    [(KernelTeam, "run", 0), (KernelTeam, "run", 3), *((PackedLayer, "copy", n) for n in range(N_LAYERS))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("fault", [MemoryError, KeyboardInterrupt])
def test_a_pass_that_fails_leaves_the_state_and_its_slack_as_they_were(
    owner: type, name: str, n: int, fault: type[BaseException], model: RunnableModel, reference: RunnableModel
) -> None:
    ids = some_ids(3 * GROWTH_STEP)
    n_before = 2 * GROWTH_STEP
    for n_back in (0, SLACK):
        state = model.make_state()
        feed(model, ids[:n_before], state)
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(getattr(owner, name), n, fault)
            patch.setattr(owner, name, lambda *arguments, **named: failing(*arguments, **named))  # noqa: B023
            with pytest.raises(fault):
                model.forward(ids[n_before:], state, need_logits=True)
        assert len(state) == n_before
        assert state.truncate(n_before - n_back) == n_before - n_back
        check(feed(model, ids, state), feed(reference, ids, reference.make_state()))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(
    n_threads: int, model: RunnableModel, compiled: Arithmetic, path: Path
) -> None:
    ids = some_ids(300)
    other = load(path, Arithmetic(compiled.library, n_threads))
    for size in (1, 40):
        found, expected = (feed(each, ids, each.make_state(), size=size) for each in (other, model))
        assert np.array_equal(found, expected)


def test_a_window_bounds_the_memory_of_its_layers(model: RunnableModel) -> None:
    state, ids = model.make_state(), some_ids(1500)
    sizes = []
    for length in range(600, 1501, 300):
        feed(model, ids[:length], state)
        sizes.append(state.n_bytes - state.capacity(2) * model.row_bytes)
    assert set(sizes) == {sizes[0]}
