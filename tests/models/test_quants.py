"""Each block format against blocks worked out by hand and against the `gguf` package, bit for bit."""

import tracemalloc

import gguf
import numpy as np
import pytest
from gguf_file import random_blocks
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.models.quants import FORMATS, GgmlType, dequantize

ALL_TYPES = [pytest.param(ggml_type, id=ggml_type.name) for ggml_type in GgmlType]
HALF, ONE, TWO = b"\x00\x38", b"\x00\x3c", b"\x00\x40"  # 0.5, 1.0 and 2.0 as float16


def as_bytes(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def bits(values: np.ndarray) -> list[int]:
    return values.reshape(-1).view(np.uint32).tolist()


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_number_and_sizes_are_those_of_the_gguf_package(ggml_type: GgmlType) -> None:
    theirs = gguf.GGMLQuantizationType[ggml_type.name]
    block_format = FORMATS[ggml_type]
    assert ggml_type == theirs
    assert (block_format.length, block_format.layout.itemsize) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
@given(seed=st.integers(0, 2**32 - 1), n_rows=st.integers(1, 5), n_blocks=st.integers(1, 3))
def test_random_blocks_give_the_gguf_packages_bits(
    ggml_type: GgmlType, seed: int, n_rows: int, n_blocks: int
) -> None:
    shape = (n_rows, n_blocks * FORMATS[ggml_type].length)
    data = as_bytes(random_blocks(ggml_type, shape, np.random.default_rng(seed)))
    theirs = gguf.quants.dequantize(data.reshape(n_rows, -1), gguf.GGMLQuantizationType(ggml_type))
    ours = dequantize(data, ggml_type, shape)
    assert (ours.dtype, ours.shape) == (np.float32, shape)
    assert bits(ours) == bits(theirs)


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_a_tensor_of_many_slices_gives_the_same_bits_in_little_memory(ggml_type: GgmlType) -> None:
    shape = (1030, 1024)  # 16 slices and a part of one
    data = as_bytes(random_blocks(ggml_type, shape, np.random.default_rng(1)))
    theirs = gguf.quants.dequantize(data.reshape(1030, -1), gguf.GGMLQuantizationType(ggml_type))
    tracemalloc.start()
    ours = dequantize(data, ggml_type, shape)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(ours.view(np.uint32).reshape(-1), theirs.view(np.uint32).reshape(-1))
    assert peak < 2 * ours.nbytes


def q3_k_block() -> bytes:
    # Values 0-31 have low bits 1, values 128-159 have 2 (lowest fields of qs' first and second half);
    # the high bit is set for values 0-31 alone, so 4 is subtracted everywhere else.
    hmask, qs = b"\x01" * 32, b"\x01" * 32 + b"\x02" * 32
    # Group 0 (values 0-15) has scale 0x25 - 32 = 5: low four bits in byte 0, high two in byte 8; group 8
    # (128-143) has 0x0f - 32 = -17: byte 0's upper half and byte 8's third field; all others 0 - 32.
    scales = b"\xf5" + bytes(7) + b"\x02" + bytes(3)
    return hmask + qs + scales + HALF


def q6_k_block() -> bytes:
    # Value 0 is 0x2a - 32 = 10: low four bits in ql[0], high two in qh[0]. Value 32 is 0x30 - 32 = 16: ql[32]
    # and qh[0]'s second field. Value 64 is 0x1f - 32 = -1: ql[0]'s upper half and qh[0]'s third field.
    ql, qh = b"\xfa" + bytes(127), b"\x1e" + bytes(63)
    scales = bytes([3, 1, 2, 1, 256 - 2]) + bytes([1]) * 11  # one for 16 values
    return ql + qh + scales + HALF


@pytest.mark.parametrize(
    ("ggml_type", "block", "expected"),
    [
        # q / 2 + 1: the low nibbles first, then the high ones
        pytest.param(
            GgmlType.Q4_1, HALF + ONE + b"\x20" + b"\xf1" * 15, {0: 1.0, 1: 1.5, 16: 2.0, 17: 8.5}, id="Q4_1"
        ),
        # 2 (q - 16): bit i of the four qh bytes is the fifth bit of value i
        pytest.param(
            GgmlType.Q5_0,
            TWO + b"\x01\x00\x02\x80" + b"\x3f" + bytes(15),
            {0: 2.0 * 15, 1: -32.0, 16: 2.0 * (3 - 16), 17: 0.0, 31: 0.0},
            id="Q5_0",
        ),
        # (low - 4 where the mask is 0) * scale / 2
        pytest.param(
            GgmlType.Q3_K,
            q3_k_block(),
            {0: 2.5, 15: 2.5, 16: -16.0, 32: 64.0, 128: (2 - 4) * -17 / 2, 144: 32.0},
            id="Q3_K",
        ),
        # (q - 32) * scale / 2, with q 0 wherever no bit is set
        pytest.param(
            GgmlType.Q6_K,
            q6_k_block(),
            {0: 15.0, 1: -48.0, 16: -16.0, 32: 16.0, 33: -32.0, 64: 1.0, 65: 32.0, 255: -16.0},
            id="Q6_K",
        ),
    ],
)
def test_a_block_worked_out_by_hand(ggml_type: GgmlType, block: bytes, expected: dict[int, float]) -> None:
    values = dequantize(as_bytes(block), ggml_type, (FORMATS[ggml_type].length,))
    assert {position: values[position] for position in expected} == expected


def test_bfloat16_values_are_exact_and_infinity_stays_infinite() -> None:  # F17
    raw = bytes.fromhex("803F 20C0 4940 807F 80FF 7F7F")
    values = dequantize(as_bytes(raw), GgmlType.BF16, (6,))
    assert values.tolist() == [1.0, -2.5, 3.140625, np.inf, -np.inf, 3.3895313892515355e38]


def test_an_infinite_scale_gives_nan_without_a_warning() -> None:
    values = dequantize(as_bytes(b"\x00\x7c" + b"\x08" * 16), GgmlType.Q4_0, (32,))
    assert np.isnan(values[0])
    assert values[16] == -np.inf


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_the_result_is_a_new_writable_array(ggml_type: GgmlType) -> None:
    length = FORMATS[ggml_type].length
    data = as_bytes(random_blocks(ggml_type, (length,), np.random.default_rng(2)))
    values = dequantize(data, ggml_type, (length,))
    assert values.flags.writeable
    assert not np.shares_memory(values, data)


def test_data_need_not_be_aligned() -> None:
    data = as_bytes(b"?" + np.array([1.5, -2.0], "<f4").tobytes())[1:]
    assert dequantize(data, GgmlType.F32, (2,)).tolist() == [1.5, -2.0]


def test_a_row_that_is_not_whole_blocks_is_refused() -> None:  # F19
    with pytest.raises(ValueError, match="a row of 300 values is not a whole number of blocks of 256"):
        FORMATS[GgmlType.Q4_K].size_of((256, 300))


@pytest.mark.parametrize("n_bytes", [0, 17, 19, 36])
def test_data_of_another_size_than_the_shape_takes_is_refused(n_bytes: int) -> None:
    with pytest.raises(ValueError, match="takes 18"):
        dequantize(np.zeros(n_bytes, np.uint8), GgmlType.Q4_0, (1, 32))


def test_a_shape_whose_product_would_wrap_is_counted_exactly() -> None:  # 19
    assert FORMATS[GgmlType.F32].size_of((2**32, 2**32)) == 2**66
