"""Writes a forward pass down for the compiled kernels, once; every pass then runs it.

Knows the kernels by name, and their arguments, never their code.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.instruction import (
    Buffer,
    CacheSlot,
    Capacity,
    Chunks,
    Instruction,
    Operand,
)
from turbospark_chat.models.kernels.layout import FEW, GROUP, MAX_SPLITS, PART, TILE_ROWS, scratch_bytes
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_layer import CachePart
from turbospark_chat.models.program import Program, assemble
from turbospark_chat.models.quants import FORMATS
from turbospark_chat.models.weight import Weight

_LINEAR_BYTES = 1 << 16  # of weights that a chunk multiplies with one token
_LINEAR_ROWS = 2 * TILE_ROWS  # of weights that a chunk multiplies with several
_EVEN_CHUNKS = 4  # their number is a multiple of it, so that two threads or four have as many each
_MAX_LINEAR_CHUNKS = 128
_ELEMENTS = 512  # that a chunk of an elementwise kernel takes of one token
_FEATURES = 64  # and of several tokens
_TURNED = 256  # features that a chunk lays out token by token


class ProgramBuilder:
    """A forward pass that writes down what it is asked to compute. Build with `finish`."""

    def __init__(
        self, *, n_heads: int, n_kv_heads: int, head_dim: int, rope_dim: int, windows: Sequence[int | None]
    ) -> None:
        """Begin a program for heads of this shape. `windows`: how many positions each layer sees, None for all."""
        self._n_heads, self._n_kv_heads = n_heads, n_kv_heads
        self._head_dim, self._rope_dim, self._windows = head_dim, rope_dim, tuple(windows)
        self._pieces = Buffer(n_heads * MAX_SPLITS * (head_dim + 2), is_single=True)
        self._instructions: list[Instruction] = []
        self._token_rows: dict[Buffer, Buffer] = {}
        self._widest = 0  # row of a weight
        self._scores_each = False
        self._keep_alive: list[object] = []

    @property
    def n_instructions(self) -> int:
        """How many instructions there are so far."""
        return len(self._instructions)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels used so far."""
        return tuple(dict.fromkeys(instruction.kernel for instruction in self._instructions))

    def embed(self, table: Weight) -> Buffer:
        """Write down the look-up of the tokens' rows."""
        y = Buffer(table.shape[1])
        operands = (self._matrix(table), y, _n_blocks(table))
        return self._add("embed " + table.ggml_type.name, Chunks(one=1, many_group=GROUP), operands, y)

    def rms_norm(self, x: Buffer, weight: Array, eps: float) -> Buffer:
        """Write down a norm."""
        return self.head_norm(x, weight, eps, x.n_features)

    def head_norm(self, x: Buffer, weight: Array, eps: float, head_dim: int) -> Buffer:
        """Write down a norm of every head."""
        y, n_heads = replace(x), x.n_features // head_dim
        operands = (x, self._address(weight), y, head_dim, _float_bits(eps), n_heads)
        return self._add("rms_norm", Chunks(one=1, many_group=n_heads), operands, y)

    def linear(self, x: Buffer, weight: Weight, bias: Array | None) -> Buffer:
        """Write down a product."""
        y = Buffer(weight.shape[0], x.is_single)
        rows_one, rows_many = _rows_a_chunk(weight), _LINEAR_ROWS
        operands = (
            self._matrix(weight), x, y, y.n_features, _n_blocks(weight),
            0 if bias is None else self._address(bias), rows_one, rows_many, self._by_token(x),
        )  # fmt: skip
        n_one = _divided(y.n_features, rows_one)
        chunks = Chunks(one=n_one, few=n_one, many=_divided(y.n_features, rows_many))
        return self._add("linear " + weight.ggml_type.name, chunks, operands, y)

    def rope(self, x: Buffer, head_dim: int, *, interleaved: bool, table: int = 0) -> Buffer:
        """Write down a rotation of every head."""
        y, n_heads = replace(x), x.n_features // head_dim
        operands = (x, y, head_dim, self._rope_dim // 2, int(interleaved), n_heads, table)
        return self._add("rope", Chunks(one=1, many=n_heads), operands, y)

    def attention(self, q: Buffer, k: Buffer, v: Buffer, layer: int) -> Buffer:
        """Write down storing k and v, and the attention of one token and of several: a run does one of the two."""
        keys, values, key_scales, value_scales = (
            CacheSlot(layer, part)
            for part in (CachePart.KEYS, CachePart.VALUES, CachePart.KEY_SCALES, CachePart.VALUE_SCALES)
        )
        n_kv_heads, group, head_dim = self._n_kv_heads, self._n_heads // self._n_kv_heads, self._head_dim
        for x, items, scales in ((k, keys, key_scales), (v, values, value_scales)):
            stored: tuple[Operand, ...] = (x, items, scales, Capacity(layer), head_dim, n_kv_heads)
            self._instructions.append(
                Instruction("remember", Chunks(one=1, many=n_kv_heads), stored, (items, scales))
            )
        read: tuple[Operand, ...] = (q, keys, values, key_scales, value_scales, Capacity(layer))
        one, many = Chunks(one_split=n_kv_heads), Chunks(many_group=n_kv_heads)
        y, window = replace(q), self._windows[layer] or 0
        self._instructions.append(
            Instruction(
                f"attention_one {head_dim}", one, (*read, self._pieces, group, window), (self._pieces,)
            )
        )
        self._add(f"combine {head_dim}", Chunks(one=self._n_heads), (self._pieces, y), y)
        return self._add(f"attention_many {head_dim}", many, (*read, y, group, window), y)

    def swiglu(self, gate: Buffer, up: Buffer) -> Buffer:
        """Write down a gate."""
        return self._elementwise("swiglu", gate, up)

    def geglu(self, gate: Buffer, up: Buffer) -> Buffer:
        """Write down the other gate."""
        return self._elementwise("geglu", gate, up)

    def add(self, x: Buffer, y: Buffer) -> Buffer:
        """Write down a sum."""
        return self._elementwise("add", x, y)

    def scale(self, x: Buffer, factor: float) -> Buffer:
        """Write down a product with a number."""
        return self._elementwise("scale", x, _float_bits(factor))

    def score_each(self) -> None:
        """From here on `last` takes the rows of all tokens."""
        self._scores_each = True

    def last(self, x: Buffer) -> Buffer:
        """Write down taking the last token's row."""
        if self._scores_each:
            return x
        y = Buffer(x.n_features, is_single=True)
        return self._add("last", Chunks(one=1, many=1), (x, y, x.n_features), y)

    def finish(self, address_of: Callable[[str], int], *outputs: Buffer) -> Program:
        """Return the program, which leaves its results in `outputs`. `address_of` finds a kernel."""
        return assemble(
            self._instructions,
            address_of,
            outputs=outputs,
            scratch_bytes=scratch_bytes(self._widest, self._head_dim, self._n_heads // self._n_kv_heads),
            keep_alive=tuple(self._keep_alive),
        )

    def _add(self, kernel: str, chunks: Chunks, operands: tuple[Operand, ...], y: Buffer) -> Buffer:
        if y.is_single:
            chunks = replace(chunks, many=chunks.one, many_group=0)
        self._instructions.append(Instruction(kernel, chunks, operands, (y,), is_single=y.is_single))
        return y

    def _by_token(self, x: Buffer) -> Buffer:
        """Write down, once, laying out token by token what is to be multiplied; return where a few tokens are so."""
        if x.is_single:
            return x
        if x not in self._token_rows:
            y = Buffer(FEW * x.n_features, is_single=True)
            chunks = Chunks(few=_divided(x.n_features, _TURNED))
            self._instructions.append(Instruction("by_token", chunks, (x, y, x.n_features, _TURNED), (y,)))
            self._token_rows[x] = y
        return self._token_rows[x]

    def _elementwise(self, kernel: str, x: Buffer, y: Buffer | int) -> Buffer:
        out, n = replace(x), x.n_features
        chunks = Chunks(one=_divided(n, _ELEMENTS), many=_divided(n, _FEATURES))
        return self._add(kernel, chunks, (x, y, out, n, _ELEMENTS, _FEATURES), out)

    def _matrix(self, weight: Weight) -> int:
        self._widest = max(self._widest, weight.shape[1])
        return self._address(weight.data)

    def _address(self, array: NDArray[np.generic]) -> int:
        self._keep_alive.append(array)
        return array.ctypes.data


def _divided(n: int, size: int) -> int:
    return -(-n // size)


def _n_blocks(weight: Weight) -> int:
    return weight.shape[1] // max(FORMATS[weight.ggml_type].length, PART)


def _rows_a_chunk(weight: Weight) -> int:
    """Return an even number of rows, two of which are multiplied at a time, that leaves no thread with an odd chunk."""
    n_bytes = weight.row_bytes * weight.shape[0]
    n_chunks = _EVEN_CHUNKS * max(round(n_bytes / _LINEAR_BYTES / _EVEN_CHUNKS), 1)
    return 2 * _divided(weight.shape[0], 2 * min(n_chunks, _MAX_LINEAR_CHUNKS))


def _float_bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))
