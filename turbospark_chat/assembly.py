"""Puts the parts together for the command line: a model file becomes a chat model. Beside `cli`, the only place
that knows every layer; `cli` imports it once a command needs a model.
"""

import gc
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.reasoning import find_tags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.engine.system_probe import available_memory, make_probe
from turbospark_chat.errors import MemoryOverflowError, ModelFileError, ModelWarning, SettingError
from turbospark_chat.models.catalog import CATALOG, is_installed
from turbospark_chat.models.config import ModelConfig
from turbospark_chat.models.fingerprint import FileDigest, ModelFingerprints
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.kernel_compiler import OnCompile
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.loader import (
    Arithmetic,
    LoadedModel,
    footprint,
    load_model,
    read_supported,
)
from turbospark_chat.models.model_states import ModelStates
from turbospark_chat.models.quants import GgmlType
from turbospark_chat.models.retention import GROWTH_STEP, WINDOW_SLACK, count_rows
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.stop_ids import StopIds, gather_stop_ids
from turbospark_chat.models.vocabulary_cache import VocabularyCache
from turbospark_chat.settings import Locations, is_numpy_asked
from turbospark_chat.threads import physical_cores

SHARE_OF_FREE_MEMORY = 0.5  # that a KV cache may plan to take, where the user names no context length
SHARE_OF_FREE_MEMORY_PARKED = 0.25  # that the states of other conversations may take together

FreeMemory = Callable[[], int]  # bytes, asked anew each time

# Stands in where no conversation will be rendered: what is said, line by line.
_PLAIN_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}{{ '\n' if add_generation_prompt }}"


def open_chat_model(
    path: Path,
    *,
    context_length: int | None,
    template: str | None = None,
    is_raw: bool = False,
    arithmetic: Arithmetic | None = None,
    n_slots: int = 0,
    window_slack: int = WINDOW_SLACK,
    free_memory: FreeMemory = available_memory,
) -> ChatModel:
    """Load a model file and make it ready to chat.

    Without a `context_length` it is the model's, or as much of it as the free memory holds: a ModelWarning says so.
    `template` takes the place of the model's own. With `is_raw` neither is looked at: only raw text will be
    completed. Without an `arithmetic` it is `choose_arithmetic`'s. The states of up to `n_slots` other conversations
    are kept in memory, as far as a share of what is free holds them. `window_slack` is how many positions a sliding
    window can go back.

    Raises:
        ModelFileError, DoesNotFitError, TemplateError, SettingError: what stands in the way.
    """
    locations = Locations.of_user()
    digest = FileDigest(path, locations.digests)
    with _no_collection():
        loaded = load_model(
            path,
            available_bytes=free_memory(),
            arithmetic=arithmetic or choose_arithmetic(),
            vocabularies=VocabularyCache(locations.vocabularies),
            window_slack=window_slack,
        )
    source = _PLAIN_TEMPLATE if is_raw else template or loaded.template
    pool = SessionPool[Any](n_slots, budget=lambda: int(free_memory() * SHARE_OF_FREE_MEMORY_PARKED))
    runner = Runner(loaded.model, KvPrefix, pool=pool if n_slots else None)
    tokenizer, vocabulary = loaded.tokenizer, loaded.tokenizer.vocabulary
    check_memory = _memory_check(loaded, runner, free_memory)
    return ChatModel(
        producer=runner,
        tokenizer=tokenizer,
        template=ChatTemplate(
            source,
            bos_token=tokenizer.spelling(vocabulary.bos_id),
            eos_token=tokenizer.spelling(vocabulary.eos_ids[0] if vocabulary.eos_ids else None),
            control_spellings=tuple(vocabulary.control_ids),
        ),
        stop_ids=_reasons(loaded.stop_ids),
        context_length=_choose_context(loaded, context_length, free_memory),
        reasoning_tags=find_tags(source or ""),
        arithmetic=loaded.model.arithmetic,
        probe=make_probe(),
        check_memory=check_memory,
        states=_make_states(runner, loaded, digest, check_memory),
    )


def _make_states(
    runner: Runner[KvPrefix, Any],
    loaded: LoadedModel,
    file: FileDigest,
    check_memory: Callable[[int], None],
) -> ModelStates[KvPrefix, Any]:
    fingerprints = ModelFingerprints(
        file,
        config=loaded.config,
        vocabulary=loaded.tokenizer.vocabulary,
        empty_state=loaded.model.make_state(),
    )
    return ModelStates(runner, KvPrefix, fingerprints.read, check_memory=check_memory)


def choose_arithmetic(
    n_threads: int | None = None, *, on_compile: OnCompile = lambda done, total: None
) -> Arithmetic:
    """Return the user's arithmetic: compiled kernels on a thread for each core, where nothing else is asked for.

    Raises:
        SettingError: the environment asks for one that does not exist.
    """
    if is_numpy_asked():
        return Arithmetic()
    library = KernelLibrary(Locations.of_user().kernels, on_compile=on_compile, is_apart=True)
    return Arithmetic(library, n_threads or physical_cores())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking through hundreds of thousands of strings, all of which stay, while they are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reasons(stop_ids: StopIds) -> dict[int, StopReason]:
    return {
        **dict.fromkeys(stop_ids.end_of_sequence, StopReason.EOS),
        **dict.fromkeys(stop_ids.tool_calls, StopReason.TOOL_CALLS),
        **dict.fromkeys(stop_ids.end_of_turn, StopReason.END_OF_TURN),
    }


