"""The inner product of prefill: a few rows of weights times some groups of tokens, in registers throughout.

y += w x, with w (rows, k) of any strides and x, y feature-major. All sums of a row and group stay in one register
each while k runs on; so many rows and groups at a time are taken as the processor has registers for.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.machine import has_wide_registers

_I64 = ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), v.LANES)
_GROUP_BYTES = 4 * v.LANES


def register_block(n_groups: int) -> tuple[int, int]:
    """Return how many rows and groups this processor's registers hold the sums of, given groups to do."""
    if has_wide_registers():
        return (6, 4) if n_groups == 4 else (12, n_groups)
    return (6, 1)


def make_tile(n_groups: int) -> Callable[..., None]:
    """Return the tile of 1, 2 or 4 groups of tokens."""
    block_rows, block_groups = register_block(n_groups)
    multiply = _make_multiply(block_rows, block_groups)

    def tile(
        w: int, w_row: int, w_k: int, x: int, x_stride: int, y: int, y_stride: int, n_k: int, n_rows: int
    ) -> None:
        for group in range(0, n_groups, block_groups):
            columns = group * _GROUP_BYTES
            for row in range(0, n_rows, block_rows):
                multiply(
                    w + row * w_row, w_row, w_k, x + columns, x_stride, y + row * y_stride + columns, y_stride,
                    n_k, n_rows - row,
                )  # fmt: skip

    return tile


def _make_multiply(n_rows: int, n_groups: int) -> Any:
    """Return the product for exactly so many rows and groups; rows past the last argument are not stored."""

    def multiply(
        builder: v.Builder, w: Any, w_row: Any, w_k: Any, x: Any, x_stride: Any, y: Any, y_stride: Any,
        n_k: Any, n_valid: Any,
    ) -> None:  # fmt: skip
        row_starts = [builder.add(w, builder.mul(w_row, _I64(row))) for row in range(n_rows)]
        sums = _sum_over_k(builder, row_starts, w_k, x, x_stride, n_k, n_groups)
        for row in range(n_rows):
            with builder.if_then(builder.icmp_signed("<", _I64(row), n_valid)):
                row_address = builder.add(y, builder.mul(y_stride, _I64(row)))
                for group in range(n_groups):
                    address = builder.add(row_address, _I64(group * _GROUP_BYTES))
                    old = v.load_value(builder, address, _FLOATS)
                    v.store_value(builder, address, builder.fadd(old, sums[row * n_groups + group]))

    return v.operation(types.void, *[types.int64] * 9)(multiply)


def _sum_over_k(
    builder: v.Builder, row_starts: list[Any], w_k: Any, x: Any, x_stride: Any, n_k: Any, n_groups: int
) -> list[Any]:
    """Emit the loop over k and return the sums, row by row, each a vector of a group's tokens."""
    before, loop, after = builder.block, builder.append_basic_block("k"), builder.append_basic_block("summed")
    builder.branch(loop)
    builder.position_at_end(loop)
    k, w_offset, x_address = (builder.phi(_I64) for _ in range(3))
    sums = [builder.phi(_FLOATS) for _ in range(len(row_starts) * n_groups)]
    columns = [
        v.load_value(builder, builder.add(x_address, _I64(group * _GROUP_BYTES)), _FLOATS)
        for group in range(n_groups)
    ]
    new_sums = []
    for row, start in enumerate(row_starts):
        weight = v.splat_value(builder, v.load_value(builder, builder.add(start, w_offset), ir.FloatType()))
        for group, column in enumerate(columns):
            old = sums[row * n_groups + group]
            new_sums.append(v.call_llvm(builder, f"llvm.fma.v{v.LANES}f32", weight, column, old))
    next_k = builder.add(k, _I64(1))
    steps = ((k, _I64(0), next_k), (w_offset, _I64(0), builder.add(w_offset, w_k)),
             (x_address, x, builder.add(x_address, x_stride)))  # fmt: skip
    zero = ir.Constant(_FLOATS, [0.0] * v.LANES)
    for phi, first, following in (
        *steps,
        *((old, zero, new) for old, new in zip(sums, new_sums, strict=True)),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", next_k, n_k), loop, after)
    builder.position_at_end(after)
    return new_sums
