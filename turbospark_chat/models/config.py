"""The numbers that describe a model, read from GGUF metadata. Knows no tensors and no arithmetic."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turbospark_chat.errors import ModelFileError, UnsupportedModelError

_MOST_LAYERS = 4096  # far above any model: what a damaged file claims is not to be allocated for
_WINDOW_PATTERNS = {"gemma3": 6}  # where the file is silent: every so manyth layer sees everything
_LEAST_EPS = 1e-30  # still above 0 in float32: a row of zeros must not be divided by 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters of a decoder-only transformer."""

    architecture: str
    n_layers: int
    dim: int
    ffn_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_dim: int
    rope_scale: float  # positions are divided by it (linear scaling); 1 where there is none
    window_rope_theta: float  # of the layers with a window, in architectures that turn those otherwise
    windows: tuple[int | None, ...]  # how many positions each layer sees, its own included; None: all


class _Reader:
    """Reads `{architecture}.{key}` with the file's name on every complaint."""

    def __init__(self, metadata: Mapping[str, object], architecture: str, path: Path) -> None:
        self._metadata = metadata
        self._architecture = architecture
        self._path = path

    def number(self, key: str, default: float | None = None, *, minimum: float = 0) -> float:
        full = f"{self._architecture}.{key}"
        value = self._metadata.get(full, default)
        if value is None:
            raise ModelFileError(self._path, f"metadata lacks `{full}`")
        if isinstance(value, bool) or not isinstance(value, int | float):
            # Per-layer lists belong to architectures whose layers differ; this one has equal layers.
            raise UnsupportedModelError(self._path, f"`{full}` is not one number: {reprlib.repr(value)}")
        if not minimum <= value < 2**40:  # NaN fails too
            raise ModelFileError(self._path, f"`{full}` is out of range: {value}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or value < 1:
            raise ModelFileError(
                self._path, f"`{self._architecture}.{key}` must be a whole number above 0: {value}"
            )
        return int(value)

    def flags(self, key: str, length: int) -> tuple[bool, ...] | None:
        """Return so many truth values, or None where there is no list of numbers."""
        full = f"{self._architecture}.{key}"
        value = self._metadata.get(full)
        if not isinstance(value, np.ndarray):
            return None
        if len(value) != length:
            raise ModelFileError(self._path, f"`{full}` has {len(value)} values, for {length} layers")
        return tuple(bool(flag) for flag in value)

    def text(self, key: str, default: str) -> str:
        full = f"{self._architecture}.{key}"
        value = self._metadata.get(full, default)
        if not isinstance(value, str):
            raise ModelFileError(self._path, f"`{full}` should be a string: {reprlib.repr(value)}")
        return value


def read_config(metadata: Mapping[str, object], path: Path) -> ModelConfig:
    """Read the hyper-parameters under their GGUF names.

    Raises:
        ModelFileError: a key is missing or outside its range.
        UnsupportedModelError: the numbers describe something no architecture here computes.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(path, "metadata lacks `general.architecture`; is this a model file?")
    read = _Reader(metadata, architecture, path)
    if read.number("expert_count", 0):
        raise UnsupportedModelError(path, "mixture-of-experts layers are not supported")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if read.number(key, 0):
            raise UnsupportedModelError(path, f"`{architecture}.{key}` is not supported")
    dim, n_heads = read.count("embedding_length"), read.count("attention.head_count")
    head_dim = read.count("attention.key_length", dim // n_heads or 1)
    n_kv_heads = read.count("attention.head_count_kv", n_heads)
    rope_dim = read.count("rope.dimension_count", head_dim)
    if n_heads % n_kv_heads:
        raise ModelFileError(path, f"{n_heads} heads cannot share {n_kv_heads} key/value heads")
    if rope_dim > head_dim or rope_dim % 2:
        raise ModelFileError(path, f"`rope.dimension_count` must be even and at most {head_dim}: {rope_dim}")
    if read.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(path, "keys and values of different lengths are not supported")
    n_layers = read.count("block_count")
    if n_layers > _MOST_LAYERS:
        raise ModelFileError(path, f"`{architecture}.block_count` is out of range: {n_layers}")
    return ModelConfig(
        architecture=architecture,
        n_layers=n_layers,
        dim=dim,
        ffn_dim=read.count("feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        context_length=read.count("context_length"),
        norm_eps=read.number("attention.layer_norm_rms_epsilon", minimum=_LEAST_EPS),
        rope_theta=read.number("rope.freq_base", 10000.0, minimum=1),
        rope_dim=rope_dim,
        rope_scale=_rope_scale(read, path),
        window_rope_theta=read.number("rope.freq_base_swa", 10000.0, minimum=1),
        windows=_windows(read, n_layers, _WINDOW_PATTERNS.get(architecture, 0)),
    )


def _windows(read: _Reader, n_layers: int, pattern: int) -> tuple[int | None, ...]:
    """Return each layer's window: of all of them, or of all but every `pattern`th, or of those the file marks."""
    window = int(read.number("attention.sliding_window", 0)) or None
    key = "attention.sliding_window_pattern"
    has_window = read.flags(key, n_layers)
    if has_window is None:
        every = int(read.number(key, pattern))
        has_window = tuple(not every or layer % every < every - 1 for layer in range(n_layers))
    return tuple(window if windowed else None for windowed in has_window)


def _rope_scale(read: _Reader, path: Path) -> float:
    """Return the factor of linear scaling; a factor without a type is linear, as llama.cpp has it."""
    scaling = read.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise UnsupportedModelError(path, f"RoPE scaling `{scaling}` is not supported (none, linear are)")
    old_key = read.number("rope.scale_linear", 0)
    factor = read.number("rope.scaling.factor", old_key)
    if scaling == "none" or factor == 0:  # 0 stands for no scaling
        return 1.0
    if factor < 1:
        raise ModelFileError(path, f"the RoPE scaling factor must be 0 or at least 1: {factor}")
    return factor
