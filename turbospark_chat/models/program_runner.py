"""Runs a program on a team of threads: the context of a run, and the state it works on."""

import sys
from collections.abc import Callable, Sequence

import numpy as np

from turbospark_chat.models.instruction import Capacity
from turbospark_chat.models.kernel_team import KernelTeam
from turbospark_chat.models.kernels.layout import FEW, GROUP, MAX_TOKENS, Context
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.program import Program

TILES = {Context.TILE_1: "tile 1", Context.TILE_2: "tile 2", Context.TILE_4: "tile 4"}
_MORE_THAN_ANY = 1 << 32  # chunks
KERNELS = ("run", *TILES.values())  # that every program needs


def stride_of(n_tokens: int) -> int:
    """Return how far apart two features of a token lie in a buffer of so many tokens."""
    return 1 if n_tokens == 1 else -(-n_tokens // GROUP) * GROUP


class ProgramRunner:
    """One run at a time: the activations are the program's own."""

    def __init__(
        self, program: Program, address_of: Callable[[str], int], *, n_threads: int, n_pairs: int
    ) -> None:
        """Make room for the runs. `n_pairs`: how many pairs a token has in all its RoPE tables together."""
        from turbospark_chat.models.kernels.machine import has_wide_registers  # and with it llvmlite

        self._program = program
        self._team = KernelTeam(address_of, n_threads=n_threads)
        self._tokens = np.zeros(MAX_TOKENS, np.int64)  # (T,)
        self._cosines, self._sines = np.zeros((2, n_pairs * MAX_TOKENS), np.float32)  # (n_pairs, stride)
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
        # With fewer registers the sums of more tokens are in memory, and decoding rows once is faster: by measurement.
        self._context[Context.N_FEW] = FEW if has_wide_registers() else FEW // 2
        self._context[Context.SCRATCH_BYTES] = program.scratch_bytes
        self._attached: tuple[PackedKvCache, int] | None = None
        self._room = range(0 if program.patches else sys.maxsize)  # positions a run may write to

    @property
    def n_few(self) -> int:
        """How many tokens are multiplied with the weights as one is."""
        return int(self._context[Context.N_FEW])

    @property
    def n_threads(self) -> int:
        """How many threads compute."""
        return self._team.n_threads

    def attach(self, state: PackedKvCache) -> None:
        """Let the program read and write this cache, wherever its arrays are by now."""
        if self._attached == (state, state.n_moves):
            return
        self._attached = None  # should this be interrupted, the next one begins anew
        if self._program.patches:
            self._room = state.room
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
        tables: Sequence[tuple[Array, Array]] = (),
        *,
        n_instructions: int | None = None,
        skipped: slice = slice(0),
    ) -> None:
        """Run the first instructions, or all, for at most MAX_TOKENS tokens that stand from `position` on.

        Those `skipped` count as finished from the start. `tables`: cosines and sines (T, pairs) of every RoPE table.

        Raises:
            ValueError: so many tokens do not fit one run, or the attached state.
        """
        n_tokens, room = len(tokens), self._room  # kernels check nothing
        if not 1 <= n_tokens <= MAX_TOKENS or not room.start <= position <= room.stop - n_tokens:
            raise ValueError(
                f"{n_tokens} tokens at {position} do not fit: room from {room.start} to {room.stop}"
            )
        stride = stride_of(n_tokens)
        start = 0
        for cos, sin in tables:
            end = start + cos.shape[1] * stride
            for buffer, table in ((self._cosines, cos), (self._sines, sin)):
                buffer[start:end].reshape(-1, stride)[:, :n_tokens] = table.T
            start = end
        self._tokens[:n_tokens] = tokens
        self._counters.fill(0)
        self._counters[:, skipped] = _MORE_THAN_ANY
        context = self._context
        context[Context.N_TOKENS], context[Context.STRIDE] = n_tokens, stride
        context[Context.POSITION] = position
        n_all = len(self._program.code)
        context[Context.N_INSTRUCTIONS] = n_all if n_instructions is None else n_instructions
        self._team.run(self._program.code, context)
