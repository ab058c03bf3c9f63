"""The architecture, and sliding windows under it, against a plain computation of whole sequences with masks."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gemma3_reference import Floats, Gemma3Reference, Gemma3Sizes
from gguf_file import Tensor, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models import retention
from turbospark_chat.models.config import ModelConfig, read_config
from turbospark_chat.models.gemma3 import Gemma3
from turbospark_chat.models.gemma3_weights import check_weights, load_weights
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.layers import Array
from turbospark_chat.models.loader import RunnableModel, load_model
from turbospark_chat.models.numpy_model import NumpyModel
from turbospark_chat.models.runner import Runner

N_VOCAB, FFN = 40, 64
SIZES = Gemma3Sizes(
    n_layers=6, dim=48, n_heads=4, n_kv_heads=2, head_dim=16,  # four heads of 16 are not 48, as in F6
    window=5, pattern=3, global_scale=8.0,
)  # fmt: skip
NORMS = [
    "output_norm", "blk.1.attn_norm", "blk.1.attn_q_norm", "blk.2.attn_k_norm", "blk.1.post_attention_norm",
    "blk.2.ffn_norm", "blk.5.post_ffw_norm",
]  # fmt: skip
PROMPT = [3, 17, 3, 39, 0, 8, 22, 22, 5, 31, 12, 1]  # more than two windows


# --- a Hugging Face model, and what the converter makes of it ---


def hf_weights(sizes: Gemma3Sizes = SIZES, seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    q_dim, kv_dim, dim = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim, sizes.dim
    matrices = {
        "attn_q": (q_dim, dim), "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim), "attn_output": (dim, q_dim),
        "ffn_gate": (FFN, dim), "ffn_up": (FFN, dim), "ffn_down": (dim, FFN),
    }  # fmt: skip
    norms = {"attn_q_norm": sizes.head_dim, "attn_k_norm": sizes.head_dim}
    norms |= dict.fromkeys(["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"], dim)
    weights = {
        "token_embd.weight": rng.normal(0, 0.3, (N_VOCAB, dim)),
        "output_norm.weight": rng.normal(0, 0.3, dim),
    }
    for block in (f"blk.{layer}." for layer in range(sizes.n_layers)):
        weights |= {
            f"{block}{name}.weight": rng.normal(0, shape[-1] ** -0.5, shape)
            for name, shape in matrices.items()
        }
        weights |= {f"{block}{name}.weight": rng.normal(0, 0.3, length) for name, length in norms.items()}
    return {name: values.astype(np.float32).astype(float) for name, values in weights.items()}


def convert(weights: dict[str, Floats]) -> dict[str, Tensor]:
    """Return a GGUF file's tensors: a norm is what a row is multiplied with."""
    return {
        name: ("F32", values.shape, (values + (values.ndim == 1)).astype(np.float32))
        for name, values in weights.items()
    }


def config_of(sizes: Gemma3Sizes = SIZES, **changes: Any) -> ModelConfig:
    numbers = {
        "block_count": sizes.n_layers, "context_length": 4096, "embedding_length": sizes.dim,
        "feed_forward_length": FFN, "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads, "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim, "attention.layer_norm_rms_epsilon": sizes.eps,
        "rope.freq_base": sizes.global_theta, "rope.scaling.type": "linear",
        "rope.scaling.factor": sizes.global_scale, "attention.sliding_window": sizes.window,
        "attention.sliding_window_pattern": sizes.pattern,
    } | changes  # fmt: skip
    named = {f"gemma3.{key}": value for key, value in numbers.items()}
    return read_config({"general.architecture": "gemma3", **named}, Path("model.gguf"))


