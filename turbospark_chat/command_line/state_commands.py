"""The files of computed states from the shell: `ts states`.

Part of the composition root; it looks into none of them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.warm_states import WarmState, WarmStates
from turbospark_chat.command_line.archive_commands import known_conversations
from turbospark_chat.command_line.configuration import read_state_budget
from turbospark_chat.command_line.listed import local_minute, print_objects, print_rows
from turbospark_chat.config.config_file import read_user_config
from turbospark_chat.config.flag_values import FlagValues
from turbospark_chat.errors import ModelWarning, StoreError, UsageError
from turbospark_chat.settings import Locations


@dataclass(frozen=True, slots=True)
class _Listed:
    """A state as it is listed. `used` is in seconds since the epoch."""

    reference: str
    conversation_id: int | None
    title: str | None
    name: str | None
    n_bytes: int
    used: float
    path: str

    @classmethod
    def of(cls, state: WarmState, title: str | None) -> "_Listed":
        return cls(
            state.reference, state.conversation_id, title, state.name,
            state.n_bytes, state.used, str(state.path),
        )  # fmt: skip

    @property
    def what(self) -> str:
        """What it was computed for, for people."""
        if self.name is not None:
            return f"kept by --prefix-cache {self.name}"
        return "of a conversation that is not stored" if self.title is None else self.title


def run_states(*, is_json: bool) -> int:
    """List the states, those used last first, and what they take of their budget."""
    megabytes = FlagValues("chat", {}, read_user_config()).read("state_budget", read_state_budget)
    states = WarmStates(Locations.of_user().states).list()
    titles = _titles() if any(state.conversation_id is not None for state in states) else {}
    listed = [_Listed.of(state, titles.get(state.conversation_id)) for state in states]
    if is_json:
        return print_objects(listed)
    print_rows(
        [(one.reference, local_minute(one.used), f"{one.n_bytes / 1e6:,.1f} MB", one.what) for one in listed],
        otherwise="no computed state is on disk yet",
    )
    if listed:
        used = sum(one.n_bytes for one in listed)
        print(f"{counted(len(listed), 'state')}, {used / 1e6:,.1f} MB of {megabytes:,} MB")
    return 0


def run_delete_states(references: Sequence[str], *, is_all: bool) -> int:
    """Delete the states that are referred to, none of them if one is not there."""
    if is_all == bool(references):
        raise UsageError("say which states to delete: some that `ts states` lists, or `--all`")
    states = WarmStates(Locations.of_user().states)
    for state in states.list() if is_all else [states.find(reference) for reference in references]:
        states.delete(state.path)
    return 0


def _titles() -> dict[int | None, str]:
    """Return what the stored conversations are called, as far as that can be read."""
    try:
        return {one.id: one.name or one.title for one in known_conversations()}
    except StoreError as error:
        warnings.warn(f"no conversation is shown by its title: {error}", ModelWarning, stacklevel=1)
        return {}
