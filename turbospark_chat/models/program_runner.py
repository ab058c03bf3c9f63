"""Runs a program on a team of threads: the context of a run, and the state it works on."""

import sys
from collections.abc import Callable, Sequence

import numpy as np

from turbospark_chat.models.instruction import Capacity
from turbospark_chat.models.kernel_team import KernelTeam
from turbospark_chat.models.kernels.layout import GROUP, MAX_TOKENS, Context
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.program import Program

TILES = {Context.TILE_1: "tile 1", Context.TILE_2: "tile 2", Context.TILE_4: "tile 4"}
KERNELS = ("run", *TILES.values())  # that every program needs


class ProgramRunner:
    """One run at a time: the activations are the program's own."""

    def __init__(
        self, program: Program, address_of: Callable[[str], int], *, n_threads: int, rope_dim: int
    ) -> None:
        self._program = program
        self._team = KernelTeam(address_of, n_threads=n_threads)
        self._tokens = np.zeros(MAX_TOKENS, np.int64)  # (T,)
        self._cosines, self._sines = np.zeros((2, rope_dim // 2 * MAX_TOKENS), np.float32)  # (pairs, stride)
        self._counters = np.zeros((2, len(program.code)), np.int64)
        self._scratch = np.zeros((n_threads, program.scratch_bytes), np.uint8)
        self._context = np.zeros(Context.N_FIELDS, np.int64)
        for field, name in TILES.items():
            self._context[field] = address_of(name)
        for field, array in (
            (Context.TAKEN, self._counters[0]),
            (Context.DONE, self._counters[1]),
            (Context.TOKENS, self._tokens),
            (Context.COSINES, self._cosines),
            (Context.SINES, self._sines),
            (Context.SCRATCH, self._scratch),
        ):
            self._context[field] = array.ctypes.data
        self._context[Context.SCRATCH_BYTES] = program.scratch_bytes
        self._attached: tuple[PackedKvCache, int] | None = None
        self._room = 0 if program.patches else sys.maxsize  # positions that the attached state has room for

    @property
    def n_threads(self) -> int:
        """How many threads compute."""
        return self._team.n_threads

    def attach(self, state: PackedKvCache) -> None:
        """Let the program read and write this cache, wherever its arrays are by now."""
        if self._attached == (state, state.n_moves):
            return
        capacities = [state.capacity(patch.operand.layer) for patch in self._program.patches]
        self._room = min(capacities, default=self._room)
        self._attached = None  # should this be interrupted, the next one begins anew
        for patch in self._program.patches:
            operand = patch.operand
            self._program.code[patch.index, patch.column] = (
                state.capacity(operand.layer)
                if isinstance(operand, Capacity)
                else state.address(operand.layer, operand.part)
            )
        self._attached = (state, state.n_moves)

    def run(
        self,
        tokens: Sequence[int],
        position: int,
        cos: Array,
        sin: Array,
        *,
        n_instructions: int | None = None,
    ) -> None:
        """Run the first instructions, or all, for at most MAX_TOKENS tokens that stand from `position` on.

        `cos`, `sin`: (T, rope_dim / 2).

        Raises:
            ValueError: so many tokens do not fit one run, or the attached state.
        """
        n_tokens = len(tokens)
        if not 1 <= n_tokens <= MAX_TOKENS or position + n_tokens > self._room:  # kernels check nothing
            raise ValueError(f"{n_tokens} tokens at {position} do not fit: room for {self._room}")
        stride = 1 if n_tokens == 1 else -(-n_tokens // GROUP) * GROUP
        for buffer, table in ((self._cosines, cos), (self._sines, sin)):
            buffer[: table.shape[1] * stride].reshape(-1, stride)[:, :n_tokens] = table.T
        self._tokens[:n_tokens] = tokens
        self._counters.fill(0)
        context = self._context
        context[Context.N_TOKENS], context[Context.STRIDE] = n_tokens, stride
        context[Context.POSITION] = position
        n_all = len(self._program.code)
        context[Context.N_INSTRUCTIONS] = n_all if n_instructions is None else n_instructions
        self._team.run(self._program.code, context)
