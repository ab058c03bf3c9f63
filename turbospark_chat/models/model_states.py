"""What a chat may do with the states behind its producer: keep one for later, in memory or in a file.

All of it belongs on the thread that owns the producer.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from turbospark_chat.errors import DoesNotFitError, StateFileError
from turbospark_chat.models.parking import RecordT
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.sealed_file import digest_of
from turbospark_chat.models.state import StateT

if TYPE_CHECKING:  # imported where they are used: a completion is to start soon
    from turbospark_chat.models.verification import CancelFlag, OnProgress, Verification

Fingerprints = Callable[["CancelFlag | None"], Mapping[str, str]]


class ModelStates(Generic[RecordT, StateT]):
    """The states of one runner. `fingerprints` is asked when a file needs them; it may raise StateFileError.

    `check_memory` may refuse a number of positions before a file's are copied.
    """

    def __init__(
        self,
        runner: Runner[RecordT, StateT],
        make_record: Callable[[], RecordT],
        fingerprints: Fingerprints,
        *,
        check_memory: Callable[[int], None] = lambda n_positions: None,
    ) -> None:
        self._runner, self._make_record, self._fingerprints = runner, make_record, fingerprints
        self._check_memory = check_memory

    @property
    def held_ids(self) -> tuple[int, ...]:
        """The ids behind the live state; none where they do not describe it."""
        record = self._runner.record
        return () if record.is_tainted else record.ids

    def n_live(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt the live state holds, and can go back to."""
        return self._runner.n_live(prompt_ids)

    def n_parked(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt a parked state would serve."""
        return self._runner.n_parked(prompt_ids)

    def expect_return(self) -> None:
        """Note that another conversation follows: the state that serves its prompt stays whole where they differ."""
        self._runner.expect_return()

    def save(
        self,
        path: Path,
        *,
        template: str,
        n_positions: int | None = None,
        most_bytes: int | None = None,
        cancel: "CancelFlag | None" = None,
    ) -> None:
        """Write the live state to a file, bound to this model and template, and to the file's name.

        Args:
            n_positions: the state is cut to so many first; without it, it stays as it is.
            most_bytes: the longest that the file may be; without it any length.

        Raises:
            StateFileError: there is nothing to write, it cannot be, or was cancelled; what was there before still is.
        """
        from turbospark_chat.models.state_file import StoredState, write_state

        if n_positions is not None:
            self._runner.rewind_to(n_positions)
        ids = self.held_ids
        # A placeholder for other content than text says only together with it what its position was computed from.
        if not ids or any(type(token_id) is not int for token_id in ids):
            raise StateFileError(path, "there is nothing to keep that token ids alone describe")
        try:
            stored = StoredState(self._bound_to(path, template, cancel), ids, self._runner.state.export())
            write_state(path, stored, most_bytes=most_bytes, cancel=cancel)
        except MemoryError as error:
            raise StateFileError(path, "there is no memory to write it from") from error

    def load(self, path: Path, *, template: str, cancel: "CancelFlag | None" = None) -> int:
        """Go on from the state in a file; return how many positions it holds. The live one is parked.

        Raises:
            StateFileError: it is damaged, of another model or template, or was cancelled; the live state stays.
        """
        from turbospark_chat.models.state_file import read_state

        stored = read_state(path)
        ours = self._bound_to(path, template, cancel)
        for name in (*ours, *stored.fingerprints):
            if stored.fingerprints.get(name) != ours.get(name):
                raise StateFileError(path, f"it was computed with another {name}")
        if not all(0 <= token_id < self._runner.vocab_size for token_id in stored.ids):
            raise StateFileError(path, "it holds token ids that the model does not have")
        state, record = self._runner.model.make_state(), self._make_record()
        try:
            self._check_memory(len(stored.ids))
            state.restore(len(stored.ids), stored.arrays)
        except (ValueError, MemoryError, DoesNotFitError) as error:
            raise StateFileError(path, f"it does not fit: {error or 'out of memory'}") from error
        record.record(stored.ids, 0)
        self._runner.adopt(record, state)
        return len(state)

    def verify(
        self, *, cancel: "CancelFlag", on_progress: "OnProgress" = lambda done, total: None
    ) -> "Verification | None":
        """Compare the live state with one computed anew from its ids; None where that is cancelled.

        Whatever happens, the live state and its record stay as they are.
        """
        from turbospark_chat.models.verification import verify_state

        runner = self._runner
        return verify_state(
            runner.model, runner.record.ids, runner.state, cancel=cancel, on_progress=on_progress
        )

    def _bound_to(self, path: Path, template: str, cancel: "CancelFlag | None") -> Mapping[str, str]:
        """Return what a state in a file depends on: its name too, since another conversation's would serve nothing."""
        return {
            **self._fingerprints(cancel),
            "template": digest_of(template, sources=()),
            "conversation": path.stem,
        }
