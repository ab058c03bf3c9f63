"""The kernels between the products: norm, rotation, gate, sum. Shapes as `layout` says: (features, stride).

The numbers of features are multiples of 16, so a single token's vector has no odd end either.
"""

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import memory
from turbospark_chat.models.kernels import vectors as v
from turbospark_chat.models.kernels.exponential import exp
from turbospark_chat.models.kernels.layout import AHEAD, FEW, Context

_N_TOKENS, _STRIDE, _POSITION = int(Context.N_TOKENS), int(Context.STRIDE), int(Context.POSITION)
_COSINES, _SINES = int(Context.COSINES), int(Context.SINES)
_VECTOR_BYTES = 4 * v.LANES
_MOST = np.float32(32767)  # of a 16-bit number
_GELU_LINEAR = np.float32(-2 * (2 / np.pi) ** 0.5)
_GELU_CUBIC = np.float32(-2 * (2 / np.pi) ** 0.5 * 0.044715)


@njit
def _norm_one(x: int, weight: int, y: int, n_features: int, eps: float) -> None:
    squares = v.splat(np.float32(0))
    for offset in range(0, n_features * 4, _VECTOR_BYTES):
        part = v.load_floats(x + offset)
        squares = v.fma(part, part, squares)
    scale = v.splat(np.float32(1) / np.sqrt(v.total(squares) / np.float32(n_features) + eps))
    for offset in range(0, n_features * 4, _VECTOR_BYTES):
        scaled = v.mul(v.load_floats(x + offset), scale)
        v.store_floats(y + offset, v.mul(scaled, v.load_floats(weight + offset)))


@njit
def _norm_group(x: int, weight: int, y: int, n_features: int, eps: float, row_bytes: int) -> None:
    squares = v.splat(np.float32(0))
    for index in range(n_features):
        part = v.load_floats(x + index * row_bytes)
        squares = v.fma(part, part, squares)
    mean = v.mul(squares, v.splat(np.float32(1) / np.float32(n_features)))
    scale = v.div(v.splat(np.float32(1)), v.root(v.add(mean, v.splat(eps))))
    for index in range(n_features):
        scaled = v.mul(v.load_floats(x + index * row_bytes), scale)
        v.store_floats(y + index * row_bytes, v.mul(scaled, v.splat(v.load_float(weight + 4 * index))))


