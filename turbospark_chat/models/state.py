"""What a model computes and keeps, as whoever runs one sees it: the seam to every cache and every architecture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from numpy.typing import NDArray

from turbospark_chat.models.layers import Array


class State(Protocol):
    """What a model has computed so far: a KV cache, or whatever else stands for the positions behind it."""

    def __len__(self) -> int:
        """How many positions it holds."""

    @property
    def n_bytes(self) -> int:
        """Bytes it occupies, checkpoints included."""

    @property
    def slack(self) -> int:
        """How many positions it can go back from its end without a checkpoint; a recurrent state none."""

    def reach(self, length: int) -> int:
        """Return how many positions `truncate(length)` would leave, changing nothing."""

    def truncate(self, length: int) -> int:
        """Go back to at most `length` positions and return how many it now holds.

        A state that cannot go back that far goes back to where it can, 0 at the worst; never to a wrong state.
        """

    def mark(self) -> None:
        """Note that the present length is one to come back to: what cannot go back by itself takes a checkpoint."""

    def fork(self, length: int) -> Self:
        """Return a copy that holds `reach(length)` positions. Neither changes with the other."""

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return what the positions it holds consist of, by name, and no empty room: what `restore` takes."""

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Hold what another state of this model exported when it held `length` positions, and nothing else.

        Raises:
            ValueError: the arrays are not those of so many positions of this model; the state is empty then.
        """

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """Yield all that the next token can see, as float32 and by name, to compare two states of one length."""


StateT = TypeVar("StateT", bound=State)


class Model(Protocol[StateT]):
    """What an architecture offers: a forward pass over a state it is handed."""

    @property
    def vocab_size(self) -> int:
        """Length V of the logits."""

    def make_state(self) -> StateT:
        """Return an empty state."""

    def forward(self, tokens: Sequence[int], state: StateT, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state can still be truncated to where it began, or as far as it ever could.
        """


@runtime_checkable
class ScoringModel(Model[StateT], Protocol[StateT]):
    """A model that can tell what follows each of several tokens, not the last alone."""

    @property
    def n_guesses(self) -> int:
        """How many more tokens cost little beside one, by measurement; 0 where each costs about what one alone does."""

    def forward_each(self, tokens: Sequence[int], state: StateT) -> Array:
        """Run tokens as `forward` does and return the logits (T, V) after each."""
