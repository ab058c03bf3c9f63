"""What a written program holds: the kernels it names, its chunks, its memory, and what belongs to a state."""

import gc
import weakref

import numpy as np
import pytest
from kernel_harness import f32_weight, random_rows

from turbospark_chat.models.instruction import Buffer, CacheSlot, Capacity
from turbospark_chat.models.kernels.layout import MAX_TOKENS, Field
from turbospark_chat.models.packed_layer import CachePart
from turbospark_chat.models.program import Program
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.quants import GgmlType
from turbospark_chat.models.weight import Weight

EPS = 1e-5


def new_builder(*, n_heads: int = 4, n_kv_heads: int = 2) -> ProgramBuilder:
    return ProgramBuilder(
        n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=16, rope_dim=16, windows=[None] * 20
    )


def by_name(name: str) -> int:
    """Stand for the address of a kernel: these programs are not run."""
    return 1 + sum(name.encode())


def test_kernels_are_named_once_each_in_the_order_of_their_use() -> None:
    builder = new_builder()
    matrix = f32_weight(random_rows(64, 64))
    packed = Weight(np.zeros(64 * 2 * 18, np.uint8), GgmlType.Q4_0, (64, 64))
    x = builder.embed(packed)
    for index in range(2):
        q = builder.rope(builder.linear(x, matrix, None), 16, interleaved=True)
        k = builder.linear(x, f32_weight(random_rows(32, 64)), None)
        x = builder.attention(q, k, k, index)
    builder.linear(builder.last(builder.rms_norm(x, np.ones(64, np.float32), EPS)), packed, None)
    assert builder.kernels == (
        "embed Q4_0", "by_token", "linear F32", "rope", "remember", "attention_one 16", "combine 16",
        "attention_many 16", "rms_norm", "last", "linear Q4_0",
    )  # fmt: skip
    assert builder.n_instructions == 1 + 2 * 9 + 3


@pytest.mark.parametrize("ggml_type", [GgmlType.F32, GgmlType.Q4_0])
@pytest.mark.parametrize("n_columns", [32, 576, 8192])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 577, 49_152])
def test_the_chunks_of_a_product_cover_its_rows_two_by_two(
    n_rows: int, n_columns: int, ggml_type: GgmlType
) -> None:
    builder = new_builder()
    data = np.zeros(0, np.uint8)  # never read
    x = builder.embed(Weight(data, ggml_type, (1, n_columns)))
    y = builder.linear(x, Weight(data, ggml_type, (n_rows, n_columns)), None)
    code = builder.finish(by_name, y).code[-1]
    n_rows_one, n_rows_many = code[Field.ARG0 + 6 : Field.ARG0 + 8].tolist()
    assert n_rows_one % 2 == n_rows_many % 2 == 0
    assert code[Field.CHUNKS_FEW] == code[Field.CHUNKS_ONE]
    for n_chunks, n_each in ((code[Field.CHUNKS_ONE], n_rows_one), (code[Field.CHUNKS_MANY], n_rows_many)):
        assert (n_chunks - 1) * n_each < n_rows <= n_chunks * n_each


def test_a_run_of_one_token_and_one_of_several_each_do_one_kind_of_attention() -> None:
    builder = new_builder()
    x = builder.embed(f32_weight(random_rows(4, 64)))
    k = builder.linear(x, f32_weight(random_rows(32, 64)), None)
    code = builder.finish(by_name, builder.attention(x, k, k, 0)).code
    n_one = code[:, Field.CHUNKS_ONE] + code[:, Field.CHUNKS_ONE_SPLIT]
    n_many = code[:, Field.CHUNKS_MANY] + code[:, Field.CHUNKS_MANY_GROUP]
    kernels = code[:, Field.KERNEL].tolist()
    one, combine, many = (
        kernels.index(by_name(f"{name} 16")) for name in ("attention_one", "combine", "attention_many")
    )
    by_token = kernels.index(by_name("by_token"))  # of a few alone
    assert (n_one[by_token], n_many[by_token], code[by_token, Field.CHUNKS_FEW]) == (0, 0, 1)
    assert (n_one[one] > 0, n_one[combine] > 0, n_one[many]) == (True, True, 0)
    assert (n_many[one], n_many[combine], n_many[many] > 0) == (0, 0, True)
    others = [index for index in range(len(code)) if index not in (one, combine, many, by_token)]
    assert (n_one[others] > 0).all()
    assert (n_many[others] > 0).all()