Load = Callable[..., NumpyModel]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = tmp_path_factory.mktemp("gemma3")

    def write_and_load(tensors: dict[str, Tensor], config: ModelConfig, *, slack: int = 512) -> NumpyModel:
        with GgufFile.open(write_gguf(folder / "model.gguf", {}, tensors)) as file:
            weights = load_weights(file, config, file.load)
        return NumpyModel(Gemma3(config, weights, vocab_size=len(weights.token_embd)), window_slack=slack)

    return write_and_load


def logits_of(model: NumpyModel, token_ids: Sequence[int]) -> Array:
    logits = model.forward(token_ids, model.make_state(), need_logits=True)
    assert logits is not None
    return logits


# --- the arithmetic ---


def test_a_converted_file_gives_the_logits_of_the_model_as_trained(load: Load) -> None:  # F3, F6, F10
    weights = hf_weights()
    model, reference = load(convert(weights), config_of()), Gemma3Reference(SIZES, weights)
    assert model.vocab_size == N_VOCAB
    for n_tokens in (1, 5, 6, len(PROMPT)):
        expected = reference.logits(PROMPT[:n_tokens])[0]
        assert logits_of(model, PROMPT[:n_tokens]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", NORMS)
def test_one_is_added_to_each_norm_by_the_converter_and_no_second_time(
    name: str, load: Load
) -> None:  # F3, F4
    weights = hf_weights()
    expected = Gemma3Reference(SIZES, weights).logits(PROMPT)[0]
    kind, shape, values = convert(weights)[f"{name}.weight"]
    assert isinstance(values, np.ndarray)
    for added in (-1, 1):
        wrong = convert(weights) | {f"{name}.weight": (kind, shape, values + np.float32(added))}
        assert np.abs(logits_of(load(wrong, config_of()), PROMPT) - expected).max() > 0.01


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"rope.freq_base": 1e4}, id="F10 global layers turned as local ones"),
        pytest.param({"rope.freq_base_swa": 1e6}, id="F10 local layers turned as global ones"),
        pytest.param({"rope.scaling.factor": 1.0}, id="F10 positions of global layers not divided"),
        pytest.param({"attention.sliding_window": 6}, id="window"),
        pytest.param({"attention.sliding_window": 0}, id="no window"),
        pytest.param({"attention.sliding_window_pattern": 2}, id="pattern"),
    ],
)  # fmt: skip
def test_each_number_matters(change: dict[str, Any], load: Load) -> None:
    weights = hf_weights()
    expected = Gemma3Reference(SIZES, weights).logits(PROMPT)[0]
    model = load(convert(weights), config_of(**change))
    assert np.abs(logits_of(model, PROMPT) - expected).max() > 1e-3


def test_only_global_layers_have_their_positions_divided() -> None:  # F10
    without_weights: Gemma3[Array] = Gemma3(config_of(), None, vocab_size=N_VOCAB)  # type: ignore[arg-type]
    local, over_all = without_weights.frequencies
    assert (80 * local[0], 80 * over_all[0]) == (80.0, 10.0)
    assert local[-1] == pytest.approx(1e4 ** (-14 / 16))
    assert over_all[-1] == pytest.approx(1e6 ** (-14 / 16) / 8)


