"""Products and look-ups of every block format, against the same numbers decoded by `quants` and multiplied in float64.

A product may be off by 1e-5 of its scale: the sum of the magnitudes that it adds up.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_file import random_blocks
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_harness import (
    KernelProgram,
    compute,
    error,
    load_kernels,
    matrix_of,
    random_rows,
    row_step,
    run_python,
)

from turbospark_chat.models import layers
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.instruction import Buffer
from turbospark_chat.models.kernels.layout import FEW, MAX_TOKENS, TILE_ROWS
from turbospark_chat.models.kernels.machine import has_wide_registers
from turbospark_chat.models.layers import Array
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.quants import FORMATS, GgmlType
from turbospark_chat.models.weight import Weight

BOUND = 1e-5
ALL_TYPES = [pytest.param(ggml_type, id=ggml_type.name) for ggml_type in GgmlType]
PLAIN_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
PACKED_TYPES = [param for param in ALL_TYPES if param.values[0] not in PLAIN_TYPES]


def random_weight(ggml_type: GgmlType, n_rows: int, n_steps: int, *, seed: int = 0) -> Weight:
    """Return a weight of random bits, `n_steps` times the shortest row wide."""
    shape = (n_rows, n_steps * row_step(ggml_type))
    raw = random_blocks(ggml_type, shape, np.random.default_rng(seed))
    return Weight(np.frombuffer(raw, np.uint8), ggml_type, shape)


def check_product(weight: Weight, sizes: list[int], bias: Array | None = None, *, seed: int = 0) -> None:
    """Compare the products of all rows of random activations, fed in passes of these sizes."""
    x = random_rows(sum(sizes), weight.shape[1], seed=seed)
    found = compute(lambda builder, x: builder.linear(x, weight, bias), x, sizes=sizes)
    matrix, x = matrix_of(weight).astype(np.float64), x.astype(np.float64)
    assert found.shape == (len(x), weight.shape[0])
    scale = layers.linear(abs(x), abs(matrix), None if bias is None else abs(bias))
    assert error(found, layers.linear(x, matrix, bias), scale) < BOUND


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
@settings(deadline=None, max_examples=15)
@given(
    n_rows=st.integers(1, 2 * 2 * TILE_ROWS + 3),
    n_steps=st.integers(1, 3),
    sizes=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=3),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(n_rows=17, n_steps=1, sizes=[1], has_bias=True, seed=681063)  # a bias much larger than the product
def test_a_product_of_any_number_of_rows_and_tokens(
    ggml_type: GgmlType, n_rows: int, n_steps: int, sizes: list[int], has_bias: bool, seed: int
) -> None:
    bias = random_rows(1, n_rows, seed=seed)[0] if has_bias else None
    check_product(random_weight(ggml_type, n_rows, n_steps, seed=seed), sizes, bias, seed=seed)


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_a_product_of_many_chunks(ggml_type: GgmlType) -> None:
    # Some 100 KB of weights are several chunks of one token; 2, 16, 17, 33 and 64 tokens are 1 to 4 groups.
    n_rows = 100_000 // FORMATS[ggml_type].size_of((1, 2 * row_step(ggml_type))) | 1
    check_product(random_weight(ggml_type, n_rows, 2), [1, 2, 1, 16, 17, 33, 48, 64])


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_a_few_tokens_get_bit_for_bit_what_each_gets_alone(ggml_type: GgmlType) -> None:
    weight = random_weight(ggml_type, 51, 3)
    x, bias = random_rows(FEW, weight.shape[1]), random_rows(1, 51)[0]

    def product(builder: ProgramBuilder, x: Buffer) -> Buffer:
        return builder.linear(x, weight, bias)

    alone = compute(product, x, sizes=[1] * FEW)
    for n_tokens in range(2, (FEW if has_wide_registers() else FEW // 2) + 1):
        assert np.array_equal(compute(product, x[:n_tokens]), alone[:n_tokens])


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0])
@pytest.mark.parametrize("ggml_type", PACKED_TYPES)
def test_numbers_at_the_ends_of_their_range(ggml_type: GgmlType, byte: int) -> None:
    weight = random_weight(ggml_type, 5, 1)
    layout = FORMATS[ggml_type].layout
    blocks = np.frombuffer(weight.data.tobytes(), layout).copy()
    for name in layout.names or ():
        if layout[name] != np.dtype("<f2"):  # whatever is no scale
            blocks[name] = np.full(1, byte, np.uint8).view(layout[name].base)[0]
    check_product(Weight(blocks.view(np.uint8), ggml_type, weight.shape), [1, 7])


@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_a_look_up_gives_the_rows_of_the_tokens(ggml_type: GgmlType) -> None:
    weight = random_weight(ggml_type, 40, 3)
    matrix = matrix_of(weight)
    token_ids = np.random.default_rng(0).integers(0, 40, 83)
    token_ids[:4] = 39, 0, 39, 39
    for part in (token_ids[:1], token_ids[1:3], token_ids[3:19], token_ids[19:]):
        found = look_up(weight, part.tolist())
        # A block's scale and offset are added in one rounding here, in two by `quants`.
        assert error(found, matrix[part], abs(matrix[part]).max()) < 1e-6


def look_up(weight: Weight, token_ids: list[int]) -> Array:
    return KernelProgram(lambda builder: builder.embed(weight)).run(token_ids)


@pytest.mark.parametrize("ggml_type", [GgmlType.F16, GgmlType.BF16], ids=lambda ggml_type: ggml_type.name)
def test_every_16_bit_number_is_read_exactly(ggml_type: GgmlType) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    weight = Weight(patterns.view(np.uint8), ggml_type, (MAX_TOKENS, (1 << 16) // MAX_TOKENS))
    assert np.array_equal(look_up(weight, list(range(MAX_TOKENS))), matrix_of(weight), equal_nan=True)


@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ggml_type", ALL_TYPES)
def test_a_number_that_is_none_shows_in_its_own_row_alone(
    ggml_type: GgmlType, value: float, n_tokens: int
) -> None:
    weight = random_weight(ggml_type, 7, 2)
    blocks = np.frombuffer(weight.data.tobytes(), FORMATS[ggml_type].layout).copy()
    block = 4 * len(blocks) // 7  # the first of row 4
    if ggml_type is GgmlType.BF16:
        blocks[block] = np.float32(value).view(np.uint32) >> 16
    elif ggml_type in PLAIN_TYPES:
        blocks[block] = value
    else:
        blocks["d"][block] = value
    damaged = Weight(blocks.view(np.uint8), ggml_type, weight.shape)
    x = random_rows(n_tokens, weight.shape[1])
    found = compute(lambda builder, x: builder.linear(x, damaged, None), x)
    assert np.isfinite(found).all(axis=0).tolist() == [True, True, True, True, False, True, True]


def test_a_head_over_the_last_token_is_computed_for_it_alone() -> None:
    weight, x = random_weight(GgmlType.Q8_0, 1001, 2), random_rows(90, 64)
    found = compute(lambda builder, x: builder.linear(builder.last(x), weight, None), x, sizes=[64, 1, 25])
    assert found.shape == (3, 1001)
    last = x[[63, 64, 89]].astype(np.float64)
    matrix = matrix_of(weight).astype(np.float64)
    assert error(found, last @ matrix.T, abs(last) @ abs(matrix).T) < BOUND


AT_THE_END_OF_MEMORY = """
import ctypes, mmap
import numpy as np
from gguf_file import random_blocks
from kernel_harness import KernelProgram, compute, random_rows, row_step
from turbospark_chat.models.quants import GgmlType
from turbospark_chat.models.weight import Weight

