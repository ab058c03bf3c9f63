"""Vectors of sixteen numbers as values of numba code, and memory by address.

LLVM splits them to what the processor has. A plain numba loop over quantised weights ran at a quarter of the speed of
the same loop over explicit vectors. Addresses are int64; nothing is checked. https://llvm.org/docs/LangRef.html
"""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils, typing
from numba.extending import intrinsic, models, register_model

LANES = 16

_F16, _F32, _I8, _I16, _I32 = ir.HalfType(), ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)


def _of(element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, LANES)


class VectorType(types.Type):
    """The numba type of sixteen numbers."""

    def __init__(self, name: str, element: ir.Type) -> None:
        super().__init__(name=name)
        self.llvm = _of(element)


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: VectorType) -> None:
        super().__init__(manager, vector, vector.llvm)


register_model(VectorType)(_VectorModel)

floats = VectorType("floats", _F32)  # sixteen float32
words = VectorType("words", _I32)  # sixteen int32

Builder: TypeAlias = Any  # ir.IRBuilder; llvmlite has no type hints
Emit = Callable[..., Any]


def operation(result: types.Type, *parameters: types.Type) -> Callable[[Emit], Any]:
    """Make a function of numba code from one that emits its instructions, given a builder and the arguments' values."""

    def make(emit: Emit) -> Any:
        def typer(context: Any, *arguments: Any) -> Any:
            def codegen(context: Any, builder: Builder, signature: Any, values: Any) -> Any:
                return emit(builder, *values)

            return typing.signature(result, *parameters), codegen

        names = ("context", *(f"argument_{number}" for number in range(len(parameters))))
        signature = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])
        typer.__name__ = emit.__name__
        vars(typer)["__signature__"] = signature  # numba counts the arguments by it
        return intrinsic(typer)

    return make


def pointer(builder: Builder, address: Any, element: ir.Type) -> Any:
    """Emit the pointer that an address stands for."""
    return builder.inttoptr(address, element.as_pointer())


def load_value(builder: Builder, address: Any, element: ir.Type) -> Any:
    """Emit a load from an address of no particular alignment."""
    value = builder.load(pointer(builder, address, element))
    value.align = 1
    return value


def store_value(builder: Builder, address: Any, value: Any) -> None:
    """Emit a store to an address of no particular alignment."""
    builder.store(value, pointer(builder, address, value.type)).align = 1


def call_llvm(builder: Builder, name: str, *arguments: Any) -> Any:
    """Emit a call of one of LLVM's own functions, whose result is of the first argument's type."""
    kind = ir.FunctionType(arguments[0].type, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def splat_value(builder: Builder, scalar: Any) -> Any:
    """Emit a vector of one number sixteen times."""
    vector = _of(scalar.type)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(_of(_I32), [0] * LANES)
    )


def _lane_numbers() -> Any:
    return ir.Constant(_of(_I32), list(range(LANES)))


@operation(floats, types.float32)
def splat(builder: Builder, scalar: Any) -> Any:
    """Put one number in every lane."""
    return splat_value(builder, scalar)


@operation(floats, types.int64)
def load_floats(builder: Builder, address: Any) -> Any:
    """Load sixteen float32."""
    return load_value(builder, address, _of(_F32))


@operation(floats, types.int64)
def load_halves(builder: Builder, address: Any) -> Any:
    """Load sixteen float16, as float32."""
    return builder.fpext(load_value(builder, address, _of(_F16)), _of(_F32))


@operation(words, types.int64)
def load_words(builder: Builder, address: Any) -> Any:
    """Load sixteen int32."""
    return load_value(builder, address, _of(_I32))


@operation(words, types.int64)
def load_bytes(builder: Builder, address: Any) -> Any:
    """Load sixteen uint8."""
    return builder.zext(load_value(builder, address, _of(_I8)), _of(_I32))


@operation(words, types.int64)
def load_signed_bytes(builder: Builder, address: Any) -> Any:
    """Load sixteen int8."""
    return builder.sext(load_value(builder, address, _of(_I8)), _of(_I32))


@operation(words, types.int64)
def load_signed_shorts(builder: Builder, address: Any) -> Any:
    """Load sixteen int16."""
    return builder.sext(load_value(builder, address, _of(_I16)), _of(_I32))


@operation(words, types.int64)
def load_shorts(builder: Builder, address: Any) -> Any:
    """Load sixteen uint16."""
    return builder.zext(load_value(builder, address, _of(_I16)), _of(_I32))


@operation(types.int64, types.int64)
def load_int64(builder: Builder, address: Any) -> Any:
    """Load an int64."""
    return load_value(builder, address, ir.IntType(64))


@operation(types.int32, types.int64)
def load_int32(builder: Builder, address: Any) -> Any:
    """Load an int32."""
    return load_value(builder, address, _I32)


@operation(types.int32, types.int64)
def load_byte(builder: Builder, address: Any) -> Any:
    """Load a uint8."""
    return builder.zext(load_value(builder, address, _I8), _I32)


@operation(types.int32, types.int64)
def load_signed_byte(builder: Builder, address: Any) -> Any:
    """Load an int8."""
    return builder.sext(load_value(builder, address, _I8), _I32)


@operation(types.float32, types.int64)
def load_float(builder: Builder, address: Any) -> Any:
    """Load a float32."""
    return load_value(builder, address, _F32)


@operation(types.float32, types.int64)
def load_half(builder: Builder, address: Any) -> Any:
    """Load a float16, as float32."""
    return builder.fpext(load_value(builder, address, _F16), _F32)


