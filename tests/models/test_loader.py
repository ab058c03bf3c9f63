"""A whole model file: what is gathered from it, and what is refused before a weight is allocated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_file import Tensor, write_gguf
from tiny_model import CHATML, CONTROLS, SIZES, load_tiny_model, tiny_metadata, tiny_tensors, write_tiny_model

from turbospark_chat.errors import MemoryOverflowError, ModelFileError, ModelWarning, UnsupportedModelError
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.loader import ARCHITECTURES, LoadedModel, load_model, read_supported, weight_bytes

PLENTY = 10**9
N_TOKENS = 259  # of the tiny model's vocabulary


def write(folder: Path, *, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """Write a tiny model with other tensors, as shapes, or other metadata."""
    return write_gguf(
        folder / "tiny.gguf", tiny_metadata(**changes), tiny_tensors(N_TOKENS) if tensors is None else tensors
    )


def test_a_file_gives_model_tokenizer_stop_ids_and_template(tmp_path: Path) -> None:
    loaded = load_tiny_model(tmp_path)
    assert (loaded.config.n_layers, loaded.config.dim) == (SIZES["layers"], SIZES["dim"])
    assert loaded.model.vocab_size == loaded.tokenizer.n_tokens == N_TOKENS
    assert {loaded.tokenizer.spelling(token_id) for token_id in loaded.stop_ids.all} == {CONTROLS[1]}
    assert loaded.template == CHATML
    assert loaded.context_length == 512
    assert loaded.kv_bytes(10) == 2 * 2 * 2 * 8 * 10 * 4  # both, layers, heads, head_dim, positions, float32


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_loads_and_runs(name: str, tmp_path: Path) -> None:
    metadata = {key.replace("llama.", f"{name}.", 1): value for key, value in tiny_metadata().items()} | {
        "general.architecture": name
    }
    path = write_gguf(tmp_path / "tiny.gguf", metadata, tiny_tensors(N_TOKENS))
    model = load_model(path, available_bytes=PLENTY).model
    logits = model.forward([1, 2, 3], model.make_state(), need_logits=True)
    assert logits is not None
    assert np.isfinite(logits).all()


def test_a_file_without_a_template_has_none(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", tokenizer__chat_template=None)
    assert load_model(path, available_bytes=PLENTY).template is None


@pytest.mark.parametrize("window", [512, 4096, None])
def test_a_window_that_covers_the_context_changes_nothing(window: int | None, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", llama__attention__sliding_window=window)
    assert load_model(path, available_bytes=PLENTY).context_length == 512


def test_a_shorter_window_limits_the_context_and_says_so(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", llama__attention__sliding_window=128)
    with pytest.warns(ModelWarning, match="limited to the model's sliding window of 128 positions"):
        assert load_model(path, available_bytes=PLENTY).context_length == 128


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
        ({"general__architecture": "qwen2"}, UnsupportedModelError, r"\(supported: llama\)"),
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


def test_weights_in_float32_are_counted_whatever_their_type_in_the_file(tmp_path: Path) -> None:
    tensors = {name: ("Q8_0" if len(shape) > 1 and shape[-1] % 32 == 0 else "F32", shape, values)
               for name, (_, shape, values) in tiny_tensors(N_TOKENS).items()}  # fmt: skip
    with GgufFile.open(write(tmp_path, tensors=tensors)) as packed:
        n_packed, n_bytes = sum(info.n_bytes for info in packed.tensors.values()), weight_bytes(packed)
    assert n_packed < n_bytes == sum(values.nbytes for _, _, values in tensors.values())  # type: ignore[union-attr]


def test_the_mapped_file_cannot_be_written_through(tmp_path: Path) -> None:  # G11
    with GgufFile.open(write_tiny_model(tmp_path / "tiny.gguf")) as file:
        mapped = file.tensor_bytes("token_embd.weight")
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 1


def test_reading_what_is_supported_loads_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GgufFile, "load", None)
    with GgufFile.open(write_tiny_model(tmp_path / "tiny.gguf")) as file:
        config, vocabulary = read_supported(file)
    assert (config.architecture, len(vocabulary.pieces)) == ("llama", N_TOKENS)


@pytest.mark.weights
def test_the_default_models_numbers(smollm2_path: Path) -> None:
    loaded: LoadedModel = load_model(smollm2_path, available_bytes=2**40)
    config = loaded.config
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (loaded.context_length, loaded.kv_bytes(1)) == (8192, 30 * 2 * 3 * 64 * 4)
    assert loaded.model.vocab_size == loaded.tokenizer.n_tokens == 49152
    assert "<|im_end|>" in {loaded.tokenizer.spelling(token_id) for token_id in loaded.stop_ids.end_of_turn}
