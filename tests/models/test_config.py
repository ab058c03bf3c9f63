"""Hyper-parameters under their GGUF names, and what is refused before anything is computed from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.config import ModelConfig, read_config

PATH = Path("model.gguf")
REQUIRED = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
COUNTS = [*REQUIRED][:-1] + ["attention.head_count_kv", "attention.key_length", "rope.dimension_count"]


def read(architecture: str = "llama", **changes: Any) -> ModelConfig:
    """Read the required keys with `changes`, in which `__` is a dot and None removes a key."""
    keys = REQUIRED | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}
    return read_config({"general.architecture": architecture, **metadata}, PATH)


def test_every_number_is_read_under_its_name() -> None:
    config = read(
        attention__head_count_kv=2,
        attention__key_length=16,
        attention__value_length=16,
        rope__freq_base=5e5,
        rope__dimension_count=8,
        attention__sliding_window=256,
        rope__freq_base_swa=2e4,
    )
    assert config == ModelConfig(
        architecture="llama", n_layers=2, dim=32, ffn_dim=48, n_heads=4, n_kv_heads=2, head_dim=16,
        context_length=512, norm_eps=1e-5, rope_theta=5e5, rope_dim=8, rope_scale=1.0, window_rope_theta=2e4,
        windows=(256, 256),
    )  # fmt: skip


def test_keys_a_file_may_leave_out_follow_from_the_others() -> None:
    config = read()
    assert (config.n_kv_heads, config.head_dim, config.rope_dim) == (4, 8, 8)
    assert (config.rope_theta, config.rope_scale) == (10000.0, 1.0)
    assert (config.window_rope_theta, config.windows) == (10000.0, (None, None))


@pytest.mark.parametrize(("key_length", "head_dim"), [(128, 128), (None, 80)])
def test_head_dim_is_what_the_file_says_and_dim_by_heads_only_where_it_is_silent(
    key_length: int | None, head_dim: int
) -> None:  # F6
    config = read(embedding_length=2560, attention__head_count=32, attention__key_length=key_length)
    assert config.head_dim == head_dim


L, G = 512, None  # local and global layers


@pytest.mark.parametrize(
    ("architecture", "n_layers", "keys", "windows"),
    [
        ("gemma3", 8, {}, (G,) * 8),
        ("gemma3", 13, {"sliding_window": 512}, (L, L, L, L, L, G, L, L, L, L, L, G, L)),  # F10
        ("gemma3", 4, {"sliding_window": 512, "sliding_window_pattern": 2}, (L, G, L, G)),
        ("gemma3", 2, {"sliding_window": 512, "sliding_window_pattern": 1}, (G, G)),
        ("gemma3", 2, {"sliding_window": 512, "sliding_window_pattern": 0}, (L, L)),
        (
            "gemma3",
            3,
            {"sliding_window": 512, "sliding_window_pattern": np.array([True, False, True])},
            (L, G, L),
        ),
        ("llama", 3, {"sliding_window": 512}, (L, L, L)),  # as Mistral has it
        ("llama", 3, {"sliding_window": 0}, (G, G, G)),
        ("llama", 3, {"sliding_window_pattern": 3}, (G, G, G)),
    ],
)
def test_windows_are_of_the_layers_the_file_or_else_the_architecture_says(
    architecture: str, n_layers: int, keys: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    changes = {f"attention.{key}": value for key, value in keys.items()}
    assert read(architecture, block_count=n_layers, **changes).windows == windows


def test_a_pattern_of_another_number_of_layers_is_refused() -> None:
    pattern = np.array([True, False, True])
    with pytest.raises(ModelFileError, match=r"sliding_window_pattern` has 3 values, for 2 layers"):
        read(attention__sliding_window=512, attention__sliding_window_pattern=pattern)


def test_layers_beyond_any_model_are_refused_before_they_are_counted_out() -> None:  # 19
    with pytest.raises(ModelFileError, match=r"`llama\.block_count` is out of range: 1073741824"):
        read(block_count=2**30)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelFileError, match=f"model.gguf: metadata lacks `llama.{key}`"):
        read(**{key: None})


@pytest.mark.parametrize("architecture", [None, 7, ["llama"]])
def test_metadata_without_an_architecture_is_no_model(architecture: object) -> None:
    metadata = {} if architecture is None else {"general.architecture": architecture}
    with pytest.raises(ModelFileError, match=r"lacks `general\.architecture`"):
        read_config(metadata, PATH)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, 2**40, 2**63, float("nan"), float("inf")])
def test_count_that_is_no_count_is_refused_with_its_value(key: str, value: float) -> None:
    with pytest.raises(ModelFileError, match=f"`llama.{key}` .*: {value}"):
        read(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.layer_norm_rms_epsilon", 0.0),  # a row of zeros would be divided by it
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", float("nan")),
        ("rope.freq_base", float("inf")),
        ("attention.sliding_window", -1),
        ("expert_count", float("nan")),
    ],
)
def test_number_nothing_can_be_computed_from_is_refused(key: str, value: float) -> None:
    with pytest.raises(ModelFileError, match=f"`llama.{key}` is out of range: {value}"):
        read(**{key: value})


@pytest.mark.parametrize("value", ["32", True, [4, 4], np.array([4, 4]), "a\nb"])
@pytest.mark.parametrize("key", [*REQUIRED, "attention.head_count_kv", "rope.freq_base"])
def test_value_that_is_not_one_number_is_refused_in_one_line(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=f"`llama.{key}` is not one number: ") as caught:
        read(**{key: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"attention__head_count_kv": 3}, ModelFileError, "4 heads cannot share 3 key/value heads"),
        ({"rope__dimension_count": 7}, ModelFileError, "must be even and at most 8: 7"),
        ({"rope__dimension_count": 10}, ModelFileError, "must be even and at most 8: 10"),
        ({"attention__head_count": 64}, ModelFileError, "must be even and at most 1: 1"),
        ({"attention__value_length": 16}, UnsupportedModelError, "keys and values of different lengths"),
        ({"expert_count": 8}, UnsupportedModelError, "mixture-of-experts layers are not supported"),
        (
            {"attn_logit_softcapping": 50.0},
            UnsupportedModelError,
            "`llama.attn_logit_softcapping` is not",
        ),  # F11
        ({"final_logit_softcapping": 30.0}, UnsupportedModelError, "`llama.final_logit_softcapping` is not"),
        ({"rope__scaling__type": "yarn"}, UnsupportedModelError, "RoPE scaling `yarn` is not supported"),
        ({"rope__scaling__type": 1}, ModelFileError, "`llama.rope.scaling.type` should be a string: 1"),
    ],
)
def test_numbers_that_do_not_fit_together_or_are_not_implemented(
    changes: dict[str, Any], error: type[ModelFileError], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        read(**changes)


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1.0),
        ({"scaling.type": "linear"}, 1.0),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, 1.0),
        # As llama.cpp reads them: a factor alone is linear, and the key has an older name.
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),
        ({"scaling.factor": 2.0, "scale_linear": 4.0}, 2.0),
    ],
)
def test_linear_rope_scaling(keys: dict[str, Any], scale: float) -> None:
    assert read(**{f"rope.{key}": value for key, value in keys.items()}).rope_scale == scale


@pytest.mark.parametrize("factor", [0.5, 1e-300])
def test_rope_scaling_that_would_stretch_positions_is_refused(factor: float) -> None:
    with pytest.raises(ModelFileError, match=f"must be 0 or at least 1: {factor}"):
        read(rope__scaling__factor=factor)


VALUES = (
    st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 100)
    | st.floats()
    | st.booleans()
    | st.text(max_size=9)
    | st.lists(st.integers(0, 9), max_size=3)
    | st.lists(st.booleans(), max_size=3).map(np.array)
)
KEYS = [
    *COUNTS, "attention.layer_norm_rms_epsilon", "attention.value_length", "attention.sliding_window", "expert_count",
    "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "attention.sliding_window_pattern",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_whatever_a_file_says_gives_usable_numbers_or_a_named_error(changes: dict[str, Any]) -> None:  # 19
    try:
        config = read(**changes)
    except ModelFileError:
        return
    sizes = (config.n_layers, config.dim, config.ffn_dim, config.n_heads, config.n_kv_heads, config.head_dim)
    assert all(type(size) is int and size > 0 for size in sizes)
    assert config.norm_eps > 0
    assert min(config.rope_theta, config.window_rope_theta) >= 1
    assert len(config.windows) == config.n_layers
    assert all(window is None or window > 0 for window in config.windows)
    assert config.rope_scale >= 1