@operation(types.void, types.int64, floats)
def store_floats(builder: Builder, address: Any, vector: Any) -> None:
    """Store sixteen float32."""
    store_value(builder, address, vector)


@operation(types.void, types.int64, words)
def store_shorts(builder: Builder, address: Any, vector: Any) -> None:
    """Store the low halves of sixteen int32."""
    store_value(builder, address, builder.trunc(vector, _of(_I16)))


@operation(types.void, types.int64, types.float32)
def store_float(builder: Builder, address: Any, scalar: Any) -> None:
    """Store a float32."""
    store_value(builder, address, scalar)


@operation(types.void, types.int64, types.int32)
def store_short(builder: Builder, address: Any, number: Any) -> None:
    """Store the low half of an int32."""
    store_value(builder, address, builder.trunc(number, _I16))


@operation(words, words, types.int32)
def keep_bits(builder: Builder, vector: Any, bits: Any) -> Any:
    """Clear all bits of each lane but these."""
    return builder.and_(vector, splat_value(builder, bits))


@operation(words, words, types.int32)
def shift_right(builder: Builder, vector: Any, n: Any) -> Any:
    """Shift each lane's bits right by n, zeros coming in."""
    return builder.lshr(vector, splat_value(builder, n))


@operation(words, words, types.int32)
def shift_left(builder: Builder, vector: Any, n: Any) -> Any:
    """Shift each lane's bits left by n."""
    return builder.shl(vector, splat_value(builder, n))


@operation(words, words, words)
def join_bits(builder: Builder, x: Any, y: Any) -> Any:
    """Set in each lane the bits that either has."""
    return builder.or_(x, y)


@operation(words, words, types.int32)
def plus(builder: Builder, vector: Any, n: Any) -> Any:
    """Add n to each lane."""
    return builder.add(vector, splat_value(builder, n))


@operation(words, types.int32)
def bits_by_lane(builder: Builder, number: Any) -> Any:
    """Bit i of the number, in lane i."""
    one = ir.Constant(_of(_I32), [1] * LANES)
    return builder.and_(builder.lshr(splat_value(builder, number), _lane_numbers()), one)


@operation(floats, words)
def to_floats(builder: Builder, vector: Any) -> Any:
    """Convert whole numbers to float32."""
    return builder.sitofp(vector, _of(_F32))


@operation(words, floats)
def to_words(builder: Builder, vector: Any) -> Any:
    """Convert to whole numbers, what is behind the point cut off."""
    return builder.fptosi(vector, _of(_I32))


@operation(floats, words)
def as_floats(builder: Builder, vector: Any) -> Any:
    """The same bits, read as float32."""
    return builder.bitcast(vector, _of(_F32))


@operation(floats, floats, floats, floats)
def fma(builder: Builder, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z, rounded once."""
    return call_llvm(builder, f"llvm.fma.v{LANES}f32", x, y, z)


def _of_each_two(name: str) -> Any:
    def emit(builder: Builder, x: Any, y: Any) -> Any:
        return getattr(builder, name)(x, y)

    return operation(floats, floats, floats)(emit)


mul, add, sub, div = (_of_each_two(name) for name in ("fmul", "fadd", "fsub", "fdiv"))


@operation(floats, floats, floats)
def larger(builder: Builder, x: Any, y: Any) -> Any:
    """The larger number of each two; that of y where either is none."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@operation(floats, floats, floats)
def smaller(builder: Builder, x: Any, y: Any) -> Any:
    """The smaller number of each two; that of y where either is none."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


@operation(words, floats)
def as_words(builder: Builder, vector: Any) -> Any:
    """The same bits, read as int32."""
    return builder.bitcast(vector, _of(_I32))


@operation(floats, floats)
def rounded(builder: Builder, vector: Any) -> Any:
    """Round to the nearest whole number, halves to the even one."""
    return call_llvm(builder, f"llvm.rint.v{LANES}f32", vector)


@operation(floats, floats)
def root(builder: Builder, vector: Any) -> Any:
    """Return the square roots."""
    return call_llvm(builder, f"llvm.sqrt.v{LANES}f32", vector)


@operation(floats, floats, types.int32, types.float32)
def replace_before(builder: Builder, vector: Any, lane: Any, other: Any) -> Any:
    """Put another number in all lanes before one."""
    is_before = builder.icmp_signed("<", _lane_numbers(), splat_value(builder, lane))
    return builder.select(is_before, splat_value(builder, other), vector)


@operation(floats, floats, types.int32, types.float32)
def replace_from(builder: Builder, vector: Any, lane: Any, other: Any) -> Any:
    """Put another number in all lanes from one on."""
    is_before = builder.icmp_signed("<", _lane_numbers(), splat_value(builder, lane))
    return builder.select(is_before, vector, splat_value(builder, other))


def reduce_value(builder: Builder, name: str, *arguments: Any) -> Any:
    """Emit the reduction of a vector, the last argument, to one number; the order is free."""
    kind = ir.FunctionType(_F32, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{name}.v{LANES}f32")
    return builder.call(function, arguments, fastmath=("reassoc",))


@operation(types.float32, floats)
def total(builder: Builder, vector: Any) -> Any:
    """Return the sum of all lanes, in no particular order."""
    return reduce_value(builder, "fadd", _F32(0.0), vector)


@operation(types.float32, floats)
def largest_lane(builder: Builder, vector: Any) -> Any:
    """Return the largest number of all lanes."""
    return reduce_value(builder, "fmax", vector)


@operation(types.void, types.int64)
def prefetch(builder: Builder, address: Any) -> None:
    """Ask for the cache line at an address, and do not wait for it."""
    byte = _I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), _I32(0), _I32(3), _I32(1)])
