"""From a model file to something to chat with: what is put together, and that no damage escapes as a traceback."""

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_file import Tensor, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import CHATML, COMPILED_SIZES, SIZES, Sizes, tiny_metadata, tiny_tensors, write_tiny_model

from turbospark_chat import assembly
from turbospark_chat.assembly import choose_arithmetic, describe_model, list_models, open_chat_model
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.message import Message
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.errors import (
    MemoryOverflowError,
    ModelFileError,
    ModelWarning,
    SettingError,
    TemplateError,
    TurboSparkError,
)
from turbospark_chat.models import kernel_library
from turbospark_chat.models.catalog import CATALOG, installed_path
from turbospark_chat.models.loader import ARCHITECTURES, Arithmetic, LoadedModel
from turbospark_chat.models.retention import GROWTH_STEP
from turbospark_chat.settings import ARITHMETIC_VARIABLE, CACHE_DIR_VARIABLE, Locations
from turbospark_chat.threads import physical_cores

N_TOKENS = 259  # of the tiny model's vocabulary
POSITION_BYTES = 2 * 2 * 2 * 8 * 4  # keys and values of its two layers, two heads of 8 numbers, float32
PLENTY = 10**9
CONTEXT = 2048
SOUND = tiny_metadata(context_length=CONTEXT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", context_length=CONTEXT)


def open_model(
    path: Path, *, ctx: int | None = None, free: int | Callable[[], int] = PLENTY, is_raw: bool = False
) -> ChatModel:
    free_memory = free if callable(free) else lambda: free
    return open_chat_model(path, context_length=ctx, is_raw=is_raw, free_memory=free_memory)


# --- what is put together ---


def test_a_file_becomes_a_chat_model(path: Path) -> None:
    model = open_model(path)
    prompt = model.template.render([Message("user", "hi")], add_generation_prompt=True)
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.producer.vocab_size == model.tokenizer.n_tokens == N_TOKENS
    assert model.stop_ids == {model.tokenizer.control_ids["<|im_end|>"]: StopReason.END_OF_TURN}
    assert model.context_length == CONTEXT
    assert model.reasoning_tags is None
    logits = model.producer.produce_chunk([1, 2, 3], 0, need_logits=True)
    assert logits is not None
    assert np.isfinite(logits).all()


def test_each_stop_token_ends_a_reply_for_its_reason(tmp_path: Path) -> None:
    eos, eom = 256, 257  # ordinary pieces, which only the metadata names
    path = write_tiny_model(
        tmp_path / "tiny.gguf", tokenizer__ggml__eos_token_id=eos, tokenizer__ggml__eom_token_id=eom
    )
    model = open_model(path)
    assert model.stop_ids[eos] is StopReason.EOS
    assert model.stop_ids[eom] is StopReason.TOOL_CALLS
    assert model.stop_ids[model.tokenizer.control_ids["<|im_end|>"]] is StopReason.END_OF_TURN


def test_special_tokens_are_spelled_for_the_template(tmp_path: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}{{ add_generation_prompt }}"
    path = write_tiny_model(tmp_path / "tiny.gguf", tokenizer__chat_template=source)
    prompt = open_model(path).template.render([Message("user", "hi")], add_generation_prompt=True)
    assert prompt.text == "<|im_start|>|<|im_end|>|hiTrue"


def test_a_template_that_thinks_gives_reasoning_tags(tmp_path: Path) -> None:
    source = CHATML.replace("assistant\n", "assistant\n<think>\n").replace(
        "{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"
    )
    tags = open_model(write_tiny_model(tmp_path / "t.gguf", tokenizer__chat_template=source)).reasoning_tags
    assert tags is not None
    assert (tags.opening, tags.closing) == ("<think>", "</think>")


def test_a_file_without_a_template_gets_one_and_says_so(tmp_path: Path) -> None:  # E12
    path = write_tiny_model(tmp_path / "tiny.gguf", tokenizer__chat_template=None)
    with pytest.warns(ModelWarning, match="no chat template: using ChatML"):
        assert open_model(path).template.fallback == "ChatML"


@pytest.mark.parametrize("source", [None, "{% for", CHATML])
def test_raw_text_needs_no_template(source: str | None, tmp_path: Path) -> None:  # E12
    path = write_tiny_model(tmp_path / "tiny.gguf", tokenizer__chat_template=source)
    assert open_model(path, is_raw=True).tokenizer.n_tokens == N_TOKENS


# --- what computes ---


@pytest.fixture
def compiled_path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "compiled.gguf", kind="Q4_1", sizes=COMPILED_SIZES)


