"""Where in memory the activations of a program live, and which instructions have to wait for others therefore."""

from collections.abc import Collection, Sequence

from turbospark_chat.models.instruction import Buffer, CacheSlot, Instruction, Operand

ALIGNMENT = 16  # floats: a cache line


def place_buffers(
    instructions: Sequence[Instruction], *, keep: Collection[Buffer]
) -> tuple[dict[Buffer, int], int]:
    """Give every buffer a place that no buffer still to be read occupies; return the places and their whole size."""
    last_use = {
        operand: index
        for index, instruction in enumerate(instructions)
        for operand in instruction.operands
        if isinstance(operand, Buffer)
    }
    last_use |= dict.fromkeys(keep, len(instructions))
    offsets: dict[Buffer, int] = {}
    alive: list[Buffer] = []
    size = 0
    for index, instruction in enumerate(instructions):
        for written in instruction.writes:
            if isinstance(written, Buffer) and written not in offsets:
                offsets[written] = _first_gap(written, alive, offsets)
                alive.append(written)
                size = max(size, offsets[written] + written.n_floats)
        alive = [buffer for buffer in alive if last_use[buffer] > index]
    return offsets, size


def _first_gap(buffer: Buffer, alive: list[Buffer], offsets: dict[Buffer, int]) -> int:
    offset = 0
    for other in sorted(alive, key=offsets.__getitem__):
        if offset + buffer.n_floats <= offsets[other]:
            break
        offset = max(offset, _aligned(offsets[other] + other.n_floats))
    return offset


def find_waits(instructions: Sequence[Instruction], offsets: dict[Buffer, int]) -> list[int]:
    """Return for each instruction whether it touches memory that one since the last wait writes, or the reverse."""

    def regions(operands: Sequence[Operand]) -> list[tuple[object, int, int]]:
        return [
            ("arena", offsets[operand], offsets[operand] + operand.n_floats)
            if isinstance(operand, Buffer)
            else ((operand.layer, operand.part), 0, 1)
            for operand in operands
            if isinstance(operand, Buffer | CacheSlot)
        ]

    def overlap(some: list[tuple[object, int, int]], others: list[tuple[object, int, int]]) -> bool:
        return any(a == b and c < f and e < d for a, c, d in some for b, e, f in others)

    waits = []
    touched: list[tuple[object, int, int]] = []
    written: list[tuple[object, int, int]] = []
    for instruction in instructions:
        all_here, writes_here = regions(instruction.operands), regions(instruction.writes)
        waits.append(int(overlap(all_here, written) or overlap(writes_here, touched)))
        if waits[-1]:
            touched, written = [], []
        touched += all_here
        written += writes_here
    return waits


def _aligned(n_floats: int) -> int:
    return -(-n_floats // ALIGNMENT) * ALIGNMENT
