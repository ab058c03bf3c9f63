"""A forward pass as instructions for the compiled kernels: what `kernels.layout` describes, in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models.instruction import Buffer, CacheSlot, Capacity, Instruction
from turbospark_chat.models.kernels.layout import WIDTH, Field
from turbospark_chat.models.layers import Array
from turbospark_chat.models.placement import ALIGNMENT, find_waits, place_buffers


@dataclass(frozen=True, slots=True)
class Patch:
    """An argument that belongs to the state of the moment."""

    index: int  # of the instruction
    column: int  # of its field
    operand: CacheSlot | Capacity


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Instructions, the memory they work on, and what a state has to fill in."""

    code: NDArray[np.int64]  # (n_instructions, WIDTH)
    outputs: tuple[Array, ...]  # each (n_features * MAX_TOKENS,), or (n_features,) of a single token
    patches: tuple[Patch, ...]
    scratch_bytes: int  # that each thread needs for itself
    keep_alive: tuple[object, ...] = field(repr=False)  # what the addresses in the code belong to

    @property
    def output(self) -> Array:
        """The first of the outputs."""
        return self.outputs[0]


def assemble(
    instructions: Sequence[Instruction],
    address_of: Callable[[str], int],
    *,
    outputs: Sequence[Buffer],
    scratch_bytes: int,
    keep_alive: tuple[object, ...],
) -> Program:
    """Place every buffer and write the instructions; `outputs` are there at the end. `address_of` finds a kernel."""
    offsets, n_floats = place_buffers(instructions, keep=outputs)
    arena = np.zeros(n_floats + ALIGNMENT, np.float32)
    arena = arena[-arena.ctypes.data // 4 % ALIGNMENT :]
    code = np.zeros((len(instructions), WIDTH), np.int64)
    patches = []
    for index, instruction in enumerate(instructions):
        chunks = instruction.chunks
        few = chunks.many + chunks.many_group if chunks.few is None else chunks.few
        code[index, : Field.ARG0] = (
            address_of(instruction.kernel), 0, chunks.one, chunks.one_split, few, chunks.many,
            chunks.many_group, int(instruction.is_single),
        )  # fmt: skip
        for column, operand in enumerate(instruction.operands, start=Field.ARG0):
            if isinstance(operand, CacheSlot | Capacity):
                patches.append(Patch(index, column, operand))
            elif isinstance(operand, Buffer):
                code[index, column] = arena.ctypes.data + 4 * offsets[operand]
            else:
                code[index, column] = operand
    code[:, Field.WAITS] = find_waits(instructions, offsets)
    return Program(
        code=code,
        outputs=tuple(arena[offsets[output] :][: output.n_floats] for output in outputs),
        patches=tuple(patches),
        scratch_bytes=scratch_bytes,
        keep_alive=(arena, *keep_alive),
    )
