"""GGUF files, sound and hostile: what is read, and that nothing is believed before it is checked."""

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_file import entry, gguf_bytes, head, random_blocks, string, tensor_info, u32, u64, write_gguf
from hypothesis import example, given
from hypothesis import strategies as st

from turbospark_chat.errors import ModelFileError, UnsupportedModelError
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.quants import GgmlType, dequantize

ARRAY, STRING, UINT8 = 9, 8, 0  # value types
F32, Q4_0 = int(GgmlType.F32), int(GgmlType.Q4_0)

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "ü", "\u2581the", ""],
    "tokenizer.ggml.scores": np.array([0.5, -1.0, 2.0, 0.0], "<f4"),
    "tokenizer.ggml.token_type": [1, 3, -1, 6],
}


def small_file(**more: Any) -> bytes:
    """A sound file of three tensors, the last of which ends with the file."""
    rng = np.random.default_rng(0)
    tensors = {
        "a.weight": ("F32", (2, 3), np.arange(6, dtype=np.float32)),
        "b.weight": ("Q4_K", (2, 256), random_blocks("Q4_K", (2, 256), rng)),
        "c.weight": ("F16", (16,), np.arange(16, dtype=np.float32)),
    }
    return gguf_bytes(METADATA | more, tensors)


def one_tensor(*, shape: tuple[int, ...] = (8,), kind: int = F32, offset: int = 0, n_data: int = 32) -> bytes:
    header = head(1, 0) + tensor_info("x.weight", shape, kind, offset)
    return header + bytes(-len(header) % 32) + bytes(n_data)


def two_tensors(name: str, offset: int) -> bytes:
    header = head(2, 0) + tensor_info("x", (16,), F32, 0) + tensor_info(name, (8,), F32, offset)
    return header + bytes(-len(header) % 32) + bytes(96)


def read_everything(path: Path) -> None:
    with GgufFile.open(path) as file:
        dict(file.metadata)
        file.check_supported()
        for name in file.tensors:
            file.load(name)


@pytest.fixture
def make(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# --- what is read ---


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_read_as_written(tmp_path: Path, version: int) -> None:
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(4, 32)
    path = write_gguf(tmp_path / "m.gguf", METADATA, {"w": ("Q8_0", (4, 32), values)}, version=version)
    with GgufFile.open(path) as file:
        assert file.path == path
        assert list(file.metadata) == list(METADATA)
        assert file.metadata["tokenizer.ggml.tokens"] == METADATA["tokenizer.ggml.tokens"]
        assert file.metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1.0, 2.0, 0.0]
        assert file.metadata["tokenizer.ggml.token_type"].tolist() == [1, 3, -1, 6]
        info = file.tensors["w"]
        assert (info.ggml_type, info.shape, info.n_bytes) == (GgmlType.Q8_0, (4, 32), 4 * 34)
        assert np.allclose(file.load("w"), values, atol=1 / 127)


def test_our_reading_equals_the_gguf_packages(make: Callable[..., Path]) -> None:
    path = make(small_file())
    theirs = gguf.GGUFReader(path)
    with GgufFile.open(path) as ours:
        for key in METADATA:
            value = ours.metadata[key]
            expected = theirs.fields[key].contents()
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(tensor.shape.tolist()[::-1])
            assert (info.offset, info.n_bytes) == (tensor.data_offset, tensor.n_bytes)
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(ours.load(tensor.name).view("u4"), expected.view("u4"))


