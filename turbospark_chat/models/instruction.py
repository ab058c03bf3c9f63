"""One instruction of a program before it has addresses, and what it works on."""

from dataclasses import dataclass

from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.packed_layer import CachePart


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Activations: `n_features` numbers a token, or in all."""

    n_features: int
    is_single: bool = False  # of one token, whatever the number fed

    @property
    def n_floats(self) -> int:
        """How much room it takes."""
        return self.n_features if self.is_single else self.n_features * MAX_TOKENS


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """An array of a layer's cache: where position 0 stands in the state of the moment, or would stand."""

    layer: int
    part: CachePart


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many rows a layer of the state of the moment has room for."""

    layer: int


Operand = Buffer | CacheSlot | Capacity | int  # an int is a constant or an address


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many chunks an instruction is: see `Field`."""

    one: int = 0
    one_split: int = 0
    few: int | None = None  # None: as many as for one group
    many: int = 0
    many_group: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kernel, its operands in their order, and which of them it writes."""

    kernel: str
    chunks: Chunks
    operands: tuple[Operand, ...]
    writes: tuple[Buffer | CacheSlot, ...]
    is_single: bool = False