for ggml_type in GgmlType:
    shape = (3, row_step(ggml_type))
    raw = random_blocks(ggml_type, shape, np.random.default_rng(0))
    end = -(-len(raw) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, end + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + end), mmap.PAGESIZE, 0) == 0  # PROT_NONE
    memory[end - len(raw) : end] = raw
    weight = Weight(np.frombuffer(memory, np.uint8)[end - len(raw) : end], ggml_type, shape)
    print(ggml_type.name, flush=True)
    compute(lambda builder, x: builder.linear(x, weight, None), random_rows(6, shape[1]), sizes=[1, 5])
    KernelProgram(lambda builder: builder.embed(weight)).run([2, 2])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects memory as POSIX does")
def test_nothing_is_read_past_the_end_of_a_weight() -> None:  # a file may end where its last page does
    load_kernels(f"{kind} {ggml_type.name}" for ggml_type in GgmlType for kind in ("linear", "embed"))
    done = run_python(AT_THE_END_OF_MEMORY)
    assert (done.stderr, done.stdout.split()) == ("", [ggml_type.name for ggml_type in GgmlType])


@pytest.mark.weights
@pytest.mark.parametrize("type_name", ["Q5_0", "Q4_K", "Q6_K", "Q8_0"])
def test_rows_of_a_real_model(type_name: str, gemma3_path: Path) -> None:
    n_rows = 101
    with GgufFile.open(gemma3_path) as file:
        matrices = (name for name, info in file.tensors.items() if len(info.shape) == 2)
        whole = next(
            weight for weight in map(file.map_weight, matrices) if weight.ggml_type.name == type_name
        )
        rows = whole.data[: n_rows * whole.row_bytes].copy()
    check_product(Weight(rows, whole.ggml_type, (n_rows, whole.shape[1])), [1, 1, 37])
