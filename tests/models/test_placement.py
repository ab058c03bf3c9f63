"""Activations in memory: no buffer lies over one still needed, and no instruction runs before what it depends on."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.models.instruction import Buffer, CacheSlot, Capacity, Chunks, Instruction, Operand
from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.packed_layer import CachePart
from turbospark_chat.models.placement import ALIGNMENT, find_waits, place_buffers

Slots = st.builds(CacheSlot, st.integers(0, 1), st.sampled_from(CachePart))
N_FEATURES = st.sampled_from([1, 3, 16, 40, 259])


def instruction(reads: list[Operand], writes: list[Buffer | CacheSlot]) -> Instruction:
    # What is written is an operand too, among numbers and capacities, which take no place.
    return Instruction("any", Chunks(one=1), (*reads, 7, Capacity(0), *writes), tuple(writes))


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Instructions that read what earlier ones wrote, write new buffers or old ones once more, and use the cache."""
    buffers = [Buffer(draw(N_FEATURES))]
    instructions = [instruction([], [buffers[0]])]
    for _ in range(draw(st.integers(0, 12))):
        reads: list[Operand] = draw(st.lists(st.sampled_from(buffers) | Slots, max_size=3))
        new = [Buffer(draw(N_FEATURES), draw(st.booleans())) for _ in range(draw(st.integers(0, 2)))]
        again = draw(st.lists(st.sampled_from(buffers), max_size=1, unique=True))
        writes = [*new, *again, *draw(st.lists(Slots, max_size=1))]
        instructions.append(instruction(reads, writes))
        buffers += new
    return instructions


def buffers_of(operands: tuple[Operand, ...]) -> set[Buffer]:
    return {operand for operand in operands if isinstance(operand, Buffer)}


def share_memory(x: Operand, y: Operand, offsets: dict[Buffer, int]) -> bool:
    if isinstance(x, Buffer) and isinstance(y, Buffer):
        return offsets[x] < offsets[y] + y.n_floats and offsets[y] < offsets[x] + x.n_floats
    return isinstance(x, CacheSlot) and x == y


@given(programs(), st.data())
def test_buffers_needed_at_the_same_time_lie_apart(program: list[Instruction], data: st.DataObject) -> None:
    uses: dict[Buffer, list[int]] = {}
    for index, step in enumerate(program):
        for buffer in buffers_of(step.operands):
            uses.setdefault(buffer, []).append(index)
    keep = data.draw(st.sampled_from(list(uses)))
    uses[keep].append(len(program))
    offsets, size = place_buffers(program, keep=[keep])
    assert offsets.keys() == uses.keys()
    for buffer, offset in offsets.items():
        assert offset % ALIGNMENT == 0
        assert offset + buffer.n_floats <= size
    for x, y in combinations(uses, 2):
        if max(uses[x][0], uses[y][0]) <= min(uses[x][-1], uses[y][-1]):
            assert not share_memory(x, y, offsets)


@given(programs())
def test_an_instruction_waits_for_what_it_depends_on_and_for_nothing_else(program: list[Instruction]) -> None:
    last = program[-1]
    keep = next(iter(buffers_of(last.operands) or buffers_of(program[0].operands)))
    offsets, _ = place_buffers(program, keep=[keep])
    waits = find_waits(program, offsets)

    def depends(later: Instruction, earlier: Instruction) -> bool:
        pairs = [(x, y) for x in later.operands for y in earlier.writes]
        pairs += [(x, y) for x in later.writes for y in earlier.operands]
        return any(share_memory(x, y, offsets) for x, y in pairs)

    since = 0  # the first instruction that may still be running
    for index, step in enumerate(program):
        assert waits[index] == any(depends(step, earlier) for earlier in program[since:index])
        if waits[index]:
            since = index


def chain(length: int) -> tuple[list[Instruction], Buffer]:
    x = Buffer(10)
    program = [instruction([], [x])]
    for _ in range(length):
        y = Buffer(10)
        program.append(instruction([x], [y]))
        x = y
    return program, x


def test_a_chain_of_any_length_takes_two_places() -> None:
    for length in (1, 2, 30):
        program, last = chain(length)
        assert place_buffers(program, keep=[last])[1] == 2 * 10 * MAX_TOKENS


def test_a_gap_is_filled_by_what_fits_it() -> None:
    large, small, other = Buffer(100, is_single=True), Buffer(40, is_single=True), Buffer(50, is_single=True)
    after, tiny = Buffer(60, is_single=True), Buffer(20, is_single=True)
    program = [
        instruction([], [large]),
        instruction([], [other]),
        instruction([large], []),  # the last that needs it
        instruction([other], [after]),
        instruction([other, after], [small]),
        instruction([other, after, small], [tiny]),
    ]
    offsets, _ = place_buffers(program, keep=[tiny])
    assert offsets[other] == 112  # after the aligned end of the first
    assert offsets[after] == 0
    assert offsets[small] == 64  # between the two, where 48 are left
    assert offsets[tiny] == 176  # at the end


def test_branches_that_do_not_touch_each_other_do_not_wait() -> None:
    x, y, z, total = (Buffer(16) for _ in range(4))
    program = [
        instruction([], [x]),
        instruction([x], [y]),
        instruction([x], [z]),
        instruction([y, z], [total]),
    ]
    offsets, _ = place_buffers(program, keep=[total])
    assert find_waits(program, offsets) == [0, 1, 0, 1]