@pytest.mark.parametrize(
    "value",
    [
        np.uint8(255),
        np.int8(-128),
        np.uint16(65535),
        np.int16(-32768),
        np.uint32(2**32 - 1),
        np.int32(-(2**31)),
        np.uint64(2**64 - 1),
        np.int64(-(2**63)),
        np.float32(0.1),
        np.float64(0.1),
        np.bool_(True),
        np.bool_(False),
        "",
        "two\nlines \U0001f600",
    ],
    ids=repr,
)
def test_a_scalar_becomes_the_python_value(make: Callable[..., Path], value: Any) -> None:
    expected = value if isinstance(value, str) else value.item()
    with GgufFile.open(make(gguf_bytes({"key": value}, {}))) as file:
        assert file.metadata["key"] == expected
        assert type(file.metadata["key"]) is type(expected)


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "<u8", "<i8", "<f8"])
def test_an_array_keeps_its_type_and_cannot_be_written(make: Callable[..., Path], dtype: str) -> None:
    with GgufFile.open(make(gguf_bytes({"key": np.array([0, 1, 1], dtype)}, {}))) as file:
        numbers = file.metadata["key"]
        assert numbers.dtype == np.dtype(dtype)
        assert numbers.tolist() == [0, 1, 1]
        assert not numbers.flags.writeable


def test_an_empty_array_is_read(make: Callable[..., Path]) -> None:
    entries = string("s") + u32(ARRAY) + u32(STRING) + u64(0) + string("n") + u32(ARRAY) + u32(UINT8) + u64(0)
    with GgufFile.open(make(head(0, 2) + entries)) as file:
        assert file.metadata["s"] == []
        assert file.metadata["n"].tolist() == []


def test_asking_for_a_key_decodes_nothing(make: Callable[..., Path]) -> None:
    with GgufFile.open(make(small_file())) as file:
        metadata = file.metadata
    with pytest.raises(ValueError, match="closed"):
        metadata["tokenizer.ggml.tokens"]
    assert "tokenizer.ggml.tokens" in metadata
    assert "absent" not in metadata


def test_an_array_of_one_is_an_array(make: Callable[..., Path]) -> None:
    with GgufFile.open(make(gguf_bytes({"s": ["one"], "n": [1]}, {}))) as file:
        assert file.metadata["s"] == ["one"]
        assert file.metadata["n"].tolist() == [1]


def test_what_is_not_utf8_is_read_with_replacements(make: Callable[..., Path]) -> None:
    pieces = [b"\xe4", b"\xf6", "ö".encode()]
    with GgufFile.open(make(gguf_bytes({"tokens": pieces, "name": b"\xff!"}, {}))) as file:
        assert file.metadata["tokens"] == ["\ufffd", "\ufffd", "ö"]
        assert file.metadata["name"] == "\ufffd!"


def test_an_integer_is_the_value_or_the_default(make: Callable[..., Path]) -> None:
    with GgufFile.open(make(small_file())) as file:
        assert file.metadata.get_int("llama.block_count", 7) == 2
        assert file.metadata.get_int("absent", 7) == 7
        assert file.metadata["tokenizer.ggml.tokens"][2] == "\u2581the"


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("general.architecture", "string"),
        ("tokenizer.ggml.add_bos_token", "bool"),
        ("llama.rope.freq_base", "float32"),
        ("tokenizer.ggml.scores", "array of 4 float32"),
        ("tokenizer.ggml.tokens", "array of 4 string"),
    ],
)
def test_a_value_of_another_type_names_key_and_both_types(
    make: Callable[..., Path], key: str, found: str
) -> None:
    with GgufFile.open(make(small_file())) as file, pytest.raises(ModelFileError) as caught:
        file.metadata.get_int(key, 0)
    assert caught.value.problem == f"metadata `{key}` should be an integer, found {found}"


def test_tensor_bytes_are_the_files_and_cannot_be_written(make: Callable[..., Path]) -> None:  # G11
    content = small_file()
    with GgufFile.open(make(content)) as file:
        info = file.tensors["b.weight"]
        data = file.tensor_bytes("b.weight")
        assert data.tobytes() == content[info.offset : info.offset + info.n_bytes]
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1


def test_a_view_outlives_the_file_and_the_last_view_ends_the_mapping(make: Callable[..., Path]) -> None:
    path = make(small_file())
    with GgufFile.open(path) as file:
        view = file.tensor_bytes("a.weight")
    assert view.view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
    with GgufFile.open(path) as file:
        pass
    with pytest.raises(ValueError, match="closed"):
        file.load("a.weight")