def test_what_follows_the_last_token_is_one_tokens_work_in_every_run() -> None:
    builder = new_builder()
    x = builder.last(builder.embed(f32_weight(random_rows(4, 64))))
    y = builder.linear(
        builder.rms_norm(x, np.ones(64, np.float32), EPS), f32_weight(random_rows(9, 64)), None
    )
    program = builder.finish(by_name, y)
    assert program.code[:, Field.IS_SINGLE].tolist() == [0, 1, 1, 1]
    heads = program.code[1:]
    assert np.array_equal(heads[:, Field.CHUNKS_ONE], heads[:, Field.CHUNKS_MANY])
    assert not heads[:, Field.CHUNKS_MANY_GROUP].any()
    assert program.output.shape == (9,)


def test_a_head_that_scores_each_token_is_of_as_many_as_are_fed_and_its_result_is_kept() -> None:
    builder = new_builder()
    x, table = builder.embed(f32_weight(random_rows(4, 64))), f32_weight(random_rows(9, 64))
    one = builder.linear(builder.last(x), table, None)
    builder.score_each()
    each = builder.linear(builder.last(x), table, None)
    program = builder.finish(by_name, one, each)
    assert program.code[:, Field.IS_SINGLE].tolist() == [
        0,
        1,
        1,
        0,
        0,
    ]  # the last but one lays out a few tokens
    assert [output.shape for output in program.outputs] == [(9,), (9 * MAX_TOKENS,)]
    assert not np.shares_memory(*program.outputs)


def model_like(builder: ProgramBuilder, n_layers: int) -> Buffer:
    x = builder.embed(f32_weight(random_rows(4, 64)))
    keys = f32_weight(random_rows(32, 64))
    for index in range(n_layers):
        k, v = builder.linear(x, keys, None), builder.linear(x, keys, None)
        x = builder.add(x, builder.attention(builder.rope(x, 16, interleaved=True), k, v, index))
    return x


def finish_model_like(n_layers: int) -> Program:
    builder = new_builder()
    return builder.finish(by_name, model_like(builder, n_layers))


def arena_of(program: Program) -> np.ndarray:
    arena = program.output
    while arena.base is not None:
        arena = arena.base
    return arena


def test_activations_take_as_much_memory_for_many_layers_as_for_few() -> None:
    assert arena_of(finish_model_like(20)).size == arena_of(finish_model_like(4)).size


def test_activations_begin_at_a_cache_line_and_lie_within_their_memory() -> None:
    program = finish_model_like(2)
    arena = arena_of(program)
    assert program.output.shape == (64 * MAX_TOKENS,)
    assert program.output.ctypes.data % 64 == 0
    operands = program.code[:, Field.ARG0 :]
    inside = operands[(operands >= arena.ctypes.data) & (operands < arena.ctypes.data + arena.nbytes)]
    assert program.output.ctypes.data in inside
    assert not (inside % 64).any()


def test_every_array_of_a_layers_cache_is_filled_in_by_the_state() -> None:
    program = finish_model_like(3)
    assert all(program.code[patch.index, patch.column] == 0 for patch in program.patches)
    for layer in range(3):
        operands = [patch.operand for patch in program.patches if patch.operand.layer == layer]
        assert operands.count(Capacity(layer)) == 4  # two that store, two that read
        for part in CachePart:
            assert operands.count(CacheSlot(layer, part)) == 3


def test_a_program_keeps_the_memory_of_its_weights_alive() -> None:
    builder = new_builder()
    table, bias = random_rows(4, 32), random_rows(1, 32)[0]
    weights = [weakref.ref(table), weakref.ref(bias)]
    x = builder.embed(f32_weight(table))
    program = builder.finish(by_name, builder.linear(x, f32_weight(table), bias))
    addresses = program.code[:, Field.ARG0 : Field.ARG0 + 6].copy()
    del builder, x, table, bias
    gc.collect()
    assert all(weight() is not None for weight in weights)
    assert weights[0]().ctypes.data in addresses  # type: ignore[union-attr]
    assert weights[1]().ctypes.data in addresses  # type: ignore[union-attr]
    del program
    gc.collect()
    assert all(weight() is None for weight in weights)
