"""What an instruction and the context of a run look like in memory: the agreement between kernels and their callers.

A program is an array of instructions, each WIDTH int64. A run reads one context of int64 fields. Activations are
float32 and feature-major, (features, stride): a row holds one feature of every token, `stride` tokens apart, so
that sixteen tokens fill a vector. A single token has stride 1, which makes a buffer a plain vector. What a few tokens
are multiplied with weights by is token-major besides, (FEW, features).
"""

from enum import IntEnum

GROUP = 16  # tokens that one vector holds; the stride of several tokens is a multiple of it
FEW = 8  # tokens at most that are multiplied straight from the blocks, as a single one is
MAX_TOKENS = 64  # in one run
SPLIT = 128  # positions that one piece of a single token's attention covers, more where there were too many pieces
MAX_SPLITS = 32  # pieces at most
TILE_ROWS = 12  # rows of a weight that are decoded at a time for several tokens
BLOCK = 96  # positions of which several tokens' attention has the scores in memory: a multiple of GROUP and TILE_ROWS
PART = 32  # weights decoded at a time: what a row's length is a multiple of
AHEAD = 4096  # bytes from what is read to the memory fetched for later
WIDTH = 24  # int64 of an instruction


class Field(IntEnum):
    """The fields of an instruction. Which of ARG0 and up mean what is the kernel's own affair."""

    KERNEL = 0  # address of the compiled function
    WAITS = 1  # 1 where it needs what earlier instructions write, or overwrites what they read
    # How many chunks of work it is, each done by whichever thread comes first. None at all: it is skipped.
    CHUNKS_ONE = 2  # with one token
    CHUNKS_ONE_SPLIT = 3  # and as many more for each piece of the attention
    CHUNKS_FEW = 4  # with several, but no more than the context's N_FEW
    CHUNKS_MANY = 5  # with more
    CHUNKS_MANY_GROUP = 6  # and as many more for each GROUP tokens
    IS_SINGLE = 7  # 1 where it works on one token whatever the number fed: the output head
    ARG0 = 8


class Context(IntEnum):
    """The fields of a run's context."""

    N_TOKENS = 0
    STRIDE = 1
    POSITION = 2  # of the first token
    N_INSTRUCTIONS = 3
    IS_OPEN = 4  # 1 while threads may take part
    N_INSIDE = 5  # threads taking part
    TAKEN = 6  # address: chunks begun, an int64 each instruction
    DONE = 7  # address: chunks finished
    TOKENS = 8  # address: int64 ids
    COSINES = 9  # address: float32 (tables, pairs, stride)
    SINES = 10
    SCRATCH = 11  # address: memory for each thread alone
    SCRATCH_BYTES = 12  # of it, a thread
    TILE_1 = 13  # address of the compiled tile of 1, 2 and 4 groups
    TILE_2 = 14
    TILE_4 = 15
    N_FEW = 16  # how many tokens are few on this processor, up to FEW
    N_FIELDS = 17


def scratch_bytes(widest: int, head_dim: int, n_heads_a_group: int) -> int:
    """Return the memory a thread needs for itself. `widest`: the longest row of a weight.

    It holds a tile of decoded rows; or keys, values and a tile more of them, scores, two vectors a head, and a few
    tokens' queries and results.
    """
    tile = TILE_ROWS * widest
    attention = (2 * BLOCK + TILE_ROWS) * head_dim + (BLOCK + 2 * n_heads_a_group + 2 * head_dim) * GROUP
    return -(-4 * max(tile, attention) // 64) * 64
