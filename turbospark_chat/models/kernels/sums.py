"""The sums of several tokens as one value of numba code, a vector of sixteen each, which stay in registers."""

from typing import Any

from llvmlite import ir
from numba import types

from turbospark_chat.models.kernels import vectors as v

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(_F32, v.LANES)


def make_zeros(n_tokens: int) -> Any:
    """Return the function that gives the sums of nothing."""

    def zeros(builder: v.Builder) -> Any:
        return ir.Constant(ir.ArrayType(_FLOATS, n_tokens), None)

    return v.operation(types.UniTuple(v.floats, n_tokens))(zeros)


def make_fma_rows(n_tokens: int) -> Any:
    """Return the function that adds to each sum some weights times as many numbers of its token.

    Arguments: sums, weights, address of the first token's numbers, bytes from one token's to the next one's.
    """

    def fma_rows(builder: v.Builder, sums: Any, weights: Any, x: Any, row_bytes: Any) -> Any:
        for token in range(n_tokens):
            row = v.load_value(builder, builder.add(x, builder.mul(row_bytes, _I64(token))), _FLOATS)
            old = builder.extract_value(sums, token)
            new = v.call_llvm(builder, f"llvm.fma.v{v.LANES}f32", weights, row, old)
            sums = builder.insert_value(sums, new, token)
        return sums

    kind = types.UniTuple(v.floats, n_tokens)
    return v.operation(kind, kind, v.floats, types.int64, types.int64)(fma_rows)


def make_totals(n_tokens: int) -> Any:
    """Return the function that gives each token's total in its lane, zeros behind. Arguments: two parts of the sums."""

    def totals(builder: v.Builder, low: Any, high: Any) -> Any:
        result = ir.Constant(_FLOATS, [0.0] * v.LANES)
        for token in range(n_tokens):
            both = builder.fadd(builder.extract_value(low, token), builder.extract_value(high, token))
            total = v.reduce_value(builder, "fadd", _F32(0.0), both)
            result = builder.insert_element(result, total, _I32(token))
        return result

    kind = types.UniTuple(v.floats, n_tokens)
    return v.operation(v.floats, kind, kind)(totals)