def test_a_chat_model_says_what_computes_it(path: Path, compiled_path: Path, compiled: Arithmetic) -> None:
    n_cores = physical_cores()
    default = f"compiled, {n_cores} thread" + "s" * (n_cores > 1)
    assert open_model(compiled_path).arithmetic == default
    assert open_chat_model(compiled_path, context_length=None, arithmetic=compiled).arithmetic == (
        "compiled, 2 threads"
    )
    assert open_model(path).arithmetic == "numpy, float32"


def test_the_environment_can_ask_for_numpy(compiled_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARITHMETIC_VARIABLE, "numpy")
    assert open_model(compiled_path).arithmetic == "numpy, float32"
    assert dict(describe_model(compiled_path))["arithmetic"] == "numpy, in float32: as asked"


def test_without_a_number_there_is_a_thread_for_each_core() -> None:
    assert choose_arithmetic().n_threads == physical_cores()
    assert choose_arithmetic(3).n_threads == 3


@pytest.mark.parametrize("opens", [open_model, describe_model])
def test_an_arithmetic_that_does_not_exist_is_refused(
    opens: Callable[[Path], Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ARITHMETIC_VARIABLE, "fast")
    with pytest.raises(SettingError, match="TS_ARITHMETIC is 'fast': give compiled or numpy"):
        opens(path)


def test_kernels_that_cannot_be_compiled_leave_numpy_to_compute_and_the_progress_at_its_end(
    compiled_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> bytes:
        raise kernel_library.KernelsUnavailableError(f"`{name}` cannot be compiled: no such processor")

    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_library, "compile_one", fail)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # another process would not fail
    heard: list[tuple[int, int]] = []
    arithmetic = choose_arithmetic(1, on_compile=lambda done, total: heard.append((done, total)))
    with pytest.warns(
        ModelWarning, match="numpy computes, which is slower: `run` cannot be compiled: no such"
    ):
        model = open_chat_model(compiled_path, context_length=None, arithmetic=arithmetic)
    assert model.arithmetic == "numpy, float32"
    n_kernels = heard[0][1]
    assert heard[-2:] == [(0, n_kernels), (n_kernels, n_kernels)]  # so that no line is left on a screen


@pytest.mark.parametrize("was_enabled", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("name", ["tiny.gguf", "no such file"])
def test_garbage_collection_rests_while_a_model_loads_and_is_as_before_afterwards(
    was_enabled: bool, name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, during = assembly.load_model, []

    def watch(*arguments: Any, **options: Any) -> LoadedModel:
        during.append(gc.isenabled())
        return load(*arguments, **options)

    monkeypatch.setattr(assembly, "load_model", watch)
    try:
        if not was_enabled:
            gc.disable()
        if name == path.name:
            open_model(path)
        else:
            with pytest.raises(ModelFileError):
                open_model(path.with_name(name))
        assert (during, gc.isenabled()) == ([False], was_enabled)
    finally:
        gc.enable()


# --- memory and context ---


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (2 * POSITION_BYTES * CONTEXT, CONTEXT),
        (2 * POSITION_BYTES * 10 * CONTEXT, CONTEXT),
        (2 * POSITION_BYTES * 1500, 1500),
        (2 * POSITION_BYTES * 1500 - 1, 1499),
        (2 * POSITION_BYTES * GROWTH_STEP, GROWTH_STEP),
    ],
)
def test_context_is_the_models_as_far_as_half_the_free_memory_holds_it(
    path: Path, free: int, expected: int
) -> None:  # T67
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert open_model(path, free=free).context_length == expected
    choice = f"the context is limited to {expected} of {CONTEXT} positions by the free memory"
    assert [str(warning.message).startswith(choice) for warning in said] == [True] * (expected < CONTEXT)


def test_memory_for_no_useful_context_is_refused(path: Path) -> None:  # T67
    with pytest.raises(MemoryOverflowError, match=f"a KV cache of {GROWTH_STEP} positions") as caught:
        open_model(path, free=2 * POSITION_BYTES * GROWTH_STEP - 2)
    assert caught.value.needed == POSITION_BYTES * GROWTH_STEP


@pytest.mark.parametrize("ctx", [1, 100, CONTEXT])
def test_context_asked_for_is_given_whatever_memory_is_free_now(path: Path, ctx: int) -> None:
    assert open_model(path, ctx=ctx, free=200_000).context_length == ctx


@pytest.mark.parametrize("ctx", [-1, 0, CONTEXT + 1, 10**12])
def test_context_outside_the_models_range_is_refused_with_the_range(path: Path, ctx: int) -> None:
    with pytest.raises(SettingError, match=f"ctx is {ctx}: give 1 to {CONTEXT}"):
        open_model(path, ctx=ctx)


def test_weights_that_do_not_fit_are_refused_with_both_numbers(path: Path) -> None:  # G11
    with pytest.raises(
        MemoryOverflowError, match=r"tiny\.gguf, as float32, needs 0 MB, 0 MB is free"
    ) as caught:
        open_model(path, free=100)
    assert (caught.value.exit_code, caught.value.available) == (4, 100)


def test_a_cache_that_would_not_fit_is_refused_before_it_is_computed(path: Path) -> None:  # G6, T68
    free = PLENTY
    model = open_model(path, free=lambda: free)
    needed = POSITION_BYTES * 1000 + POSITION_BYTES * 1000 // 2  # and one layer twice, while it grows
    free = needed
    model.check_memory(1000)
    free = needed - 1
    with pytest.raises(MemoryOverflowError, match="a KV cache of 1000 positions") as caught:
        model.check_memory(1000)
    assert (caught.value.needed, caught.value.available) == (needed, free)


def test_what_the_cache_already_has_is_not_asked_for_again(path: Path) -> None:  # G6
    free = PLENTY
    model = open_model(path, free=lambda: free)
    model.producer.produce_chunk([1] * GROWTH_STEP, 0, need_logits=False)
    free = 0
    model.check_memory(GROWTH_STEP)
    with pytest.raises(MemoryOverflowError):
        model.check_memory(GROWTH_STEP + 1)


# --- damaged and unsupported files ---


def write(
    folder: Path, changes: Mapping[str, object], tensors: Mapping[str, Tensor | None] | None = None
) -> Path:
    """Write a sound model but for some metadata and tensors; None takes one out."""
    metadata = {key: value for key, value in {**SOUND, **changes}.items() if value is not None}
    stored = {name: value for name, value in {**tiny_tensors(N_TOKENS), **(tensors or {})}.items() if value}
    return write_gguf(folder / "model.gguf", metadata, stored)


def zeros(*shape: int) -> Tensor:
    return ("F32", shape, np.zeros(shape, np.float32))


TOKENS = SOUND["tokenizer.ggml.tokens"]
assert isinstance(TOKENS, list)
DAMAGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no architecture": ({"general.architecture": None}, {}),
    "architecture of another type": ({"general.architecture": 3}, {}),
    "huge block count": ({"llama.block_count": 2**31}, {}),
    "block count larger by one": ({"llama.block_count": 3}, {}),
    "no heads": ({"llama.attention.head_count": 0}, {}),
    "more heads than width": ({"llama.attention.head_count": 2**31}, {}),
    "heads of another number": ({"llama.attention.head_count": 2}, {}),
    "huge head": ({"llama.attention.key_length": 2**31}, {}),
    "no layer width": ({"llama.embedding_length": 0}, {}),
    "huge feed-forward width": ({"llama.feed_forward_length": 2**39}, {}),
    "count that is text": ({"llama.block_count": "two"}, {}),
    "count that is a list": ({"llama.attention.head_count_kv": [2, 2]}, {}),
    "NaN epsilon": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, {}),
    "infinite rope base": ({"llama.rope.freq_base": float("inf")}, {}),
    "no rope base": ({"llama.rope.freq_base": 0.0}, {}),
    "NaN rope scale": ({"llama.rope.scaling.factor": float("nan")}, {}),
    "no context": ({"llama.context_length": 0}, {}),
    "no tokens": ({"tokenizer.ggml.tokens": None}, {}),
    "tokens that are numbers": ({"tokenizer.ggml.tokens": [1, 2, 3]}, {}),
    "one token less than types": ({"tokenizer.ggml.tokens": TOKENS[:-1]}, {}),
    "types for too few tokens": ({"tokenizer.ggml.token_type": [1, 1]}, {}),
    "types that are text": ({"tokenizer.ggml.token_type": ["a"] * N_TOKENS}, {}),
    "merges of unknown pieces": ({"tokenizer.ggml.merges": ["nothing known"]}, {}),
    "merges that are numbers": ({"tokenizer.ggml.merges": [1]}, {}),
    "stop id that is text": ({"tokenizer.ggml.eos_token_id": "end"}, {}),
    "flag that is a number": ({"tokenizer.ggml.add_bos_token": 1}, {}),
    "another tokenizer": ({"tokenizer.ggml.model": "rwkv"}, {}),
    "tensor missing": ({}, {"blk.1.ffn_up.weight": None}),
    "embedding missing": ({}, {"token_embd.weight": None}),
    "embedding that is one number": ({}, {"token_embd.weight": zeros()}),
    "embedding that is a vector": ({}, {"token_embd.weight": zeros(32)}),
    "embedding with too few rows": ({}, {"token_embd.weight": zeros(258, 32)}),
    "tensor transposed": ({}, {"blk.0.ffn_up.weight": zeros(32, 48)}),
    "tensor unknown": ({}, {"blk.0.attn_q_norm.weight": zeros(8)}),
    "tensor of another block": ({}, {"blk.9.attn_norm.weight": zeros(32)}),
    "tensor type unknown": ({}, {"blk.0.ffn_up.weight": (39, (48, 32), bytes(48 * 17))}),
    "rope divisors of zero": ({}, {"rope_freqs.weight": zeros(4)}),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_ends_in_one_line_and_exit_code_3(damage: str, tmp_path: Path) -> None:  # 19, F14
    with pytest.raises(ModelFileError) as caught:
        open_model(write(tmp_path, *DAMAGED[damage]))
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith(f"{tmp_path}/model.gguf: ")
    assert len(str(caught.value).splitlines()) == 1


