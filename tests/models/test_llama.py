"""The architecture, as numpy computes it, against a plain one in double precision over Hugging Face's row order;
and the loading of its weights.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from gguf_file import Tensor, write_gguf
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_model import tiny_metadata, tiny_tensors

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models import layers, numpy_model
from turbospark_chat.models.config import ModelConfig, read_config
from turbospark_chat.models.forward_pass import ForwardPass
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.llama import Llama
from turbospark_chat.models.llama_weights import LlamaWeights, check_weights, load_weights
from turbospark_chat.models.numpy_model import NumpyModel, NumpyPass
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.weight import Weight

N_VOCAB, DIM, FFN, N_HEADS, N_KV_HEADS, HEAD_DIM, N_LAYERS = 40, 64, 96, 4, 2, 8, 2
Q_DIM, KV_DIM = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM  # 32 and 16: neither is DIM, as in F6
THETA, EPS = 10000.0, 1e-5
# Where GGUF's converter for `llama` stores the rows of a head of Q or K, for a head_dim of 8.
STORED_ROWS = [0, 4, 1, 5, 2, 6, 3, 7]
PROMPT = [3, 17, 3, 39, 0, 8]

Doubles = NDArray[np.float64]
Weights = dict[str, NDArray[np.float32]]


# --- a Hugging Face model, and what the converter makes of it ---


def hf_weights(*, has_biases: bool, is_tied: bool, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return rng.normal(1, 0.2, DIM).astype(np.float32)

    weights = {"token_embd.weight": matrix(N_VOCAB, DIM) * 2, "output_norm.weight": norm()}
    if not is_tied:
        weights["output.weight"] = matrix(N_VOCAB, DIM)
    for block in (f"blk.{index}." for index in range(N_LAYERS)):
        weights |= {block + "attn_norm.weight": norm(), block + "ffn_norm.weight": norm()}
        for name, n_out, n_in in (
            ("attn_q", Q_DIM, DIM), ("attn_k", KV_DIM, DIM), ("attn_v", KV_DIM, DIM), ("attn_output", DIM, Q_DIM),
            ("ffn_gate", FFN, DIM), ("ffn_up", FFN, DIM), ("ffn_down", DIM, FFN),
        ):  # fmt: skip
            weights[f"{block}{name}.weight"] = matrix(n_out, n_in) * 2
            if has_biases:
                weights[f"{block}{name}.bias"] = matrix(n_out)
    return weights


def permuted(rows: NDArray[Any]) -> NDArray[Any]:
    """Move whole rows within each head, whatever a row is: numbers, packed blocks or a bias's one number."""
    heads = np.arange(0, len(rows), HEAD_DIM)
    return rows[(heads[:, None] + STORED_ROWS).reshape(-1)]


def convert(weights: Weights, kind: str) -> dict[str, Tensor]:
    """Return a GGUF file's tensors; matrices are quantised first, and Q and K permuted as they are then."""
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        stored_as = kind if values.ndim == 2 else "F32"
        packed = quantize(values, GGMLQuantizationType[stored_as])
        if "attn_q" in name or "attn_k" in name:
            packed = permuted(packed)
        tensors[name] = (stored_as, values.shape, packed.tobytes())
    return tensors


def rounded(weights: Weights, kind: str) -> Weights:
    """Return the values that quantising keeps, in Hugging Face's order."""
    number = GGMLQuantizationType[kind]
    return {
        name: dequantize(quantize(values, number), number) if values.ndim == 2 else values
        for name, values in weights.items()
    }