def test_another_alignment_is_obeyed(tmp_path: Path) -> None:
    tensors = {name: ("F32", (3,), np.array([1, 2, 3])) for name in "ab"}
    for alignment in (8, 4096):
        path = write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, tensors)
        with GgufFile.open(path) as file:
            assert file.load("b").tolist() == [1, 2, 3]
            assert file.tensors["b"].offset % alignment == 0


def test_a_tensor_may_have_no_dimension_or_four(make: Callable[..., Path]) -> None:
    tensors = {"s": ("F32", (), np.array(2.5)), "q": ("F32", (1, 2, 1, 3), np.arange(6))}
    with GgufFile.open(make(gguf_bytes({}, tensors))) as file:
        assert file.load("s").tolist() == 2.5
        assert file.load("q").tolist() == [[[[0, 1, 2]], [[3, 4, 5]]]]


def test_a_vocabulary_of_262144_words_opens_in_less_than_three_tenths_of_a_second(
    make: Callable[..., Path],
) -> None:
    path = make(gguf_bytes({"tokenizer.ggml.tokens": [f"word{n}" for n in range(262_144)]}, {}))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        GgufFile.open(path).close()
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


@pytest.mark.weights
def test_a_real_file_of_262144_words_opens_in_time_and_is_supported(gemma3_path: Path) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        with GgufFile.open(gemma3_path) as file:
            seconds.append(time.perf_counter() - start)
            file.check_supported()
            assert len(file.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert min(seconds) < 0.3


# --- hostile and damaged headers (case 19) ---


def nested_arrays(depth: int) -> bytes:
    return head(0, 1) + string("k") + u32(ARRAY) + (u32(ARRAY) + u64(1)) * depth + u32(UINT8) + u64(1) + b"\0"


def aligned_to(alignment: Any) -> bytes:
    return head(0, 1) + entry("general.alignment", alignment)


HOSTILE = {
    "n_entries 2**63": (head(0, 2**63), "truncated"),
    "n_tensors 2**63": (head(2**63, 0), "truncated"),
    "n_entries 2**40 of 1 MB": (head(0, 2**40) + bytes(10**6), "truncated"),
    "n_tensors 2**40 of 1 MB": (head(2**40, 0) + bytes(10**6), "truncated"),
    "string length 2**40": (head(0, 1) + string("k") + u32(STRING) + u64(2**40), "truncated"),
    "string length 2**64 - 1": (
        head(0, 1) + string("k") + u32(STRING) + u64(2**64 - 1) + bytes(64),
        "truncated",
    ),
    "key length 2**40": (head(0, 1) + u64(2**40) + bytes(64), "damaged: a name of 1099511627776 bytes"),
    "key cut": (head(0, 1) + u64(200) + bytes(64), "truncated: needs 232 bytes, has 96"),
    "key not UTF-8": (head(0, 1) + entry(b"\xff", 1), "damaged: unreadable name"),
    "key with ESC": (head(0, 1) + entry("a\x1b[2J", 1), "damaged: unreadable name"),
    "array of 2**40 numbers": (
        head(0, 1) + string("k") + u32(ARRAY) + u32(UINT8) + u64(2**40) + bytes(64),
        "truncated",
    ),
    "array of 2**40 strings": (
        head(0, 1) + string("k") + u32(ARRAY) + u32(STRING) + u64(2**40) + bytes(64),
        "truncated",
    ),
    "array of 2**64 - 1 numbers": (
        head(0, 1) + string("k") + u32(ARRAY) + u32(12) + u64(2**64 - 1) + bytes(64),
        "truncated",
    ),
    "strings whose last is cut": (
        head(0, 1) + string("k") + u32(ARRAY) + u32(STRING) + u64(2) + string("a") + u64(9) + b"b",
        "truncated",
    ),
    "strings whose first swallows the second": (
        head(0, 1) + string("k") + u32(ARRAY) + u32(STRING) + u64(2) + u64(9) + bytes(9),
        "truncated",
    ),
    "arrays nested 10 000 deep": (nested_arrays(10_000), "array of arrays"),
    "arrays nested twice": (nested_arrays(1), "array of arrays"),
    "value type 255": (head(0, 1) + string("k") + u32(255) + u64(0), "unknown type 255"),
    "element type 13": (head(0, 1) + string("k") + u32(ARRAY) + u32(13) + u64(0), "unknown type 13"),
    "duplicate key": (head(0, 2) + entry("k", 1) + entry("k", 2), "metadata key `k` appears twice"),
    "n_dims 0xFFFFFFFF": (head(1, 0) + string("x") + u32(0xFFFFFFFF) + bytes(64), "4294967295 dimensions"),
    "n_dims 5": (one_tensor(shape=(1, 1, 1, 1, 1)), "5 dimensions"),
    "dims 2**32 x 2**32": (one_tensor(shape=(2**32, 2**32)), f"truncated: needs {2**66 + 96} bytes"),
    "dims 2**63 x 2": (one_tensor(shape=(2**63, 2)), "truncated"),
    "dims with 0": (one_tensor(shape=(2**40, 0)), "has no values: its shape is (1099511627776, 0)"),
    "alignment 0": (aligned_to(0), "power of two from 8 to 65536: 0"),
    "alignment 3": (aligned_to(3), "power of two from 8 to 65536: 3"),
    "alignment 24": (aligned_to(24), "power of two from 8 to 65536: 24"),
    "alignment 2**30": (aligned_to(2**30), "power of two from 8 to 65536: 1073741824"),
    "alignment -32": (aligned_to(-32), "power of two"),
    "alignment a string": (aligned_to("32"), "should be an integer, found string"),
    "offset past the end": (one_tensor(offset=64), "truncated: needs 160 bytes, has 96"),
    "offset 2**64 - 32": (one_tensor(offset=2**64 - 32), "truncated"),
    "offset unaligned": (one_tensor(offset=16, n_data=96), "`x.weight` is not aligned to 32 bytes"),
    "tensors overlap": (two_tensors("y", 32), "tensors `x` and `y` overlap"),
    "tensors at one place": (two_tensors("y", 0), "overlap"),
    "duplicate tensor": (two_tensors("x", 64), "tensor `x` appears twice"),
    "type 255 in a file": (one_tensor(kind=255), "`x.weight` has the unsupported type 255"),
    "row of 300 in Q4_K": (
        one_tensor(shape=(2, 300), kind=12),
        "`x.weight` of type Q4_K: a row of 300",
    ),  # F19
    "no dimension in Q4_0": (one_tensor(shape=(), kind=Q4_0), "`x.weight` of type Q4_0: a row of 1"),
    "empty file": (b"", "the file is empty"),
    "magic only": (b"GGUF", "truncated: needs 8 bytes, has 4"),
    "other magic": (b"\x80\x04PK" + bytes(64), "not a GGUF file: it begins with b'\\x80\\x04PK'"),
    "big-endian magic": (b"FUGG" + bytes(64), "not a GGUF file"),
    "big-endian version": (b"GGUF\0\0\0\x03" + bytes(64), "big-endian"),
    "version 1": (head(0, 0, version=1), "GGUF version 1; only 2 and 3"),
    "version 0": (head(0, 0, version=0), "GGUF version 0; only 2 and 3"),
    "version 4": (head(0, 0, version=4), "GGUF version 4; only 2 and 3"),
}


@pytest.mark.parametrize(("content", "complaint"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_ends_in_one_line_at_once_and_in_little_memory(
    make: Callable[..., Path], content: bytes, complaint: str
) -> None:
    path = make(content)
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        read_everything(path)
    seconds = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert complaint in caught.value.problem
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert seconds < 1
    assert peak < 50e6


def test_more_strings_than_the_file_can_hold_are_refused_before_the_walk(make: Callable[..., Path]) -> None:
    path = make(head(0, 1) + string("k") + u32(ARRAY) + u32(STRING) + u64(2**40))
    os.truncate(path, 10**9)  # a hole, which reads as a hundred million empty strings
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match="truncated: needs"):
        GgufFile.open(path)
    assert time.perf_counter() - start < 1


def test_a_file_cut_at_any_byte_is_called_truncated(tmp_path: Path) -> None:  # F14
    whole = small_file()
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    read_everything(path)
    for length in reversed(range(4, len(whole))):
        os.truncate(path, length)
        with pytest.raises(
            ModelFileError, match=rf"truncated: needs \d+ bytes, has {length}; download it again"
        ):
            read_everything(path)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_file_cut_within_its_magic_is_called_truncated(make: Callable[..., Path], length: int) -> None:
    with pytest.raises(ModelFileError, match=f"truncated: needs 4 bytes, has {length}"):
        GgufFile.open(make(b"GGUF"[:length]))


@given(position=st.integers(0, len(small_file()) - 1), value=st.integers(0, 255))
@example(position=8, value=255)
def test_any_byte_changed_either_opens_or_is_explained(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    content = bytearray(small_file())
    content[position] = value
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(content)
    try:
        read_everything(path)
    except ModelFileError as error:
        assert "\n" not in str(error)


@given(content=st.binary(max_size=200))
def test_any_bytes_behind_the_magic_either_open_or_are_explained(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(head(1, 1) + content)
    try:
        read_everything(path)
    except ModelFileError as error:
        assert "\n" not in str(error)


# --- sound, but not for us ---


@pytest.mark.parametrize("kind", [39, 41, 156, 2**32 - 1])
def test_an_unsupported_type_is_refused_but_the_metadata_is_listed(  # F13
    make: Callable[..., Path], kind: int
) -> None:
    header = head(1, 1) + entry("general.name", "odd") + tensor_info("x.weight", (2**20, 2**40), kind, 0)
    path = make(header + bytes(-len(header) % 32) + bytes(32))
    with GgufFile.open(path) as file:
        assert file.metadata["general.name"] == "odd"
        assert file.tensors["x.weight"].ggml_type == kind
        attempts = (
            file.check_supported,
            lambda: file.load("x.weight"),
            lambda: file.tensor_bytes("x.weight"),
        )
        for attempt in attempts:
            with pytest.raises(UnsupportedModelError) as caught:
                attempt()
            assert f"{path}: tensor `x.weight` has the unsupported type {kind} (supported: F32 F16" in str(
                caught.value
            )
            assert "\n" not in str(caught.value)


def test_a_missing_tensor_is_not_called_truncated(make: Callable[..., Path]) -> None:  # F14
    with GgufFile.open(make(small_file())) as file:
        file.check_supported()
        with pytest.raises(UnsupportedModelError, match="missing tensor `blk.0.ffn_up.weight`"):
            file.load("blk.0.ffn_up.weight")


def test_a_file_named_as_a_part_is_explained(make: Callable[..., Path]) -> None:  # F14
    with pytest.raises(UnsupportedModelError, match="is part 1 of 2 of one file; join the parts"):
        GgufFile.open(make(small_file(), "model.gguf.part1of2"))


def test_one_of_several_files_lists_its_metadata_but_is_refused(make: Callable[..., Path]) -> None:  # F14
    content = small_file(**{"split.no": np.uint16(0), "split.count": np.uint16(2)})
    with GgufFile.open(make(content, "model-00001-of-00002.gguf")) as file:
        assert file.metadata["general.architecture"] == "llama"
        with pytest.raises(UnsupportedModelError, match="is one of 2 files of a model; merge them"):
            file.check_supported()


def test_a_split_count_of_one_is_a_whole_model(make: Callable[..., Path]) -> None:
    read_everything(make(small_file(**{"split.count": np.uint16(1)})))


# --- paths ---


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, problem in [
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path, "not a file"),
        (pipe, "not a file"),
    ]:
        with pytest.raises(ModelFileError) as caught:
            GgufFile.open(path)
        assert str(caught.value) == f"{path}: {problem}"


def test_a_file_the_system_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {})

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match="m.gguf: cannot be read: Permission denied"):
        GgufFile.open(path)


def test_a_file_cut_short_after_it_was_opened_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, {"general.architecture": "llama"}, {"x.weight": ("F32", (4096,), np.ones(4096))})
    with GgufFile.open(path) as file:
        os.truncate(path, 1000)
        with pytest.raises(
            ModelFileError, match="cut short while it was read: `x.weight` needs 16384 bytes, has"
        ):
            file.load("x.weight")