def test_the_largest_size_divides_its_scores_by_the_width_of_a_share_of_the_model(load: Load) -> None:
    sizes = replace(SIZES, n_layers=62, score_dim=SIZES.dim // SIZES.n_heads)
    weights = hf_weights(sizes)
    model = load(convert(weights), config_of(sizes))
    assert logits_of(model, PROMPT) == pytest.approx(
        Gemma3Reference(sizes, weights).logits(PROMPT)[0], abs=2e-3
    )


def test_a_head_of_its_own_is_used(load: Load) -> None:  # F7
    weights = hf_weights()
    weights["output.weight"] = np.random.default_rng(5).normal(0, 1, (N_VOCAB, SIZES.dim)).astype(np.float32)
    expected = Gemma3Reference(SIZES, weights).logits(PROMPT)[0]
    assert logits_of(load(convert(weights), config_of()), PROMPT) == pytest.approx(expected, abs=1e-4)


# --- the tensors ---


class Described:
    """A file of which only the tensors' shapes may be looked at."""

    path = Path("model.gguf")

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {name: SimpleNamespace(shape=shape) for name, (_, shape, _) in tensors.items()}

    def load(self, name: str) -> Array:
        raise AssertionError(f"{name} was loaded")


@pytest.mark.parametrize(
    "name", [name for name in hf_weights() if name.startswith(("blk.1", "token", "output"))]
)
def test_missing_tensor_is_named(name: str) -> None:
    tensors = convert(hf_weights())
    check_weights(Described(tensors), config_of())
    del tensors[name]
    with pytest.raises(ModelFileError, match=f"`{name}` is missing; the `gemma3` architecture needs it"):
        check_weights(Described(tensors), config_of())


def test_tensors_of_another_shape_and_those_it_does_not_use_are_refused() -> None:
    tensors = convert(hf_weights())
    narrow = tensors | {"blk.0.attn_q_norm.weight": tensors["output_norm.weight"]}
    with pytest.raises(
        ModelFileError, match=r"`blk\.0\.attn_q_norm\.weight` has shape \(48,\), expected \(16,\)"
    ):
        check_weights(Described(narrow), config_of())
    extra = tensors | {"rope_freqs.weight": tensors["output_norm.weight"]}
    with pytest.raises(UnsupportedModelError, match="`rope_freqs.weight` has no part in the `gemma3`"):
        check_weights(Described(extra), config_of())


# --- windows: however a sequence is fed, cut and gone on with ---

SMALL = replace(SIZES, n_layers=3)
LONG = np.random.default_rng(7).integers(0, N_VOCAB, 150).tolist()
SLACK = 6


@pytest.fixture(scope="module")
def tiny(load: Load) -> NumpyModel:
    return load(convert(hf_weights(SMALL)), config_of(SMALL), slack=SLACK)


@pytest.fixture(scope="module")
def reference() -> Gemma3Reference:
    return Gemma3Reference(SMALL, hf_weights(SMALL))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows be dropped as soon as they can."""
    monkeypatch.setattr(retention, "GROWTH_STEP", 1)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("size", [1, 3, 64, 150])
def test_every_position_far_past_the_window_has_its_logits_whatever_the_chunks(
    size: int, tiny: NumpyModel, reference: Gemma3Reference
) -> None:
    expected = reference.logits(LONG, range(len(LONG)))
    state = tiny.make_state()
    for start in range(0, len(LONG), size):
        logits = tiny.forward(LONG[start : start + size], state, need_logits=True)
        assert logits == pytest.approx(expected[len(state) - 1], abs=2e-4)


STEPS = st.tuples(
    st.sampled_from(["new", "same", "edited", "branch", "again"]),
    st.integers(1, 30),  # ids added
    st.integers(0, 60),  # positions gone back
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, min_size=1, max_size=6), sizes=st.sampled_from([[1], [7], [64], [5, 1, 30]]))
def test_the_runner_reuses_what_it_can_of_any_prompt_and_every_reply_is_a_cold_ones(
    steps: list[tuple[str, int, int]], sizes: list[int], tiny: NumpyModel, reference: Gemma3Reference
) -> None:  # 2, 5, A8, A12, A13
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "GROWTH_STEP", 4)
        runner = Runner(tiny, KvPrefix)
        prompt: list[int] = [1]
        for number, (kind, n_added, n_back) in enumerate(steps):
            added = np.random.default_rng(number).integers(0, N_VOCAB, n_added).tolist()
            if kind == "new":
                prompt = added
            elif kind == "edited":
                prompt = [*prompt[: max(len(prompt) - n_back, 1)], *added]
            elif kind == "branch":
                prompt = [*prompt[: max(len(prompt) // 2, 1)], *added]
            elif kind == "same":
                prompt = [*prompt, *added]
            held, was = runner.record.ids, len(runner.state)
            reused = runner.try_reuse_prefix(prompt)
            n_common = next(
                (at for at, (a, b) in enumerate(zip(held, prompt[:-1], strict=False)) if a != b),
                min(len(held), len(prompt) - 1),
            )
            assert reused <= n_common
            if was - n_common <= 1:  # A8: what was fed last can be fed again, and the rest is there
                assert reused == n_common
            position, logits = reused, None
            while position < len(prompt):
                chunk = prompt[position : position + sizes[position % len(sizes)]]
                position += len(chunk)
                logits = runner.produce_chunk(
                    chunk, position - len(chunk), need_logits=position == len(prompt)
                )
            assert logits == pytest.approx(reference.logits(prompt)[0], abs=2e-4)


# --- the real weights ---


@pytest.fixture
def dropped_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows be dropped after a quarter of the positions that it takes otherwise."""
    monkeypatch.setattr(retention, "GROWTH_STEP", 64)


@pytest.fixture(scope="module")
def real(gemma3_path: Path) -> RunnableModel:
    """Return it in numpy; test_golden compares the kernels with that."""
    return load_model(gemma3_path, available_bytes=2**40, window_slack=64).model


def long_prompt(n_tokens: int) -> list[int]:
    rows = json.loads((Path(__file__).parents[1] / "golden" / "tokens_gemma3.json").read_text())
    token_ids = [token_id for row in rows for token_id in row["ids"]]
    return [2, *(token_ids * (n_tokens // len(token_ids) + 1))][:n_tokens]


PROMPT_LONG = long_prompt(860)
OTHER = PROMPT_LONG[100:120]


@pytest.fixture(scope="module")
def expected(gemma3_path: Path) -> dict[str, Floats]:
    sizes = Gemma3Sizes(n_layers=18, dim=640, n_heads=4, n_kv_heads=1, head_dim=256, window=512)
    with GgufFile.open(gemma3_path) as file:
        weights = {name: file.load(name) for name in file.tensors}
    reference = Gemma3Reference(
        sizes, {name: values - 1 if values.ndim == 1 else values for name, values in weights.items()}
    )
    names = {"near the mark": 569, "before": 849, "last": 859}
    return dict(zip(names, reference.logits(PROMPT_LONG, list(names.values())), strict=True))


def feed(model: Any, state: Any, token_ids: Sequence[int], size: int) -> Array:
    for start in range(0, len(token_ids), size):
        chunk = token_ids[start : start + size]
        logits = model.forward(chunk, state, need_logits=start + size >= len(token_ids))
    assert isinstance(logits, np.ndarray)
    return logits


@pytest.mark.weights
@pytest.mark.usefixtures("dropped_soon")
def test_logits_far_past_the_window_and_after_going_back_are_those_of_full_attention_under_a_mask(
    real: RunnableModel, expected: dict[str, Floats]
) -> None:
    def check(logits: Array, name: str) -> None:
        assert np.abs(logits - expected[name]).max() < 1e-3

    check(feed(real, real.make_state(), PROMPT_LONG, len(PROMPT_LONG)), "last")
    state = real.make_state()
    feed(real, state, PROMPT_LONG[:560], 64)
    state.mark()
    check(feed(real, state, PROMPT_LONG[560:850], 64), "before")
    check(feed(real, state, PROMPT_LONG[850:], 1), "last")
    assert state.truncate(800) == 800  # less than the slack ago
    feed(real, state, OTHER, 64)
    assert state.truncate(800) == 800  # nothing of the others is left
    check(feed(real, state, PROMPT_LONG[800:], 64), "last")
    assert state.truncate(640) == 560  # more than it
    feed(real, state, OTHER, 7)
    assert state.truncate(560) == 560
    check(feed(real, state, PROMPT_LONG[560:570], 1), "near the mark")
    assert state.truncate(400) == 0
