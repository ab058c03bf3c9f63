"""The stored conversations from the shell: `ts history`, `ts search` and `ts export`.

Part of the composition root, and light: no model and no screen is loaded to read what was said.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final

from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import ConversationSummary, SearchHit
from turbospark_chat.chat.transcript import Transcript
from turbospark_chat.chat.transcript_file import render_transcript, write_text_file, write_transcript
from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.errors import UsageError
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.harmless import harmless, json_line

_MINUTES: Final = "%Y-%m-%d %H:%M"


def run_history(*, is_json: bool, delete: str | None) -> int:
    """List the stored conversations, or delete one."""
    if delete is not None:
        if not delete.isdecimal():  # a turn's reference would take the whole conversation with it
            raise UsageError(
                f"`--delete {delete}`: give the number of a conversation, as `ts history` lists it"
            )
        with _opened() as store:
            store.delete(int(delete))
        states = WarmStates(Locations.of_user().states)
        states.delete(states.of_conversation(int(delete)))
        return 0
    with _opened() as store:
        found = store.list()
    if is_json:
        return _print_json(found)
    return _print_rows(
        [
            (
                str(one.id),
                _local(one.used),
                counted(one.n_turns, "turn"),
                one.model or "–",
                one.name or "",
                one.title,
            )
            for one in found
        ],
        otherwise="no conversation is stored yet",
    )


def run_search(text: str, *, is_json: bool) -> int:
    """List where a text was said."""
    with _opened() as store:
        hits = store.search(text)
    if is_json:
        return _print_json(hits)
    rows = [(hit.reference, _local(hit.time), hit.role, hit.snippet) for hit in hits]
    return _print_rows(rows, otherwise=f"nothing stored contains {text!r}")


def run_export(reference: str, file: Path | None, *, form: str | None, is_forced: bool) -> int:
    """Write a stored conversation to a file, or to stdout."""
    with _opened() as store:
        stored = store.load(reference)
    transcript = Transcript.of(
        stored.conversation,
        title=stored.name or stored.title,
        model=stored.model or "",
        created=datetime.fromtimestamp(stored.created).astimezone(),
        details=[details.known() for details in stored.details],
    )
    if file is None:
        text = render_transcript(transcript, form or "md")
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    elif form is None:
        write_transcript(file, transcript, overwrite=is_forced)
    else:
        write_text_file(file, render_transcript(transcript, form), overwrite=is_forced)
    return 0


def recent_conversations(limit: int) -> list[tuple[str, str]]:
    """Return the conversations used last, number and title, without making a database where there is none.

    Raises:
        StoreError: it cannot be read.
    """
    if not Locations.of_user().conversations.exists():
        return []
    with _opened() as store:
        return [(str(one.id), harmless(one.title)) for one in store.list(limit)]


def _opened() -> "closing[Store]":
    return closing(Store.open(Locations.of_user().conversations))


def _print_json(values: Sequence[ConversationSummary | SearchHit]) -> int:
    """Print an object a line; times are of this place, with its difference from UTC."""
    for value in values:
        times = {
            name: datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
            for name in ("created", "used", "time")
            if (seconds := getattr(value, name, None)) is not None
        }
        print(json_line({**asdict(value), **times}))
    return 0


def _print_rows(rows: Sequence[tuple[str, ...]], *, otherwise: str) -> int:
    """Print a table, or, where it would be empty, why on stderr."""
    from turbospark_chat.terminal.listing import print_table

    if rows:
        print_table(rows, is_cut=True)
    else:
        print(harmless(otherwise), file=sys.stderr)
    return 0


def _local(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime(_MINUTES)