# --- a matrix where it lies, and what a file is known by ---


def test_a_matrix_is_a_view_of_the_blocks_in_the_file_that_outlives_it(make: Callable[..., Path]) -> None:
    path = make(small_file())
    content = path.read_bytes()
    with GgufFile.open(path) as file:
        info, weight = file.tensors["b.weight"], file.map_weight("b.weight")
        expected = file.load("b.weight")
        assert weight.data.base is not None  # no copy
    assert (weight.ggml_type, weight.shape) == (GgmlType.Q4_K, (2, 256))
    assert weight.row_bytes * 2 == len(weight.data) == info.n_bytes
    assert weight.data.tobytes() == content[info.offset : info.offset + info.n_bytes]
    assert np.array_equal(dequantize(weight.data, weight.ggml_type, weight.shape), expected)
    with pytest.raises(ValueError, match="read-only"):
        weight.data[0] = 1


def test_loaded_values_cannot_be_written(make: Callable[..., Path]) -> None:  # G11
    with GgufFile.open(make(small_file())) as file:
        for name in file.tensors:
            with pytest.raises(ValueError, match="read-only"):
                file.load(name)[...] = 1


@pytest.mark.parametrize(("name", "n_left"), [("b.weight", 287), ("b.weight", 0), ("b.weight", -10)])
def test_a_matrix_that_the_file_has_lost_meanwhile_is_not_mapped(
    make: Callable[..., Path], name: str, n_left: int
) -> None:  # a look at what is not there would kill the process
    path = make(small_file())
    with GgufFile.open(path) as file:
        info = file.tensors[name]
        os.truncate(path, info.offset + n_left)
        with pytest.raises(
            ModelFileError,
            match=rf"cut short while it was read: `b\.weight` needs 288 bytes, has {max(n_left, 0)}$",
        ):
            file.map_weight(name)


