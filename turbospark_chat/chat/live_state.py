"""What a model's cache holds, as whoever answers with it sees it: whose it is, what it would serve, and its file.

The producer's own record is asked where it tells; of one that does not, what the last run left is remembered.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.engine.kv_prefix import common_length
from turbospark_chat.engine.raw_completion import CancelFlag


class LiveState:
    """The state of one model between the runs of one conversation."""

    def __init__(self, model: ChatModel) -> None:
        self._states, self._template = model.states, model.template
        self._left: tuple[int, ...] = ()  # by the last run here

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids behind it; none where that is not known."""
        return self._left if self._states is None else self._states.held_ids

    def n_live(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt it holds, and can go back to."""
        if self._states is None:
            return common_length(prompt_ids, self._left)
        return self._states.n_live(prompt_ids)

    def n_served(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt it, or a parked state, would serve."""
        n_parked = 0 if self._states is None else self._states.n_parked(prompt_ids)
        return max(self.n_live(prompt_ids), n_parked)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Use it for a run. What others left is set aside first, and what this leaves is noted, also if it raises."""
        if self._states is not None and self._states.held_ids != self._left:
            self._states.expect_return()
        self._left = ()
        try:
            yield
        finally:
            if self._states is not None:
                self._left = self._states.held_ids

    def note(self, ids: tuple[int, ...]) -> None:
        """Note what a run left, where the producer does not tell."""
        self._left = ids

    def expect_return(self) -> None:
        """Note that another conversation, or branch, follows: what this one holds will be asked for again."""
        if self._states is not None:
            self._states.expect_return()

    def save(
        self, path: Path, *, n_positions: int, most_bytes: int | None, cancel: CancelFlag | None
    ) -> None:
        """Write its first positions to a file; the others are given up.

        Raises:
            StateFileError: it could not be written, takes more than `most_bytes`, or was cancelled.
        """
        if self._states is None:
            return
        with self.running():
            self._states.save(
                path, template=self._template.source,
                n_positions=n_positions, most_bytes=most_bytes, cancel=cancel,
            )  # fmt: skip

    def load(self, path: Path, *, cancel: CancelFlag | None) -> int:
        """Go on from the state in a file; return how many positions it holds.

        Raises:
            StateFileError: it is damaged, of another model or template, or was cancelled; nothing has changed.
        """
        if self._states is None:
            return 0
        with self.running():
            return self._states.load(path, template=self._template.source, cancel=cancel)
