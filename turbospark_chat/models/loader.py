"""A model file, read whole: weights, tokenizer, stop ids and template. The list of architectures is here."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

from turbospark_chat.errors import (
    KernelsUnavailableError,
    MemoryOverflowError,
    ModelFileError,
    ModelWarning,
    SettingError,
    UnsupportedModelError,
)
from turbospark_chat.models import llama_weights
from turbospark_chat.models.compiled_model import CompiledModel
from turbospark_chat.models.config import ModelConfig, read_config
from turbospark_chat.models.forward_pass import Architecture
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.kernels.layout import GROUP, PART
from turbospark_chat.models.kv_cache import float_row_bytes
from turbospark_chat.models.llama import Llama
from turbospark_chat.models.numpy_model import NumpyModel
from turbospark_chat.models.packed_kv_cache import packed_row_bytes
from turbospark_chat.models.retention import WINDOW_SLACK, count_rows
from turbospark_chat.models.state import Model
from turbospark_chat.models.stop_ids import StopIds, gather_stop_ids
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary
from turbospark_chat.models.vocabulary_cache import VocabularyCache

FLOAT_BYTES = 4  # of a weight in the reference arithmetic


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is to compute: the kernels of a library on so many threads, or numpy where there is none."""

    library: KernelLibrary | None = None
    n_threads: int = 1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything a chat needs of a model file."""

    config: ModelConfig
    model: "RunnableModel"
    tokenizer: Tokenizer
    stop_ids: StopIds
    template: str | None

    window_slack: int = WINDOW_SLACK

    def kv_bytes(self, n_positions: int) -> int:
        """Return the size of a KV cache for so many positions, with all that lets its windows go back."""
        return self.model.row_bytes * count_rows(self.config.windows, n_positions, slack=self.window_slack)

    def largest_layer_bytes(self, n_positions: int) -> int:
        """Return what its largest layer has of that."""
        rows = (count_rows([window], n_positions, slack=self.window_slack) for window in self.config.windows)
        return self.model.row_bytes * max(rows)


class RunnableModel(Model[Any], Protocol):
    """A model that says what computes it and what its cache takes."""

    @property
    def arithmetic(self) -> str:
        """What computes, for people."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in one layer's cache."""


ReadMatrix = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class ArchitectureParts:
    """What one kind of model is made of."""

    check: Callable[[GgufFile, ModelConfig], None]  # refuses a file it cannot build from, loading nothing
    build: Callable[[GgufFile, ModelConfig, ReadMatrix], Architecture[Any]]


def _build_llama(file: GgufFile, config: ModelConfig, read_matrix: ReadMatrix) -> Architecture[Any]:
    weights = llama_weights.load_weights(file, config, read_matrix)
    return Llama(config, weights, vocab_size=_n_rows(file))


# What is not the usual architecture is imported where a file asks for it: a completion is to start soon.


def _check_gemma3(file: GgufFile, config: ModelConfig) -> None:
    from turbospark_chat.models import gemma3_weights

    gemma3_weights.check_weights(file, config)


def _build_gemma3(file: GgufFile, config: ModelConfig, read_matrix: ReadMatrix) -> Architecture[Any]:
    from turbospark_chat.models import gemma3_weights
    from turbospark_chat.models.gemma3 import Gemma3

    weights = gemma3_weights.load_weights(file, config, read_matrix)
    return Gemma3(config, weights, vocab_size=_n_rows(file))


ARCHITECTURES: Mapping[str, ArchitectureParts] = {
    "llama": ArchitectureParts(llama_weights.check_weights, _build_llama),
    "gemma3": ArchitectureParts(_check_gemma3, _build_gemma3),
}


def load_model(
    path: Path,
    *,
    available_bytes: int,
    arithmetic: Arithmetic = Arithmetic(),
    vocabularies: VocabularyCache | None = None,
    window_slack: int = WINDOW_SLACK,
) -> LoadedModel:
    """Load a GGUF file, its vocabulary through a cache if there is one.

    `window_slack` is how many positions its layers with a window can go back without a checkpoint.

    Where kernels cannot be had for it, numpy computes: a ModelWarning says so if that is the machine's doing.

    Raises:
        ModelFileError, UnsupportedModelError: what is wrong with the file.
        MemoryOverflowError: the weights need more than `available_bytes`; before any is allocated.
        SettingError: the slack is below 0.
    """
    if window_slack < 0:
        raise SettingError(f"window_slack is {window_slack}: give a whole number, 0 or more")
    with GgufFile.open(path) as file:
        config, vocabulary = read_supported(file, vocabularies)
        model = _build_compiled(file, config, arithmetic, available_bytes, window_slack)
        template = file.metadata.get("tokenizer.chat_template")
        return LoadedModel(
            config=config,
            model=model or _build_numpy(file, config, available_bytes, window_slack),
            tokenizer=Tokenizer(vocabulary),
            stop_ids=gather_stop_ids(vocabulary),
            template=template if isinstance(template, str) else None,
            window_slack=window_slack,
        )