def reference_logits(weights: Weights, token_ids: list[int]) -> Doubles:
    """Logits after the last token: a token and a head at a time, in double precision, halves paired for RoPE."""
    w = {name: values.astype(float) for name, values in weights.items()}

    def project(x: Doubles, name: str) -> Doubles:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)

    def norm(x: Doubles, name: str) -> Doubles:
        return x / math.sqrt(float(x @ x) / DIM + EPS) * w[f"{name}.weight"]

    def turn(heads: Doubles, position: int) -> Doubles:
        angles = position * THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        first, second = heads[:, : HEAD_DIM // 2], heads[:, HEAD_DIM // 2 :]
        return np.hstack(
            [
                first * np.cos(angles) - second * np.sin(angles),
                first * np.sin(angles) + second * np.cos(angles),
            ]
        )

    xs = [w["token_embd.weight"][token] for token in token_ids]
    for block in (f"blk.{index}." for index in range(N_LAYERS)):
        keys: list[Doubles] = []
        values: list[Doubles] = []
        for position, x in enumerate(xs):
            normed = norm(x, block + "attn_norm")
            queries = turn(project(normed, block + "attn_q").reshape(N_HEADS, HEAD_DIM), position)
            keys.append(turn(project(normed, block + "attn_k").reshape(N_KV_HEADS, HEAD_DIM), position))
            values.append(project(normed, block + "attn_v").reshape(N_KV_HEADS, HEAD_DIM))
            mixed = []
            for head, query in enumerate(queries):
                shared = head // (N_HEADS // N_KV_HEADS)
                scores = np.exp([query @ key[shared] / math.sqrt(HEAD_DIM) for key in keys])
                mixed.append(sum(s * v[shared] for s, v in zip(scores / scores.sum(), values, strict=True)))
            x = x + project(np.concatenate(mixed), block + "attn_output")
            normed = norm(x, block + "ffn_norm")
            gate = project(normed, block + "ffn_gate")
            gated = gate / (1 + np.exp(-gate)) * project(normed, block + "ffn_up")
            xs[position] = x + project(gated, block + "ffn_down")
    return w.get("output.weight", w["token_embd.weight"]) @ norm(xs[-1], "output_norm")


# --- the engine's side ---


def config_of(**changes: Any) -> ModelConfig:
    metadata = {
        "block_count": N_LAYERS, "context_length": 64, "embedding_length": DIM, "feed_forward_length": FFN,
        "attention.head_count": N_HEADS, "attention.head_count_kv": N_KV_HEADS, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": THETA,
    } | {key.replace("__", "."): value for key, value in changes.items()}  # fmt: skip
    named = {f"llama.{key}": value for key, value in metadata.items()}
    return read_config({"general.architecture": "llama", **named}, Path("model.gguf"))


def model_of(config: ModelConfig, weights: LlamaWeights[layers.Array]) -> NumpyModel:
    return NumpyModel(Llama(config, weights, vocab_size=len(weights.token_embd)))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., NumpyModel]:
    def write_and_load(tensors: Mapping[str, Tensor], config: ModelConfig | None = None) -> NumpyModel:
        config = config or config_of()
        with GgufFile.open(write_gguf(tmp_path / "model.gguf", {}, tensors)) as file:
            return model_of(config, load_weights(file, config, file.load))

    return write_and_load


def logits_of(model: NumpyModel, token_ids: list[int], *sizes: int) -> NDArray[np.float32]:
    """Feed ids in chunks of `sizes`, the rest at once, and return the last logits."""
    state = model.make_state()
    ends = [*np.cumsum(sizes, dtype=int), len(token_ids)]
    logits = None
    for end in ends:
        if end > len(state):
            logits = model.forward(token_ids[len(state) : end], state, need_logits=end == ends[-1])
    assert len(state) == len(token_ids)
    assert logits is not None
    return logits


