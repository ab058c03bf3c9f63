"""A whole model file: what is gathered from it, what computes it, and what is refused before a weight is loaded."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_file import Tensor, write_gguf
from tiny_model import (
    CHATML,
    COMPILED_SIZES,
    COMPILED_TOLERANCE,
    CONTROLS,
    SIZES,
    Sizes,
    load_tiny_model,
    tiny_metadata,
    tiny_tensors,
    write_tiny_model,
)

from turbospark_chat.errors import (
    KernelsUnavailableError,
    MemoryOverflowError,
    ModelFileError,
    ModelWarning,
    SettingError,
    UnsupportedModelError,
)
from turbospark_chat.models import loader, vocabulary_cache
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import (
    ARCHITECTURES,
    Arithmetic,
    LoadedModel,
    footprint,
    load_model,
    read_supported,
    weight_bytes,
    why_not_compiled,
)
from turbospark_chat.models.retention import GROWTH_STEP
from turbospark_chat.models.vocabulary_cache import VocabularyCache

PLENTY = 10**9
N_TOKENS = 259  # of the tiny model's vocabulary


Both = dict[str, Arithmetic]


@pytest.fixture(scope="module")
def both(compiled: Arithmetic) -> Both:
    return {"numpy": Arithmetic(), "compiled": compiled}


def write(
    folder: Path, *, tensors: dict[str, Tensor] | None = None, sizes: Sizes = SIZES, **changes: Any
) -> Path:
    """Write a tiny model with other tensors, as shapes, or other metadata."""
    tensors = tiny_tensors(N_TOKENS, sizes=sizes) if tensors is None else tensors
    return write_gguf(folder / "tiny.gguf", tiny_metadata(sizes=sizes, **changes), tensors)


def described(path: Path, arithmetic: Arithmetic) -> tuple[str, int, int, str | None]:
    """Return what is said of a file before it is loaded: its footprint, and why kernels do not compute it."""
    with GgufFile.open(path) as file:
        config = read_supported(file)[0]
        takes = footprint(file, config, arithmetic)
        return takes.arithmetic, takes.weight_bytes, takes.row_bytes, why_not_compiled(file, config)


def test_a_file_gives_model_tokenizer_stop_ids_and_template(tmp_path: Path) -> None:
    loaded = load_tiny_model(tmp_path)
    assert (loaded.config.n_layers, loaded.config.dim) == (SIZES["layers"], SIZES["dim"])
    assert loaded.model.vocab_size == loaded.tokenizer.n_tokens == N_TOKENS
    assert {loaded.tokenizer.spelling(token_id) for token_id in loaded.stop_ids.all} == {CONTROLS[1]}
    assert loaded.template == CHATML
    assert loaded.config.context_length == 512
    assert loaded.kv_bytes(10) == 2 * 2 * 2 * 8 * 10 * 4  # both, layers, heads, head_dim, positions, float32


# --- what computes ---


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_loads_and_runs_in_both_arithmetics_with_the_same_logits(
    name: str, both: Both, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES, architecture=name)
    logits = {}
    for arithmetic, choice in both.items():
        model = load_model(path, available_bytes=PLENTY, arithmetic=choice).model
        assert model.arithmetic.startswith(arithmetic)
        logits[arithmetic] = model.forward([1, 2, 3], model.make_state(), need_logits=True)
    assert np.isfinite(logits["numpy"]).all()
    assert logits["compiled"] == pytest.approx(logits["numpy"], abs=COMPILED_TOLERANCE)


@pytest.mark.parametrize(("n_threads", "said"), [(1, "compiled, 1 thread"), (3, "compiled, 3 threads")])
def test_a_compiled_model_says_so_and_on_how_many_threads(
    n_threads: int, said: str, compiled: Arithmetic, tmp_path: Path
) -> None:
    assert load_tiny_model(tmp_path, Arithmetic(compiled.library, n_threads)).model.arithmetic == said


def test_a_numpy_model_says_so(tmp_path: Path) -> None:
    assert load_tiny_model(tmp_path).model.arithmetic == "numpy, float32"


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        pytest.param(COMPILED_SIZES, None, id="compiled"),
        pytest.param(SIZES, "heads of 8 numbers, not of a multiple of 16", id="head"),
        pytest.param(
            {**COMPILED_SIZES, "ffn": 80}, "rows of 80 weights, not of a multiple of 32", id="ffn"
        ),
        pytest.param(
            {**COMPILED_SIZES, "dim": 48, "heads": 3, "kv_heads": 1},
            "rows of 48 weights, not of a multiple of 32",
            id="dim",
        ),
    ],
)  # fmt: skip
def test_a_file_that_kernels_do_not_take_runs_in_numpy_and_is_described_so_beforehand(
    sizes: Sizes, reason: str | None, compiled: Arithmetic, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=sizes)
    loaded = load_model(path, available_bytes=PLENTY, arithmetic=compiled)
    arithmetic, n_bytes, row_bytes, why_not = described(path, compiled)
    assert why_not == reason
    assert loaded.model.arithmetic == ("numpy, float32" if reason else "compiled, 2 threads")
    assert arithmetic == (
        f"numpy, in float32: {reason}" if reason else "compiled, on the weights as they are"
    )
    assert row_bytes == loaded.model.row_bytes == loaded.kv_bytes(1) // sizes["layers"]
    if reason is None:
        assert n_bytes == path.stat().st_size
    assert described(path, Arithmetic())[0] == "numpy, in float32: as asked"


def test_a_position_takes_half_as_much_in_16_bits_but_for_the_scales(both: Both, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES)
    n_bytes = {}
    for name, arithmetic in both.items():
        loaded = load_model(path, available_bytes=PLENTY, arithmetic=arithmetic)
        n_bytes[name] = loaded.kv_bytes(100)
        state = loaded.model.make_state()
        loaded.model.forward([1], state, need_logits=False)
        assert state.n_bytes == loaded.kv_bytes(256)  # the cache grows by so many positions
    n_heads = 2 * 2 * 2  # keys and values, layers, heads
    assert n_bytes == {"numpy": 100 * n_heads * 16 * 4, "compiled": 100 * n_heads * (16 * 2 + 4)}


class BrokenLibrary(KernelLibrary):
    """Kernels that cannot be had."""

    def __init__(self) -> None:
        pass

    def load(self, names: object) -> Any:
        raise KernelsUnavailableError("llvmlite cannot be used: no such library")


def test_where_kernels_cannot_be_had_numpy_computes_and_a_warning_says_why(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES)
    with pytest.warns(
        ModelWarning, match="numpy computes, which is slower: llvmlite cannot be used: no such"
    ):
        loaded = load_model(path, available_bytes=PLENTY, arithmetic=Arithmetic(BrokenLibrary()))
    assert loaded.model.arithmetic == "numpy, float32"
    assert loaded.model.forward([1, 2], loaded.model.make_state(), need_logits=True) is not None


def test_kernels_are_not_even_asked_for_where_the_file_does_not_suit_them(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    loaded = load_model(
        path, available_bytes=PLENTY, arithmetic=Arithmetic(BrokenLibrary())
    )  # and no warning
    assert loaded.model.arithmetic == "numpy, float32"


# --- tokenizer and context ---


def test_the_second_load_through_a_cache_gathers_no_vocabulary_and_encodes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write_tiny_model(tmp_path / "tiny.gguf"), VocabularyCache(tmp_path / "vocabularies")
    first = load_model(path, available_bytes=PLENTY, vocabularies=cache)
    for module in (loader, vocabulary_cache):
        monkeypatch.setattr(module, "read_vocabulary", None)
    second = load_model(path, available_bytes=PLENTY, vocabularies=cache)
    text = f"{CONTROLS[0]}user\nGrüße{CONTROLS[1]}"
    encoded = [loaded.tokenizer.encode(text, parse_special=True) for loaded in (first, second)]
    assert encoded[0] == encoded[1] != []
    assert first.stop_ids == second.stop_ids


def test_a_file_without_a_template_has_none(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", tokenizer__chat_template=None)
    assert load_model(path, available_bytes=PLENTY).template is None


def last_logits(loaded: LoadedModel, n_tokens: int) -> Any:
    token_ids = np.random.default_rng(1).integers(0, N_TOKENS, n_tokens).tolist()
    return loaded.model.forward(token_ids, loaded.model.make_state(), need_logits=True)


def test_a_window_of_a_llama_changes_what_is_past_it_alone(tmp_path: Path) -> None:
    logits: dict[int | None, list[Any]] = {}
    for window in (None, 48):
        path = write_tiny_model(tmp_path / "tiny.gguf", llama__attention__sliding_window=window)
        loaded = load_model(path, available_bytes=PLENTY)
        assert loaded.config.context_length == 512
        logits[window] = [last_logits(loaded, n_tokens) for n_tokens in (48, 60)]
    assert logits[48][0] == pytest.approx(logits[None][0], abs=1e-5)
    assert np.abs(logits[48][1] - logits[None][1]).max() > 0.01


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_slack_is_what_is_asked_for_where_there_is_a_window(name: str, both: Both, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES, architecture="gemma3")
    loaded = load_model(path, available_bytes=PLENTY, arithmetic=both[name], window_slack=70)
    assert loaded.model.arithmetic.startswith(name)
    assert (loaded.model.make_state().slack, loaded.window_slack) == (70, 70)
    plain = load_model(write_tiny_model(tmp_path / "plain.gguf"), available_bytes=PLENTY, window_slack=70)
    assert plain.model.make_state().slack == sys.maxsize


def test_slack_below_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="window_slack is -1: give a whole number, 0 or more"):
        load_model(write_tiny_model(tmp_path / "tiny.gguf"), available_bytes=PLENTY, window_slack=-1)


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_a_cache_with_windows_stays_within_what_was_said_of_it(
    name: str, both: Both, tmp_path: Path
) -> None:  # G6
    sizes = {**COMPILED_SIZES, "layers": 6}
    path = write_tiny_model(
        tmp_path / "tiny.gguf",
        sizes=sizes,
        architecture="gemma3",
        context_length=4096,
        gemma3__attention__sliding_window_pattern=6,
    )
    loaded = load_model(path, available_bytes=PLENTY, arithmetic=both[name], window_slack=70)
    row_bytes, state = loaded.model.row_bytes, loaded.model.make_state()
    for _ in range(12):
        loaded.model.forward([1, 2, 3] * 20, state, need_logits=False)
        state.mark()
    n_started = row_bytes * sizes["layers"] * 2 * GROWTH_STEP  # the room of steps that are not full
    assert loaded.kv_bytes(720) < state.n_bytes + n_started
    assert state.n_bytes < loaded.kv_bytes(720) + n_started
    window_rows = 24 + 70 + GROWTH_STEP + 4 * 23
    assert loaded.kv_bytes(4096) == row_bytes * (4096 + 5 * window_rows)
    assert loaded.kv_bytes(20) == row_bytes * (20 + 5 * (20 + 4 * 20))
    assert loaded.largest_layer_bytes(4096) == row_bytes * 4096


def test_an_embedding_may_have_more_rows_than_the_tokenizer_has_ids(tmp_path: Path) -> None:  # B4
    loaded = load_model(write(tmp_path, tensors=tiny_tensors(N_TOKENS + 5)), available_bytes=PLENTY)
    assert (loaded.model.vocab_size, loaded.tokenizer.n_tokens) == (N_TOKENS + 5, N_TOKENS)


def test_an_embedding_may_not_have_fewer_rows(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="the tokenizer has 259 tokens, the model only 258"):
        load_model(write(tmp_path, tensors=tiny_tensors(N_TOKENS - 1)), available_bytes=PLENTY)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"general__architecture": "mamba"}, UnsupportedModelError, "architecture `mamba` is not supported"),
        ({"general__architecture": "qwen2"}, UnsupportedModelError, r"\(supported: llama, gemma3\)"),
        ({"general__architecture": None}, ModelFileError, "lacks `general.architecture`"),
        ({"llama__expert_count": 8}, UnsupportedModelError, "mixture-of-experts"),
        ({"llama__rope__scaling__type": "longrope"}, UnsupportedModelError, "`longrope` is not supported"),
        ({"tokenizer__ggml__model": "rwkv"}, UnsupportedModelError, "unsupported tokenizer"),
        ({"tokenizer__ggml__tokens": None}, ModelFileError, "lacks `tokenizer.ggml.tokens`"),
        ({"split__count": 3}, UnsupportedModelError, "one of 3 files"),
    ],
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], error: type[ModelFileError], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=problem):
        load_model(write(tmp_path, **changes), available_bytes=PLENTY)


def test_unknown_tensor_type_is_named(tmp_path: Path) -> None:  # F13
    tensors = tiny_tensors(N_TOKENS)
    tensors["blk.0.attn_q.weight"] = (20, (32, 32), bytes(32 * 18))  # IQ4_NL
    with pytest.raises(UnsupportedModelError, match=r"`blk\.0\.attn_q\.weight` has the unsupported type 20"):
        load_model(write(tmp_path, tensors=tensors), available_bytes=PLENTY)


def test_weights_larger_than_the_free_memory_are_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # G11
    path = write_tiny_model(tmp_path / "tiny.gguf")
    with GgufFile.open(path) as file:
        needed = weight_bytes(file)
    assert load_model(path, available_bytes=needed).model.vocab_size == N_TOKENS
    monkeypatch.setattr(GgufFile, "load", None)  # refused before any weight is loaded
    with pytest.raises(MemoryOverflowError, match="tiny.gguf, as float32, needs 0 MB") as caught:
        load_model(path, available_bytes=needed - 1)
    assert (caught.value.needed, caught.value.available) == (needed, needed - 1)


def test_mapped_weights_need_the_size_of_the_file_and_no_more(
    compiled: Arithmetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # G11
    path = write_tiny_model(tmp_path / "tiny.gguf", kind="Q4_1", sizes=COMPILED_SIZES)
    needed = path.stat().st_size
    with GgufFile.open(path) as file:
        assert needed < weight_bytes(file)
    loaded = load_model(path, available_bytes=needed, arithmetic=compiled)
    assert loaded.model.arithmetic == "compiled, 2 threads"
    for name in ("load", "map_weight"):
        monkeypatch.setattr(GgufFile, name, None)  # refused before any weight is looked at
    with pytest.raises(MemoryOverflowError, match="tiny.gguf, mapped, needs 0 MB") as caught:
        load_model(path, available_bytes=needed - 1, arithmetic=compiled)
    assert (caught.value.needed, caught.value.available) == (needed, needed - 1)


def test_where_kernels_cannot_be_had_the_weights_have_to_fit_as_float32(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", kind="Q4_1", sizes=COMPILED_SIZES)
    n_mapped = path.stat().st_size
    with warnings.catch_warnings(), pytest.raises(MemoryOverflowError, match="as float32"):
        warnings.simplefilter("ignore", ModelWarning)
        load_model(path, available_bytes=n_mapped, arithmetic=Arithmetic(BrokenLibrary()))


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_a_file_cut_short_while_it_loads_is_an_error_and_no_crash(
    name: str, both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # F14
    path = write_tiny_model(tmp_path / "tiny.gguf", kind="Q4_1", sizes=COMPILED_SIZES)
    check_supported = GgufFile.check_supported

    def check_and_cut(file: GgufFile) -> None:
        check_supported(file)
        os.truncate(path, path.stat().st_size - 100)

    monkeypatch.setattr(GgufFile, "check_supported", check_and_cut)
    with pytest.raises(
        ModelFileError, match=r"cut short while it was read: `blk\.1\.ffn_down\.weight` needs"
    ):
        load_model(path, available_bytes=PLENTY, arithmetic=both[name])


def test_weights_in_float32_are_counted_whatever_their_type_in_the_file(tmp_path: Path) -> None:
    tensors = tiny_tensors(N_TOKENS, kind="Q8_0", sizes=COMPILED_SIZES)
    with GgufFile.open(write(tmp_path, tensors=tensors, sizes=COMPILED_SIZES)) as packed:
        n_packed, n_bytes = sum(info.n_bytes for info in packed.tensors.values()), weight_bytes(packed)
    assert n_packed < n_bytes == sum(values.nbytes for _, _, values in tensors.values())  # type: ignore[union-attr]


def test_the_mapped_file_cannot_be_written_through(tmp_path: Path) -> None:  # G11
    with GgufFile.open(write_tiny_model(tmp_path / "tiny.gguf")) as file:
        mapped = file.tensor_bytes("token_embd.weight")
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 1


def test_reading_what_is_supported_loads_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "map_weight"):
        monkeypatch.setattr(GgufFile, name, None)
    with GgufFile.open(write_tiny_model(tmp_path / "tiny.gguf")) as file:
        config, vocabulary = read_supported(file)
    assert (config.architecture, len(vocabulary.pieces)) == ("llama", N_TOKENS)


@pytest.mark.weights
def test_the_default_models_numbers(smollm2_path: Path, compiled: Arithmetic) -> None:
    loaded: LoadedModel = load_model(smollm2_path, available_bytes=2**40, arithmetic=compiled)
    config = loaded.config
    assert loaded.model.arithmetic == "compiled, 2 threads"
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.context_length, loaded.kv_bytes(1)) == (8192, 30 * 2 * 3 * (64 * 2 + 4))
    assert loaded.model.vocab_size == loaded.tokenizer.n_tokens == 49152
    assert "<|im_end|>" in {loaded.tokenizer.spelling(token_id) for token_id in loaded.stop_ids.end_of_turn}
