"""A whole compiled model against numpy on the same weights, however the tokens are fed and whatever goes wrong.

Logits may be off by 1e-3 of their largest for each layer: the keys and values of each are rounded to 16 bits.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_file import Tensor, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import error, run_python
from tiny_model import Sizes, tiny_metadata, tiny_tensors

from turbospark_chat.models import program_runner
from turbospark_chat.models.kernel_team import KernelTeam
from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import Arithmetic, RunnableModel, load_model
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.packed_layer import CachePart, PackedLayer
from turbospark_chat.models.retention import GROWTH_STEP

N_VOCAB = 259  # odd
N_LAYERS = 2
SIZES = {"dim": 96, "ffn": 160, "heads": 6, "kv_heads": 2, "head_dim": 16, "layers": N_LAYERS}
ONE_LAYER = {"dim": 576, "ffn": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64, "layers": 1}
BOUND = N_LAYERS * 1e-3
PLENTY = 2**40


def tensors_of_size_1(kind: str, sizes: Sizes = SIZES, *, seed: int = 0) -> dict[str, Tensor]:
    """Random weights that give activations of about 1, as those of trained models do."""
    tensors = tiny_tensors(N_VOCAB, kind=kind, sizes=sizes, seed=seed)
    for _, shape, values in tensors.values():
        assert isinstance(values, np.ndarray)
        if len(shape) == 2:
            values /= values.std() * shape[1] ** 0.5
    return tensors


def write(folder: Path, tensors: dict[str, Tensor], sizes: Sizes = SIZES) -> Path:
    return write_gguf(folder / "tiny.gguf", tiny_metadata(context_length=4096, sizes=sizes), tensors)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiny"), tensors_of_size_1("Q8_0"))


@pytest.fixture(scope="module")
def model(path: Path, compiled: Arithmetic) -> RunnableModel:
    return load(path, compiled)


@pytest.fixture(scope="module")
def reference(path: Path) -> RunnableModel:
    return load(path, Arithmetic())


def load(path: Path, arithmetic: Arithmetic, *, n_threads: int | None = None) -> RunnableModel:
    if n_threads is not None:
        arithmetic = Arithmetic(arithmetic.library, n_threads)
    model = load_model(path, available_bytes=PLENTY, arithmetic=arithmetic).model
    assert model.arithmetic.startswith("numpy" if arithmetic.library is None else "compiled")
    return model


def some_ids(n: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def feed(model: RunnableModel, ids: Sequence[int], sizes: Sequence[int], state: Any = None) -> Array:
    """Feed ids in passes of these sizes, the rest in one; return the logits of all passes."""
    state = model.make_state() if state is None else state
    logits, start = [], 0
    for size in (*sizes, len(ids)):
        part = ids[start : start + size]
        if part:
            start += len(part)
            logits.append(model.forward(part, state, need_logits=True))
    return np.stack([row for row in logits if row is not None])


def check(found: Array, expected: Array, *, bound: float = BOUND) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert error(found, expected, abs(expected).max()) < bound


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_simple_format_gives_numpys_logits(kind: str, compiled: Arithmetic, tmp_path: Path) -> None:
    path = write(tmp_path, tensors_of_size_1(kind))
    ids, sizes = some_ids(80), [70, 1, 1, 5]
    check(feed(load(path, compiled), ids, sizes), feed(load(path, Arithmetic()), ids, sizes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_one_layer_of_the_default_models_size_is_within_1e_3(
    kind: str, seed: int, compiled: Arithmetic, tmp_path: Path
) -> None:
    path = write(tmp_path, tensors_of_size_1(kind, ONE_LAYER, seed=seed), ONE_LAYER)
    ids = some_ids(100, seed=seed)
    model, reference = load(path, compiled), load(path, Arithmetic())
    for sizes in ([], [90, 1, 1]):
        check(feed(model, ids, sizes), feed(reference, ids, sizes), bound=1e-3)


def test_in_one_pass_in_chunks_and_token_by_token_the_logits_are_numpys(
    model: RunnableModel, reference: RunnableModel
) -> None:
    ids = some_ids(150)
    for sizes in ([], [MAX_TOKENS], [1, 149], [2 * MAX_TOKENS], [33] * 4, [1] * 150):
        check(feed(model, ids, sizes), feed(reference, ids, sizes))


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_feeding_and_cutting_in_any_order_gives_the_logits_of_what_is_left(
    model: RunnableModel, reference: RunnableModel, steps: list[tuple[int, int]], seed: int
) -> None:
    state = model.make_state()
    ids: list[int] = []
    for number, (n_fed, n_cut) in enumerate(steps):
        ids += some_ids(n_fed, seed=seed + number)
        model.forward(ids[len(state) :], state, need_logits=number % 2 == 0)
        assert len(state) == len(ids)
        del ids[max(0, len(ids) - n_cut) :]
        assert state.truncate(len(state) - n_cut) == len(ids)
    check(feed(model, [7], [], state), feed(reference, [*ids, 7], []))


def test_growing_past_a_step_keeps_what_was_there(model: RunnableModel, reference: RunnableModel) -> None:
    ids = some_ids(2 * GROWTH_STEP + 30)
    sizes = [GROWTH_STEP - 1, 1, 1, GROWTH_STEP - 2, 3]
    state = model.make_state()
    check(feed(model, ids, sizes, state), feed(reference, ids, sizes))
    assert state.n_moves > N_LAYERS


def test_several_states_take_turns(model: RunnableModel) -> None:
    ids = [some_ids(30, seed=seed) for seed in range(3)]
    expected = [feed(model, row, [1] * 30) for row in ids]
    states = [model.make_state() for _ in ids]
    for position in range(30):
        for row, state, logits in zip(ids, states, expected, strict=True):
            found = model.forward([row[position]], state, need_logits=True)
            assert found is not None
            assert np.array_equal(found, logits[position])


@pytest.mark.parametrize("n_threads", [1, 3, 8])
def test_any_number_of_threads_gives_the_same_bits(
    n_threads: int, model: RunnableModel, compiled: Arithmetic, path: Path
) -> None:
    ids, sizes = some_ids(140), [70, 1, 1, 17]
    other = load(path, compiled, n_threads=n_threads)
    assert np.array_equal(feed(other, ids, sizes), feed(model, ids, sizes))


def test_without_logits_the_head_is_left_out_and_the_state_is_the_same(model: RunnableModel) -> None:
    ids = some_ids(80)
    state = model.make_state()
    for part in (ids[:70], ids[70:71], ids[71:79]):
        assert model.forward(part, state, need_logits=False) is None
    assert len(state) == 79
    found = model.forward(ids[79:], state, need_logits=True)
    assert np.array_equal(found, feed(model, ids, [70, 1, 8])[-1])


def test_the_head_is_computed_once_however_long_the_prompt(
    model: RunnableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    whole = program_runner.ProgramRunner.run

    def record(self: Any, *arguments: Any, n_instructions: int, **more: Any) -> None:
        runs.append(n_instructions)
        whole(self, *arguments, n_instructions=n_instructions, **more)

    monkeypatch.setattr(program_runner.ProgramRunner, "run", record)
    model.forward(some_ids(1), model.make_state(), need_logits=False)
    (without_head,) = runs
    for n_tokens, expected in (
        (1, [True]),
        (64, [True]),
        (65, [False, True]),
        (128, [False, True]),
        (129, [False, False, True]),
    ):
        runs.clear()
        model.forward(some_ids(n_tokens), model.make_state(), need_logits=True)
        assert [n > without_head for n in runs] == expected


@pytest.mark.parametrize("sizes", [[1], [2], [16, 1], [17], [70, 3], [1, 1, 5]], ids=str)
def test_each_token_is_scored_as_it_is_alone(model: RunnableModel, sizes: list[int]) -> None:
    ids, state, alone = some_ids(sum(sizes)), model.make_state(), model.make_state()
    rows = []
    for size in sizes:
        scored = model.forward_each(ids[len(state) : len(state) + size], state)
        assert scored.shape == (size, model.vocab_size)
        rows.append(scored)
    assert len(state) == len(ids)
    expected = np.array([model.forward([token], alone, need_logits=True) for token in ids])
    assert error(np.concatenate(rows), expected, np.abs(expected).max()) < BOUND


def test_scoring_each_leaves_what_scores_the_last_as_it_was(model: RunnableModel) -> None:
    ids = some_ids(9)
    scored, plain = model.make_state(), model.make_state()
    model.forward_each(ids[:8], scored)
    model.forward(ids[:8], plain, need_logits=False)
    found, expected = (model.forward(ids[8:], state, need_logits=True) for state in (scored, plain))
    assert np.array_equal(found, expected)


def test_logits_are_the_callers_own(model: RunnableModel) -> None:
    state = model.make_state()
    first = model.forward([1], state, need_logits=True)
    assert first is not None
    kept = first.copy()
    model.forward([2], state, need_logits=True)
    assert np.array_equal(first, kept)


# --- whatever goes wrong ---


class Failing:
    """Raises where the kernels would run, or where the cache would grow, on the n-th time."""

    def __init__(self, whole: Any, n: int, error: type[BaseException]) -> None:
        self._whole, self._left, self._error = whole, n, error

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._whole(*arguments, **named)


FAULTS = [
    pytest.param(KernelTeam, "run", 0, KeyboardInterrupt, id="interrupt before the first pass"),
    pytest.param(KernelTeam, "run", 2, KeyboardInterrupt, id="interrupt between passes"),
    pytest.param(PackedLayer, "copy", 0, MemoryError, id="no memory"),
    pytest.param(PackedLayer, "copy", 1, MemoryError, id="memory for one layer"),
    pytest.param(PackedLayer, "copy", 1, KeyboardInterrupt, id="interrupt while growing"),
    pytest.param(PackedKvCache, "capacity", 4, KeyboardInterrupt, id="interrupt while attaching"),
    pytest.param(PackedKvCache, "address", 9, KeyboardInterrupt, id="interrupt half attached"),
]


@pytest.mark.parametrize(("owner", "name", "n", "fault"), FAULTS)
def test_after_a_fault_nothing_of_any_state_is_lost(
    owner: type, name: str, n: int, fault: type[BaseException], model: RunnableModel
) -> None:
    ids = some_ids(2 * GROWTH_STEP)
    state, other = model.make_state(), model.make_state()
    feed(model, ids[:100], [], other)
    feed(model, ids[: GROWTH_STEP - 10], [], state)
    feed(model, ids[100:101], [], other)  # which the model is attached to now
    expected = feed(model, ids, [GROWTH_STEP - 10])[-1]
    expected_of_other = feed(model, ids[:102], [100, 1])[-1]
    feed(model, [5], [], other)
    other.truncate(101)
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(getattr(owner, name), n, fault)
        patch.setattr(owner, name, lambda *arguments, **named: failing(*arguments, **named))
        with pytest.raises(fault):
            model.forward(ids[GROWTH_STEP - 10 :], state, need_logits=True)
    assert (len(state), len(other)) == (GROWTH_STEP - 10, 101)
    assert np.array_equal(model.forward([ids[101]], other, need_logits=True), expected_of_other)  # type: ignore[arg-type]
    assert np.array_equal(feed(model, ids[GROWTH_STEP - 10 :], [], state)[-1], expected)


def test_an_interrupt_right_after_a_move_is_told_to_the_program(
    model: RunnableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between two steps of `reserve` nothing may be true that the next pass does not know of.
    state = model.make_state()
    ids = some_ids(GROWTH_STEP + 1)
    expected = feed(model, ids, [GROWTH_STEP])[-1]
    feed(model, ids[:GROWTH_STEP], [], state)
    addresses = state.address(0, CachePart.KEYS)

    class Interrupting(list[Any]):
        def __setitem__(self, index: Any, value: Any) -> None:
            super().__setitem__(index, value)
            raise KeyboardInterrupt

    monkeypatch.setattr(state, "_layers", Interrupting(state._layers))
    n_moves = state.n_moves
    with pytest.raises(KeyboardInterrupt):
        state.reserve(GROWTH_STEP + 1)
    assert state.address(0, CachePart.KEYS) != addresses
    assert state.n_moves > n_moves
    monkeypatch.setattr(state, "_layers", list(state._layers))
    assert np.array_equal(feed(model, ids[GROWTH_STEP:], [], state)[-1], expected)


# --- damaged weights ---


TENSORS = [
    "token_embd.weight", "output_norm.weight",
    *(f"blk.0.{name}.weight" for name in (
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"
    )),
]  # fmt: skip


@pytest.mark.parametrize("sizes", [[1] * 6, [6]], ids=["one", "many"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", TENSORS)
def test_a_weight_that_is_no_number_shows_in_the_logits(
    name: str, value: float, sizes: list[int], compiled: Arithmetic, tmp_path: Path
) -> None:
    tensors = tensors_of_size_1("F32")
    values = tensors[name][2]
    assert isinstance(values, np.ndarray)
    values[..., 3] = value
    model = load(write(tmp_path, tensors), compiled)
    assert not np.isfinite(feed(model, some_ids(6), sizes)[-1]).all()


IN_A_CHILD = """
import os, sys
from pathlib import Path
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.errors import ForkedEngineError
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import Arithmetic, load_model
from turbospark_chat.models.runner import Runner
from turbospark_chat.settings import Locations

arithmetic = Arithmetic(KernelLibrary(Locations.of_user().kernels), 3)
loaded = load_model(Path(sys.argv[1]), available_bytes=10**9, arithmetic=arithmetic)
runner = Runner(loaded.model, KvPrefix)
before = runner.produce_chunk([1, 2, 3], 0, need_logits=True)
child = os.fork()
if child == 0:
    try:
        runner.produce(4, 3)
    except ForkedEngineError:
        os._exit(42)
    os._exit(1)
_, status = os.waitpid(child, 0)
again = runner.produce_chunk([1, 2, 3], 0, need_logits=True)
print(os.waitstatus_to_exitcode(status), (before == again).all())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_its_parent_goes_on(path: Path) -> None:
    done = run_python(IN_A_CHILD, str(path))
    assert (done.stdout, done.stderr) == ("42 True\n", "")