@pytest.mark.parametrize("has_biases", [False, True], ids=["plain", "biases"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_rows_as_stored_give_the_logits_of_the_rows_as_trained(
    kind: str, has_biases: bool, load: Callable[..., NumpyModel]
) -> None:  # 18
    weights = hf_weights(has_biases=has_biases, is_tied=False)
    # Q4_0 in this file's matrices has rows of whole blocks: 32, 64 and 96 values.
    model = load(convert(weights, kind))
    expected = reference_logits(rounded(weights, kind), PROMPT)
    assert logits_of(model, PROMPT) == pytest.approx(expected, abs=1e-5)


def test_order_of_rows_matters_from_the_second_token_on(load: Callable[..., NumpyModel]) -> None:  # 18
    weights = hf_weights(has_biases=False, is_tied=False)
    as_trained = {name: ("F32", values.shape, values) for name, values in weights.items()}
    model = load(as_trained)
    assert logits_of(model, PROMPT[:1]) == pytest.approx(reference_logits(weights, PROMPT[:1]), abs=1e-5)
    assert np.abs(logits_of(model, PROMPT) - reference_logits(weights, PROMPT)).max() > 0.1


@pytest.mark.parametrize(
    "is_tied", [True, False], ids=["F7 output.weight absent", "F7 output.weight present"]
)
def test_head_is_the_files_own_or_else_the_embedding(is_tied: bool, load: Callable[..., NumpyModel]) -> None:
    weights = hf_weights(has_biases=False, is_tied=is_tied)
    model = load(convert(weights, "F32"))
    assert model.vocab_size == N_VOCAB
    assert logits_of(model, PROMPT) == pytest.approx(reference_logits(weights, PROMPT), abs=1e-5)


def test_divisors_in_the_file_slow_each_pair_by_its_own(load: Callable[..., NumpyModel]) -> None:  # F8
    weights = hf_weights(has_biases=False, is_tied=True)
    tensors = convert(weights, "F32")
    quarter = {"rope_freqs.weight": ("F32", (HEAD_DIM // 2,), np.full(HEAD_DIM // 2, 4, np.float32))}
    by_divisors = logits_of(load(tensors | quarter), PROMPT)
    by_scale = logits_of(load(tensors, config_of(rope__scaling__factor=4.0)), PROMPT)
    assert by_divisors == pytest.approx(by_scale, abs=1e-6)
    assert np.abs(by_divisors - logits_of(load(tensors), PROMPT)).max() > 0.01


@pytest.mark.parametrize("divisor", [0.0, -1.0, math.nan, math.inf])
def test_divisor_that_divides_by_nothing_is_refused(divisor: float, load: Callable[..., NumpyModel]) -> None:
    values = np.array([1, 1, divisor, 1], np.float32)
    tensors = convert(hf_weights(has_biases=False, is_tied=True), "F32")
    with pytest.raises(ModelFileError, match=r"`rope_freqs.weight` has values that are not above 0"):
        load(tensors | {"rope_freqs.weight": ("F32", (4,), values)})


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("one", [NumpyPass, ProgramBuilder])
def test_every_pass_has_the_operations_an_architecture_computes_with(one: type) -> None:
    operations = {
        name: op for name, op in vars(ForwardPass).items() if inspect.isfunction(op) and name[0] != "_"
    }
    assert len(operations) == 11
    for name, operation in operations.items():
        assert parameters(getattr(one, name)) == parameters(operation)


# --- chunks, positions and failures ---


Parts = tuple[ModelConfig, LlamaWeights[layers.Array]]


@pytest.fixture(scope="module")
def tiny_parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    metadata = tiny_metadata()
    path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", metadata, tiny_tensors(259))
    with GgufFile.open(path) as file:
        config = read_config(metadata, path)
        return config, load_weights(file, config, file.load)


@pytest.fixture(scope="module")
def tiny(tiny_parts: Parts) -> NumpyModel:
    return model_of(*tiny_parts)


def greedy(model: NumpyModel, prompt_ids: list[int], sizes: list[int]) -> list[int]:
    ids = list(prompt_ids)
    for _ in range(8):
        ids.append(int(np.argmax(logits_of(model, ids, *sizes))))
    return ids[len(prompt_ids) :]


@given(
    prompt_ids=st.lists(st.integers(0, 258), min_size=1, max_size=24),
    sizes=st.lists(st.integers(1, 6), max_size=6),
)
def test_chunks_token_by_token_and_at_once_agree(
    tiny: NumpyModel, prompt_ids: list[int], sizes: list[int]
) -> None:
    at_once = logits_of(tiny, prompt_ids)
    sizes = [size for index, size in enumerate(sizes) if sum(sizes[: index + 1]) < len(prompt_ids)]
    for cuts in (sizes, [1] * (len(prompt_ids) - 1)):
        assert logits_of(tiny, prompt_ids, *cuts) == pytest.approx(at_once, abs=1e-4)


def test_every_way_of_cutting_gives_the_same_greedy_ids(tiny: NumpyModel) -> None:
    prompt_ids = np.random.default_rng(3).integers(0, 259, 20).tolist()
    expected = greedy(tiny, prompt_ids, [])
    assert len(set(expected)) > 1
    for sizes in ([1] * 19, [7, 7], [19], [1, 18]):
        assert greedy(tiny, prompt_ids, sizes) == expected


def test_a_cut_state_goes_on_as_if_the_rest_had_never_been(tiny: NumpyModel) -> None:
    state = tiny.make_state()
    tiny.forward([5, 6, 7, 8, 9], state, need_logits=False)
    assert state.truncate(2) == 2
    logits = tiny.forward([10, 11], state, need_logits=True)
    assert logits == pytest.approx(logits_of(tiny, [5, 6, 10, 11]), abs=1e-4)


def test_without_need_for_logits_the_head_is_left_out(tiny: NumpyModel) -> None:
    state = tiny.make_state()
    assert tiny.forward([1, 2], state, need_logits=False) is None
    assert len(state) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_damaged_weights_show_in_the_logits_and_nowhere_else(
    value: float, load: Callable[..., NumpyModel]
) -> None:
    broken = np.full((FFN, DIM), value, np.float32)
    model = load(
        convert(hf_weights(has_biases=False, is_tied=True), "F32")
        | {"blk.0.ffn_up.weight": ("F32", (FFN, DIM), broken)}
    )
    assert not np.isfinite(logits_of(model, PROMPT)).any()  # and no warning, which would be an error here


class Interrupted:
    """The numpy layers, of which one call is interrupted."""

    def __init__(self, nth: int, error: type[BaseException]) -> None:
        self._left, self._error = nth, error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise self._error
            return getattr(layers, name)(*args, **kwargs)

        return call


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_fault_at_any_step_of_a_pass_leaves_the_state_as_it_was(
    tiny: NumpyModel, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:  # 3
    n_steps = 1 + 2 * 13 + 2  # the angles, 13 in each of two layers, and the head's two
    expected = logits_of(tiny, [1, 2, 3, 4])
    for nth in range(1, n_steps + 1):
        state = tiny.make_state()
        tiny.forward([1, 2], state, need_logits=False)
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(numpy_model, "layers", Interrupted(nth, error))
            tiny.forward([90, 91, 92], state, need_logits=True)
        assert len(state) == 2
        assert tiny.forward([3, 4], state, need_logits=True) == pytest.approx(expected, abs=1e-4)
    monkeypatch.setattr(numpy_model, "layers", Interrupted(n_steps + 1, error))
    assert logits_of(tiny, [1, 2, 3, 4]) == pytest.approx(expected, abs=1e-4)


# --- loading ---


def sound_tensors() -> dict[str, Tensor]:
    return convert(hf_weights(has_biases=False, is_tied=True), "F32")


def zeros(*shape: int) -> Tensor:
    return ("F32", shape, np.zeros(shape, np.float32))


@pytest.mark.parametrize("name", sound_tensors())
def test_missing_tensor_is_named(name: str, load: Callable[..., NumpyModel]) -> None:
    tensors = sound_tensors()
    del tensors[name]
    with pytest.raises(ModelFileError, match=f"model.gguf: tensor `{name}` is missing"):
        load(tensors)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("token_embd.weight", (N_VOCAB, DIM + 1), (N_VOCAB, DIM)),
        ("token_embd.weight", (), (0, DIM)),
        ("token_embd.weight", (N_VOCAB,), (N_VOCAB, DIM)),
        ("output.weight", (N_VOCAB - 1, DIM), (N_VOCAB, DIM)),
        ("output_norm.weight", (1, DIM), (DIM,)),
        ("rope_freqs.weight", (HEAD_DIM,), (HEAD_DIM // 2,)),
        ("blk.1.attn_q.weight", (DIM, DIM), (Q_DIM, DIM)),  # F6
        ("blk.1.attn_k.weight", (Q_DIM, DIM), (KV_DIM, DIM)),
        ("blk.1.attn_output.weight", (DIM, DIM), (DIM, Q_DIM)),
        ("blk.0.attn_q.bias", (DIM,), (Q_DIM,)),
    ],
)
def test_tensor_of_another_shape_is_named_with_both(
    name: str, shape: tuple[int, ...], expected: tuple[int, ...], load: Callable[..., NumpyModel]
) -> None:
    with pytest.raises(ModelFileError) as caught:
        load(sound_tensors() | {name: zeros(*shape)})
    assert caught.value.problem == f"tensor `{name}` has shape {shape}, expected {expected}"


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight", "blk.0.ffn_gate_inp.weight"]
)
def test_tensor_the_architecture_would_ignore_is_refused(name: str, load: Callable[..., NumpyModel]) -> None:
    with pytest.raises(UnsupportedModelError, match=f"tensor `{name}` has no part in the `llama`"):
        load(sound_tensors() | {name: zeros(DIM)})


class Described:
    """A file of which only the tensors' shapes may be looked at."""

    path = Path("model.gguf")

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: self.Shaped(shape) for name, (_, shape, _) in tensors.items()}

    class Shaped:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape = shape

    def load(self, name: str) -> NDArray[np.float32]:
        raise AssertionError(f"{name} was loaded")


def test_a_file_is_refused_before_any_weight_is_loaded() -> None:
    check_weights(Described(sound_tensors()), config_of())
    extra, sound = Described(sound_tensors() | {"blk.1.more": zeros(1)}), Described(sound_tensors())
    with pytest.raises(UnsupportedModelError):
        load_weights(extra, config_of(), extra.load)
    with pytest.raises(ModelFileError, match="`blk.2.attn_norm.weight` is missing"):
        load_weights(sound, config_of(block_count=4096), sound.load)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "own head"])
def test_matrices_are_what_the_reader_given_makes_of_them_and_vectors_are_float32(
    is_tied: bool, tmp_path: Path
) -> None:
    tensors = convert(hf_weights(has_biases=True, is_tied=is_tied), "Q8_0")
    asked: list[str] = []

    def read(name: str) -> Weight:
        asked.append(name)
        return file.map_weight(name)

    with GgufFile.open(write_gguf(tmp_path / "model.gguf", {}, tensors)) as file:
        weights = load_weights(file, config_of(), read)
    assert sorted(asked) == sorted(name for name, (kind, _, _) in tensors.items() if kind == "Q8_0")
    assert (weights.output is weights.token_embd) is is_tied
    block = weights.blocks[1]
    assert (block.attn_k.weight.shape, block.attn_k.weight.ggml_type.name) == ((KV_DIM, DIM), "Q8_0")
    assert block.attn_k.bias is not None
    for vector in (block.attn_k.bias, block.ffn_norm, weights.output_norm):
        assert (vector.dtype, vector.flags.writeable) == (np.float32, False)


def test_weights_cannot_be_written(tiny_parts: Parts) -> None:  # G11
    _, weights = tiny_parts
    for array in (weights.token_embd, weights.output_norm, weights.blocks[1].ffn_down.weight):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