def test_the_undamaged_file_opens(tmp_path: Path) -> None:
    assert open_model(write(tmp_path, {})).context_length == CONTEXT


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for m in messages %}\n{{ m.content", "cannot be parsed: line 2"),
        ("{{ nothing | no_such_filter }}", "no_such_filter"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "cannot be compiled"),
    ],
)
def test_template_that_does_not_parse_says_where(source: str, problem: str, tmp_path: Path) -> None:  # E12
    with pytest.raises(TemplateError, match=problem):
        open_model(write(tmp_path, {"tokenizer.chat_template": source}))


def open_tolerantly(path: Path) -> None:
    """Open a file that may be damaged; only an error the program can explain may come of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        try:
            open_model(path)
        except TurboSparkError as error:
            assert error.exit_code in (3, 4) or isinstance(error, TemplateError)
            assert str(error)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sound"), {})


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "model.gguf"


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(sound: Path, damaged: Path, share: float) -> None:  # F14
    content = sound.read_bytes()
    damaged.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelFileError):
        open_model(damaged)


HEADER_BYTES = 5000  # metadata and descriptions of tensors
CHANGES = st.tuples(st.integers(0, HEADER_BYTES), st.binary(min_size=1, max_size=9))


@settings(max_examples=60)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_bytes_changed_anywhere_in_the_header_end_in_no_other_error(
    sound: Path, damaged: Path, changes: list[tuple[int, bytes]]
) -> None:  # 19
    broken = bytearray(sound.read_bytes())
    for at, replacement in changes:
        broken[at : at + len(replacement)] = replacement
    damaged.write_bytes(broken)
    open_tolerantly(damaged)


VALUES = (
    st.none() | st.booleans() | st.integers(-(2**31), 2**32 - 1) | st.integers(0, 70) | st.floats(width=32)
    | st.text(max_size=5) | st.lists(st.integers(-9, 300), max_size=4)
    | st.lists(st.text(max_size=3), min_size=1, max_size=4)
)  # fmt: skip


@settings(max_examples=80)
@given(changes=st.dictionaries(st.sampled_from(list(SOUND)), VALUES, min_size=1, max_size=2))
def test_metadata_of_any_kind_ends_in_no_other_error(damaged: Path, changes: dict[str, object]) -> None:  # 19
    open_tolerantly(write(damaged.parent, changes))


# --- listings ---


def test_every_catalogue_model_is_listed_with_how_to_get_it(tmp_path: Path) -> None:
    locations = replace(Locations.of_user(), models=tmp_path)
    assert [row[:2] for row in list_models(locations)] == [(name, f"`ts pull {name}`") for name in CATALOG]
    for entry in CATALOG.values():
        with installed_path(entry, locations).open("wb") as file:
            file.truncate(entry.n_bytes)
    assert {row[1] for row in list_models(locations)} == {"installed"}


def test_a_model_is_described_in_its_own_numbers(path: Path) -> None:
    rows = dict(describe_model(path))
    assert rows["file"] == str(path)
    assert rows["name"] == "tiny"
    assert rows["architecture"] == "llama"
    assert rows["layers"] == "2 of width 32, 4 heads, 2 key/value"
    assert rows["context length"] == str(CONTEXT)
    assert rows["vocabulary"] == "259 tokens, byte_level"
    assert rows["stop tokens"] == "<|im_end|>"
    assert rows["tensors"] == "20 F32"
    assert rows["runs here"] == "yes"


@pytest.mark.parametrize(
    ("sizes", "arithmetic", "position_kb"),
    [
        pytest.param(
            {**COMPILED_SIZES, "layers": 128}, "compiled, on the weights as they are",
            2 * 128 * 2 * (2 * 16 + 4) / 1e3, id="compiled",
        ),
        pytest.param(
            {**SIZES, "layers": 128}, "numpy, in float32: heads of 8 numbers, not of a multiple of 16",
            2 * 128 * 2 * 8 * 4 / 1e3, id="numpy",
        ),
    ],
)  # fmt: skip
def test_a_model_is_described_with_what_computes_it_and_the_memory_that_takes(
    sizes: Sizes, arithmetic: str, position_kb: float, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", kind="F16", sizes=sizes)
    rows = dict(describe_model(path))
    n_bytes = path.stat().st_size
    if arithmetic.startswith("numpy"):
        tensors = tiny_tensors(N_TOKENS, sizes=sizes).values()
        n_bytes = sum(values.nbytes for _, _, values in tensors if not isinstance(values, bytes))
    assert rows["arithmetic"] == arithmetic
    assert rows["weights in memory"] == f"{n_bytes / 1e6:,.0f} MB" != "0 MB"
    assert rows["KV cache"] == f"{position_kb:,.0f} kB a position" != "0 kB a position"


def test_windows_are_described_with_their_number_and_what_they_take_at_most(tmp_path: Path) -> None:
    sizes = {**SIZES, "layers": 128}
    path = write_tiny_model(
        tmp_path / "tiny.gguf",
        sizes=sizes,
        architecture="gemma3",
        context_length=4096,
        gemma3__attention__sliding_window=200,
        gemma3__attention__sliding_window_pattern=4,
    )
    rows = dict(describe_model(path))
    row_bytes = 2 * 2 * 8 * 4
    window_rows = 200 + 512 + 256 + 4 * 199
    assert rows["sliding window"] == "200 positions, in 96 of 128 layers"
    a_position, all_windows = 32 * row_bytes / 1e3, 96 * row_bytes * window_rows / 1e6
    assert rows["KV cache"] == (
        f"{a_position:,.0f} kB a position, and up to {all_windows:,.0f} MB for the windows"
    )
    assert rows["runs here"] == "yes"
    assert "sliding window" not in dict(describe_model(write_tiny_model(tmp_path / "plain.gguf")))


def test_context_with_windows_is_what_the_free_memory_holds_of_it(tmp_path: Path) -> None:  # T67
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture="gemma3", context_length=16_384)
    row_bytes, window_rows = 2 * 2 * 8 * 4, 24 + 512 + 256 + 4 * 23
    for n_positions in (5000, 16_384):
        free = 2 * row_bytes * (n_positions + window_rows)  # one layer of each kind
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            assert open_model(path, free=free).context_length == n_positions
            assert open_model(path, free=free - 2).context_length == n_positions - 1
    model = open_model(path, free=lambda: free)
    free = row_bytes * (2 * 9000 + window_rows)  # the layer that sees everything twice, while it grows
    model.check_memory(9000)
    free -= 1
    with pytest.raises(MemoryOverflowError, match="a KV cache of 9000 positions"):
        model.check_memory(9000)


def test_describing_a_model_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_library.KernelLibrary, "load", None)
    describe_model(write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changes", "tensors", "problem"),
    [
        ({"general.architecture": "mamba"}, {}, "architecture `mamba` is not supported"),
        ({"llama.expert_count": 8}, {}, "mixture-of-experts"),
        ({}, {"blk.0.ffn_up.weight": (39, (48, 32), bytes(48 * 17))}, "unsupported type 39"),
        ({}, {"blk.0.attn_q_norm.weight": zeros(8)}, "has no part in the `llama` architecture"),
        ({}, {"output_norm.weight": None}, "tensor `output_norm.weight` is missing"),
        ({"tokenizer.ggml.tokens": None}, {}, "lacks `tokenizer.ggml.tokens`"),
        ({"llama.block_count": None}, {}, "lacks `llama.block_count`"),
    ],
)
def test_a_model_that_cannot_run_is_described_as_far_as_it_goes(
    changes: dict[str, Any], tensors: dict[str, Any], problem: str, tmp_path: Path
) -> None:  # F13
    path = write(tmp_path, changes, tensors)
    rows = dict(describe_model(path))
    assert rows["name"] == "tiny"
    assert rows["runs here"].startswith("no: ")
    assert problem in rows["runs here"]
    with pytest.raises(ModelFileError):
        open_model(path)


def test_a_file_that_is_no_model_cannot_be_described(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        describe_model(tmp_path / "text.gguf")


@pytest.mark.parametrize("sizes", [SIZES, COMPILED_SIZES], ids=["numpy", "compiled"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_reuses_the_whole_first_turn_in_the_second(  # T59
    tmp_path: Path, architecture: str, sizes: Sizes
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=sizes, architecture=architecture)
    session = ChatSession(open_chat_model(path, context_length=None))
    session.set_option("max_tokens", "8")
    session.set_option("temperature", "0")  # a drawn reply may end within a character, which is then cut off
    first, second = (
        session.send(text, cancel=threading.Event(), on_event=lambda event: None).raw
        for text in ("one", "two")
    )
    assert second.reused_prefix_tokens >= first.prompt_tokens + first.new_tokens - 1