def _choose_context(loaded: LoadedModel, asked: int | None, free_memory: FreeMemory) -> int:
    """Return the context length: the one asked for, or the model's, as far as the free memory holds it."""
    longest = loaded.config.context_length
    if asked is None:
        return _affordable_context(loaded, int(free_memory() * SHARE_OF_FREE_MEMORY))
    if not 1 <= asked <= longest:
        raise SettingError(f"ctx is {asked}: give 1 to {longest}, which is this model's limit")
    return asked


def _affordable_context(loaded: LoadedModel, available: int) -> int:
    longest = loaded.config.context_length
    affordable = bisect_right(range(longest + 1), available, key=loaded.kv_bytes) - 1
    least = min(longest, GROWTH_STEP)
    if affordable < least:
        raise MemoryOverflowError(
            f"a KV cache of {least} positions", loaded.kv_bytes(least), available,
            advice="close other programs or take a smaller model",
        )  # fmt: skip
    if affordable < longest:
        warnings.warn(
            f"the context is limited to {affordable} of {longest} positions by the free memory;"
            " `--ctx` sets another limit",
            ModelWarning,
            stacklevel=4,
        )
    return min(longest, affordable)


def _memory_check(
    loaded: LoadedModel, runner: Runner[KvPrefix, Any], free_memory: FreeMemory
) -> Callable[[int], None]:
    """Return a check that refuses more positions than the free memory holds, before they are computed.

    Where it holds them, but not beside a state that would stay whole, that one is not to stay.
    """

    def check(n_positions: int) -> None:
        # Growing a layer's arrays holds the old and the new ones at once, one layer at a time.
        whole, one_layer = loaded.kv_bytes(n_positions), loaded.largest_layer_bytes(n_positions)
        growth = max(whole - runner.state.n_bytes, 0)
        needed = growth + one_layer
        available = free_memory()
        runner.may_copy = whole + one_layer <= available
        while growth and needed > available and runner.evict_parked():
            available = free_memory()
        if growth and needed > available:
            raise MemoryOverflowError(
                f"a KV cache of {n_positions} positions", needed, available,
                advice="shorten the conversation with `/forget` or `/clear`, or set a smaller `--ctx`",
            )  # fmt: skip

    return check


def check_model(path: Path) -> None:
    """Check that a file can be loaded, loading nothing.

    Raises:
        ModelFileError: what stands in the way.
    """
    with GgufFile.open(path) as file:
        read_supported(file)


def list_models(locations: Locations) -> list[tuple[str, ...]]:
    """Return the catalogue as rows: name, whether installed, what it is, its licence."""
    return [
        (
            entry.name,
            "installed" if is_installed(entry, locations) else f"`ts pull {entry.name}`",
            entry.description,
            entry.licence,
        )
        for entry in CATALOG.values()
    ]


def describe_model(path: Path) -> list[tuple[str, ...]]:
    """Return what a model file says of itself, as rows of name and value; also for one that cannot be run."""
    with GgufFile.open(path) as file:
        metadata = file.metadata
        types = Counter(_type_name(info.ggml_type) for info in file.tensors.values())
        n_parameters = sum(prod(info.shape) for info in file.tensors.values())
        rows = [
            ("file", str(path)),
            ("size", f"{path.stat().st_size / 1e6:,.0f} MB"),
            ("name", str(metadata.get("general.name", "–"))),
            ("architecture", str(metadata.get("general.architecture", "–"))),
            ("parameters", f"{n_parameters / 1e6:,.0f} million"),
            ("tensors", ", ".join(f"{count} {name}" for name, count in types.most_common())),
        ]
        try:
            config, vocabulary = read_supported(file)
        except ModelFileError as error:
            return [*rows, ("runs here", f"no: {error.problem}")]
        takes = footprint(file, config, choose_arithmetic())
        stops = [vocabulary.pieces[token_id] for token_id in sorted(gather_stop_ids(vocabulary).all)]
        template = metadata.get("tokenizer.chat_template")
        return [
            *rows,
            (
                "layers",
                f"{config.n_layers} of width {config.dim}, {config.n_heads} heads, {config.n_kv_heads} key/value",
            ),
            ("context length", str(config.context_length)),
            *_cache_rows(config, takes.row_bytes),
            ("vocabulary", f"{len(vocabulary.pieces)} tokens, {vocabulary.family}"),
            ("stop tokens", " ".join(stops) or "–"),
            ("chat template", f"{len(template)} characters" if isinstance(template, str) else "none"),
            ("arithmetic", takes.arithmetic),
            ("weights in memory", f"{takes.weight_bytes / 1e6:,.0f} MB"),
            ("runs here", "yes"),
        ]


def _cache_rows(config: ModelConfig, row_bytes: int) -> list[tuple[str, ...]]:
    """Return what the KV cache takes: a position in the layers that see everything, and the windows together."""
    windows = [window for window in config.windows if window is not None]
    n_global = config.n_layers - len(windows)
    a_position = f"{n_global * row_bytes / 1e3:,.0f} kB a position"
    if not windows:
        return [("KV cache", a_position)]
    n_bytes = row_bytes * count_rows(windows, config.context_length, slack=WINDOW_SLACK)
    return [
        ("sliding window", f"{max(windows)} positions, in {len(windows)} of {config.n_layers} layers"),
        ("KV cache", f"{a_position}, and up to {n_bytes / 1e6:,.0f} MB for the windows"),
    ]


def _type_name(ggml_type: int) -> str:
    return ggml_type.name if isinstance(ggml_type, GgmlType) else f"type {ggml_type}"
