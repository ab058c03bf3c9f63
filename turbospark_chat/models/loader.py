"""A model file, read whole: weights, tokenizer, stop ids and template. The list of architectures is here."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from turbospark_chat.errors import MemoryOverflowError, ModelFileError, ModelWarning, UnsupportedModelError
from turbospark_chat.models.config import ModelConfig, read_config
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.llama import Llama, check_weights, load_weights
from turbospark_chat.models.stop_ids import StopIds, gather_stop_ids
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary

FLOAT_BYTES = 4  # weights and cache are float32 in memory


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything a chat needs of a model file. `context_length` is the longest that is exact."""

    config: ModelConfig
    model: Llama
    tokenizer: Tokenizer
    stop_ids: StopIds
    template: str | None
    context_length: int

    def kv_bytes(self, n_positions: int) -> int:
        """Return the size of a KV cache for so many positions."""
        return self.config.kv_bytes(n_positions, item_bytes=FLOAT_BYTES)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one kind of model is made of."""

    check: Callable[[GgufFile, ModelConfig], None]  # refuses a file it cannot build from, loading nothing
    build: Callable[[GgufFile, ModelConfig], Llama]


def _build_llama(file: GgufFile, config: ModelConfig) -> Llama:
    return Llama(config, load_weights(file, config))


ARCHITECTURES: Mapping[str, Architecture] = {"llama": Architecture(check_weights, _build_llama)}


def load_model(path: Path, *, available_bytes: int) -> LoadedModel:
    """Load a GGUF file.

    Raises:
        ModelFileError, UnsupportedModelError: what is wrong with the file.
        MemoryOverflowError: the weights need more than `available_bytes`; before any is allocated.
    """
    with GgufFile.open(path) as file:
        config, vocabulary = read_supported(file)
        needed = weight_bytes(file)
        if needed > available_bytes:
            raise MemoryOverflowError(
                f"{path.name}, as float32,",
                needed,
                available_bytes,
                advice="close other programs or take a smaller model",
            )
        template = file.metadata.get("tokenizer.chat_template")
        return LoadedModel(
            config=config,
            model=ARCHITECTURES[config.architecture].build(file, config),
            tokenizer=Tokenizer(vocabulary),
            stop_ids=gather_stop_ids(vocabulary),
            template=template if isinstance(template, str) else None,
            context_length=_exact_context(config),
        )


def read_supported(file: GgufFile) -> tuple[ModelConfig, Vocabulary]:
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
    vocabulary = read_vocabulary(file.metadata, source=file.path)
    n_tokens, n_rows = len(vocabulary.pieces), file.tensors["token_embd.weight"].shape[0]
    if n_tokens > n_rows:  # fewer are padding; these would be ids that cannot be fed
        raise ModelFileError(file.path, f"the tokenizer has {n_tokens} tokens, the model only {n_rows}")
    return config, vocabulary


def weight_bytes(file: GgufFile) -> int:
    """Return the size of all weights in memory."""
    return sum(prod(info.shape) * FLOAT_BYTES for info in file.tensors.values())


def _exact_context(config: ModelConfig) -> int:
    """Return the context length, cut to a sliding window: within it, full attention is exact."""
    window = config.sliding_window
    if window is None or window >= config.context_length:
        return config.context_length
    warnings.warn(
        f"the context is limited to the model's sliding window of {window} positions",
        ModelWarning,
        stacklevel=2,
    )
    return window