def why_not_compiled(file: GgufFile, config: ModelConfig) -> str | None:
    """Return what keeps kernels from computing a file that can be loaded, None if nothing does."""
    if config.head_dim % GROUP:
        return f"heads of {config.head_dim} numbers, not of a multiple of {GROUP}"
    odd = sorted({shape[1] for shape in _matrix_shapes(file) if shape[1] % PART})
    return f"rows of {odd[0]} weights, not of a multiple of {PART}" if odd else None


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a file takes in memory, and what computes it."""

    arithmetic: str
    weight_bytes: int
    row_bytes: int  # of a position in one layer's KV cache


def footprint(file: GgufFile, config: ModelConfig, arithmetic: Arithmetic) -> Footprint:
    """Return what loading a supported file would take, loading nothing."""
    library = arithmetic.library
    reason = "as asked" if library is None else why_not_compiled(file, config) or library.why_unavailable()
    if reason is None:
        return Footprint("compiled, on the weights as they are", file.size, packed_row_bytes(config))
    return Footprint(f"numpy, in float32: {reason}", weight_bytes(file), float_row_bytes(config))


def _build_compiled(
    file: GgufFile, config: ModelConfig, arithmetic: Arithmetic, available_bytes: int, window_slack: int
) -> RunnableModel | None:
    if arithmetic.library is None or why_not_compiled(file, config) is not None:
        return None
    _check_memory(file, file.size, available_bytes, "mapped,")
    architecture = ARCHITECTURES[config.architecture].build(file, config, file.map_weight)
    try:
        return CompiledModel(
            architecture, arithmetic.library, n_threads=arithmetic.n_threads, window_slack=window_slack
        )
    except KernelsUnavailableError as error:
        warnings.warn(f"numpy computes, which is slower: {error}", ModelWarning, stacklevel=4)
        return None


def _build_numpy(
    file: GgufFile, config: ModelConfig, available_bytes: int, window_slack: int
) -> RunnableModel:
    _check_memory(file, weight_bytes(file), available_bytes, "as float32,")
    architecture = ARCHITECTURES[config.architecture].build(file, config, file.load)
    return NumpyModel(architecture, window_slack=window_slack)


def _check_memory(file: GgufFile, needed: int, available: int, how: str) -> None:
    if needed > available:
        raise MemoryOverflowError(
            f"{file.path.name}, {how}", needed, available,
            advice="close other programs or take a smaller model",
        )  # fmt: skip


def read_supported(
    file: GgufFile, vocabularies: VocabularyCache | None = None
) -> tuple[ModelConfig, Vocabulary]:
    """Return the hyper-parameters and the vocabulary of a file that can be loaded, loading no weight.

    Raises:
        ModelFileError: its parts are damaged, or do not fit together.
        UnsupportedModelError: no architecture here computes it.
    """
    architecture = file.metadata.get("general.architecture")
    if isinstance(architecture, str) and architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(
            file.path,
            f"architecture `{architecture}` is not supported (supported: {supported}); take another model",
        )
    config = read_config(file.metadata, file.path)
    file.check_supported()
    ARCHITECTURES[config.architecture].check(file, config)
    vocabulary = vocabularies.read(file) if vocabularies else read_vocabulary(file.metadata, source=file.path)
    n_tokens, n_rows = len(vocabulary.pieces), _n_rows(file)
    if n_tokens > n_rows:  # fewer are padding; these would be ids that cannot be fed
        raise ModelFileError(file.path, f"the tokenizer has {n_tokens} tokens, the model only {n_rows}")
    return config, vocabulary


def weight_bytes(file: GgufFile) -> int:
    """Return the size of all weights in memory where numpy computes."""
    return sum(prod(info.shape) * FLOAT_BYTES for info in file.tensors.values())


def _n_rows(file: GgufFile) -> int:
    return file.tensors["token_embd.weight"].shape[0]


def _matrix_shapes(file: GgufFile) -> list[tuple[int, ...]]:
    return [info.shape for info in file.tensors.values() if len(info.shape) == 2]
