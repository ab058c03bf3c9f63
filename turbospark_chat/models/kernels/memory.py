"""How kernels read their instruction and context, call each other by address, and share counters between threads."""

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils

from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.layout import MAX_SPLITS, SPLIT, Context, Field

_I64 = ir.IntType(64)
_ARG0 = int(Field.ARG0)
_N_TOKENS, _N_FEW, _IS_SINGLE, _POSITION = (
    int(Context.N_TOKENS),
    int(Context.N_FEW),
    int(Field.IS_SINGLE),
    int(Context.POSITION),
)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}  # by architecture


@njit
def field(base: int, index: int) -> Any:
    """Return a field of an instruction or of a context."""
    return v.load_int64(base + 8 * index)


@njit
def argument(instruction: int, index: int) -> Any:
    """Return an argument of an instruction."""
    return v.load_int64(instruction + 8 * (_ARG0 + index))


@njit
def float_argument(instruction: int, index: int) -> Any:
    """Return an argument that is a float32."""
    return v.load_float(instruction + 8 * (_ARG0 + index))


@njit
def is_single(instruction: int, context: int) -> Any:
    """Whether an instruction works on one token."""
    return field(context, _N_TOKENS) == 1 or field(instruction, _IS_SINGLE) == 1


@njit
def is_few(context: int) -> Any:
    """Whether a run has several tokens, but only few."""
    return 1 < field(context, _N_TOKENS) <= field(context, _N_FEW)


@njit
def optional_float(array: int, index: int) -> Any:
    """Return a number of an array of float32, 0 where there is none."""
    return v.load_float(array + 4 * index) if array else np.float32(0)


@njit
def n_splits(context: int) -> Any:
    """Return how many pieces a single token's attention has, whether it sees all positions or a window of them."""
    n_positions = field(context, _POSITION) + 1
    length = max(SPLIT, (n_positions + MAX_SPLITS - 1) // MAX_SPLITS)
    return (n_positions + length - 1) // length


def _call(builder: v.Builder, address: Any, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


call_kernel = v.operation(types.void, *[types.int64] * 5)(_call)  # address, then a kernel's arguments
call_tile = v.operation(types.void, *[types.int64] * 10)(_call)  # address, then a tile's arguments


@v.operation(types.int64, types.int64, types.int64)
def add_atomically(builder: v.Builder, address: Any, n: Any) -> Any:
    """Add to a shared counter and return what it was."""
    return builder.atomic_rmw("add", v.pointer(builder, address, _I64), n, "seq_cst")


@v.operation(types.int64, types.int64)
def load_atomically(builder: v.Builder, address: Any) -> Any:
    """Return a shared counter, after all that was written before it was set."""
    return builder.load_atomic(v.pointer(builder, address, _I64), "seq_cst", 8)


@v.operation(types.void, types.int64, types.int64)
def store_atomically(builder: v.Builder, address: Any, n: Any) -> None:
    """Set a shared counter, once all that was written before can be seen."""
    builder.store_atomic(n, v.pointer(builder, address, _I64), "seq_cst", 8)


@v.operation(types.void)
def pause(builder: v.Builder) -> None:
    """Tell the processor that this is a waiting loop, where it has a word for it."""
    name, numbers = _PAUSES.get(binding.get_process_triple().partition("-")[0], ("", ()))
    if name:
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [i32] * len(numbers))
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [i32(number) for number in numbers])


@v.operation(types.void)
def yield_processor(builder: v.Builder) -> None:
    """Let another thread run: there may be more threads than processors."""
    kind = ir.FunctionType(ir.IntType(32), [])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