def rms_norm(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Norm each head of x: all heads of one token, or one of a group of them. A row may be one head.

    Arguments: x, weight (Hd), y, Hd, eps (float32), heads.
    """
    x, weight, y = (
        memory.argument(instruction, 0),
        memory.argument(instruction, 1),
        memory.argument(instruction, 2),
    )
    head_dim, eps = memory.argument(instruction, 3), memory.float_argument(instruction, 4)
    n_heads = memory.argument(instruction, 5)
    if memory.is_single(instruction, context):
        for start in range(0, n_heads * head_dim * 4, head_dim * 4):
            _norm_one(x + start, weight, y + start, head_dim, eps)
    else:
        row_bytes = memory.field(context, _STRIDE) * 4
        start = chunk % n_heads * head_dim * row_bytes + chunk // n_heads * _VECTOR_BYTES
        _norm_group(x + start, weight, y + start, head_dim, eps, row_bytes)


@njit
def _chunk_of_floats(instruction: int, context: int, chunk: int) -> tuple[int, int]:
    """Return the bytes from which to which a chunk of an elementwise kernel goes."""
    is_single, n_features = memory.is_single(instruction, context), memory.argument(instruction, 3)
    stride = 1 if is_single else memory.field(context, _STRIDE)
    n_rows = memory.argument(instruction, 4 if is_single else 5)
    return chunk * n_rows * stride * 4, min((chunk + 1) * n_rows, n_features) * stride * 4


def add(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Sum x and y. Arguments: x, y, out, features, of a chunk for one token and for several."""
    x, y, out = (
        memory.argument(instruction, 0),
        memory.argument(instruction, 1),
        memory.argument(instruction, 2),
    )
    first, last = _chunk_of_floats(instruction, context, chunk)
    for offset in range(first, last, _VECTOR_BYTES):
        v.store_floats(out + offset, v.add(v.load_floats(x + offset), v.load_floats(y + offset)))


def scale(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Multiply by a number. Arguments: x, the number (float32), out, and as `add`."""
    x, out = memory.argument(instruction, 0), memory.argument(instruction, 2)
    factor = v.splat(memory.float_argument(instruction, 1))
    first, last = _chunk_of_floats(instruction, context, chunk)
    for offset in range(first, last, _VECTOR_BYTES):
        v.store_floats(out + offset, v.mul(v.load_floats(x + offset), factor))


def swiglu(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Gate a projection. Arguments: gate, up, out, and as `add`."""
    gate, up, out = (
        memory.argument(instruction, 0),
        memory.argument(instruction, 1),
        memory.argument(instruction, 2),
    )
    one, zero = v.splat(np.float32(1)), v.splat(np.float32(0))
    first, last = _chunk_of_floats(instruction, context, chunk)
    for offset in range(first, last, _VECTOR_BYTES):
        x = v.load_floats(gate + offset)
        activated = v.div(x, v.add(one, exp(v.sub(zero, x))))
        v.store_floats(out + offset, v.mul(activated, v.load_floats(up + offset)))


def geglu(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Gate a projection with the tanh form of gelu. Arguments: gate, up, out, and as `add`.

    x / 2 (1 + tanh u) is x / (1 + exp(-2u)), where u = sqrt(2 / pi) (x + 0.044715 x^3).
    """
    gate, up, out = (
        memory.argument(instruction, 0),
        memory.argument(instruction, 1),
        memory.argument(instruction, 2),
    )
    one, linear, cubic = v.splat(np.float32(1)), v.splat(_GELU_LINEAR), v.splat(_GELU_CUBIC)
    first, last = _chunk_of_floats(instruction, context, chunk)
    for offset in range(first, last, _VECTOR_BYTES):
        x = v.load_floats(gate + offset)
        exponent = v.mul(x, v.fma(v.mul(x, x), cubic, linear))
        activated = v.div(x, v.add(one, exp(exponent)))
        v.store_floats(out + offset, v.mul(activated, v.load_floats(up + offset)))


@njit
def _rotate_one(
    x: int, y: int, half: int, first: int, second: int, step: int, cosines: int, sines: int
) -> None:
    for pair in range(half):
        a, b = first + pair * step * 4, second + pair * step * 4
        cos, sin = v.load_float(cosines + 4 * pair), v.load_float(sines + 4 * pair)
        real, imaginary = v.load_float(x + a), v.load_float(x + b)
        v.store_float(y + a, real * cos - imaginary * sin)
        v.store_float(y + b, real * sin + imaginary * cos)


@njit
def _rotate_many(
    x: int, y: int, half: int, first: int, second: int, step: int, cosines: int, sines: int, row_bytes: int
) -> None:
    for pair in range(half):
        for offset in range(0, row_bytes, _VECTOR_BYTES):
            a, b = first + pair * step * row_bytes + offset, second + pair * step * row_bytes + offset
            cos = v.load_floats(cosines + pair * row_bytes + offset)
            sin = v.load_floats(sines + pair * row_bytes + offset)
            real, imaginary = v.load_floats(x + a), v.load_floats(x + b)
            v.store_floats(y + a, v.sub(v.mul(real, cos), v.mul(imaginary, sin)))
            v.store_floats(y + b, v.fma(real, sin, v.mul(imaginary, cos)))


@njit
def _rotate_head(instruction: int, context: int, head: int) -> None:
    stride = memory.field(context, _STRIDE)
    head_dim, half = memory.argument(instruction, 2), memory.argument(instruction, 3)
    start = head * head_dim * stride * 4
    x, y = memory.argument(instruction, 0) + start, memory.argument(instruction, 1) + start
    for offset in range(2 * half * stride * 4, head_dim * stride * 4, 4):  # what is not rotated
        v.store_float(y + offset, v.load_float(x + offset))
    is_interleaved = memory.argument(instruction, 4) == 1
    second = (1 if is_interleaved else half) * stride * 4
    step = 2 if is_interleaved else 1
    table = memory.argument(instruction, 6) * half * stride * 4
    cosines, sines = memory.field(context, _COSINES) + table, memory.field(context, _SINES) + table
    if stride == 1:
        _rotate_one(x, y, half, 0, second, step, cosines, sines)
    else:
        _rotate_many(x, y, half, 0, second, step, cosines, sines, stride * 4)


def rope(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Rotate a head of several tokens, or all of one.

    Arguments: x, y, Hd, pairs, 1 for neighbouring ones, heads, which of the run's tables.
    """
    if memory.field(context, _STRIDE) > 1:
        _rotate_head(instruction, context, chunk)
        return
    for head in range(memory.argument(instruction, 5)):
        _rotate_head(instruction, context, head)


@njit
def _remember_one(x: int, items: int, scale: int, head_dim: int) -> None:
    zero = v.splat(np.float32(0))
    top, odd = zero, zero  # x - x is NaN of NaN and infinity, else 0: the scale is to tell of them
    for offset in range(0, head_dim, v.LANES):
        part = v.load_floats(x + 4 * offset)
        top = v.larger(v.larger(part, v.sub(zero, part)), top)
        odd = v.add(odd, v.sub(part, part))
    largest = v.largest_lane(top)
    v.store_float(scale, largest / _MOST + v.total(odd))
    inverse = v.splat(_MOST / largest if largest > 0 else np.float32(0))
    for offset in range(0, head_dim, v.LANES):
        numbers = v.to_words(v.rounded(v.mul(v.load_floats(x + 4 * offset), inverse)))
        v.store_shorts(items + 2 * offset, numbers)


@njit
def _remember_token(x: int, items: int, scale: int, head_dim: int, stride: int) -> None:
    largest, odd = np.float32(0), np.float32(0)  # as in `_remember_one`
    for index in range(head_dim):
        number = v.load_float(x + index * stride)
        largest = max(largest, abs(number))
        odd += number - number
    v.store_float(scale, largest / _MOST + odd)
    inverse = _MOST / largest if largest > 0 else np.float32(0)
    for index in range(head_dim):
        whole = np.rint(v.load_float(x + index * stride) * inverse)
        v.store_short(items + 2 * index, np.int32(whole))


def remember(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Store a head's keys or values of several tokens in the cache, or all heads' of one: see `packed_kv_cache`.

    A head with a number that is NaN or infinite gets NaN for its scale, and so shows in whatever reads it.
    Arguments: x, numbers (KV, capacity, Hd) from where position 0 stands or stood, scales (KV, capacity) likewise,
    capacity, Hd, heads.
    """
    stride, position = memory.field(context, _STRIDE), memory.field(context, _POSITION)
    capacity, head_dim = memory.argument(instruction, 3), memory.argument(instruction, 4)
    n_heads = memory.argument(instruction, 5) if stride == 1 else 1
    for head in range(chunk, chunk + n_heads):
        x = memory.argument(instruction, 0) + head * head_dim * stride * 4
        row = head * capacity + position
        items, scale = (
            memory.argument(instruction, 1) + row * head_dim * 2,
            memory.argument(instruction, 2) + row * 4,
        )
        if stride == 1:
            _remember_one(x, items, scale, head_dim)
            continue
        for token in range(memory.field(context, _N_TOKENS)):
            _remember_token(
                x + 4 * token, items + token * head_dim * 2, scale + 4 * token, head_dim, 4 * stride
            )


def by_token(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Lay out a few tokens one after the other, padding too. Arguments: x, y (FEW, features), features, of a chunk."""
    x, y = memory.argument(instruction, 0), memory.argument(instruction, 1)
    n_features, n_chunk = memory.argument(instruction, 2), memory.argument(instruction, 3)
    stride = memory.field(context, _STRIDE) * 4
    for token in range(FEW):
        row = y + token * n_features * 4
        for index in range(chunk * n_chunk, min((chunk + 1) * n_chunk, n_features)):
            v.store_float(row + 4 * index, v.load_float(x + index * stride + 4 * token))


def last(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Take the last token's features. Arguments: x, y, features."""
    x, stride = memory.argument(instruction, 0), memory.field(context, _STRIDE)
    column = memory.field(context, _N_TOKENS) - 1
    for index in range(memory.argument(instruction, 2)):
        value = v.load_float(x + (index * stride + column) * 4)
        v.store_float(memory.argument(instruction, 1) + 4 * index, value)


def read(instruction: int, context: int, thread: int, chunk: int) -> None:
    """Read a chunk of memory and do next to nothing with it. Arguments: address, bytes a chunk, out."""
    n_bytes = memory.argument(instruction, 1)
    start = memory.argument(instruction, 0) + chunk * n_bytes
    found = v.load_words(start)
    for address in range(start, start + n_bytes, 4 * _VECTOR_BYTES):
        v.prefetch(address + AHEAD)
        for offset in range(0, 4 * _VECTOR_BYTES, _VECTOR_BYTES):
            found = v.join_bits(found, v.load_words(address + offset))
    v.store_floats(memory.argument(instruction, 2), v.to_floats(found))