def test_a_matrix_is_mapped_where_only_what_follows_is_lost(make: Callable[..., Path]) -> None:
    path = make(small_file())
    with GgufFile.open(path) as file:
        info = file.tensors["b.weight"]
        os.truncate(path, info.offset + info.n_bytes)
        assert len(file.map_weight("b.weight").data.tobytes()) == info.n_bytes


def test_an_unsupported_or_missing_matrix_is_not_mapped(make: Callable[..., Path]) -> None:
    header = head(1, 0) + tensor_info("x.weight", (2, 32), 39, 0)
    with GgufFile.open(make(header + bytes(-len(header) % 32) + bytes(32))) as file:
        with pytest.raises(UnsupportedModelError, match="unsupported type 39"):
            file.map_weight("x.weight")
        with pytest.raises(UnsupportedModelError, match="missing tensor `y.weight`"):
            file.map_weight("y.weight")


def fingerprint(path: Path) -> bytes:
    with GgufFile.open(path) as file:
        assert file.size == path.stat().st_size
        return file.fingerprint()


def test_a_fingerprint_is_of_everything_before_the_weights_and_nothing_else(
    make: Callable[..., Path],
) -> None:
    content = small_file()
    with GgufFile.open(make(content)) as file:
        n_header = min(info.offset for info in file.tensors.values())
    own = fingerprint(make(content, "own.gguf"))
    assert fingerprint(make(content, "copy.gguf")) == own
    weights_differ = content[:n_header] + bytes(255 - byte for byte in content[n_header:])
    assert fingerprint(make(weights_differ, "weights.gguf")) == own
    for at in (content.index(b"the"), content.index(b"llama"), n_header - 1):  # a token, a value, the padding
        changed = bytearray(content)
        changed[at] ^= 1
        assert fingerprint(make(bytes(changed), "changed.gguf")) != own


def test_a_file_without_tensors_has_a_fingerprint_of_all_of_it(make: Callable[..., Path]) -> None:
    one, other = (fingerprint(make(gguf_bytes({"key": value}, {}))) for value in ("one", "two"))
    assert one != other
