"""The stored conversations from the shell: `ts history`, `ts search` and `ts export`.

Part of the composition root, and light: no model and no screen is loaded to read what was said.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import ConversationSummary
from turbospark_chat.chat.transcript import Transcript
from turbospark_chat.chat.transcript_file import render_transcript, write_text_file, write_transcript
from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.command_line.listed import local_minute, print_objects, print_rows
from turbospark_chat.errors import UsageError
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.harmless import harmless


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
        return print_objects(found)
    return print_rows(
        [
            (
                str(one.id),
                local_minute(one.used),
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
        return print_objects(hits)
    rows = [(hit.reference, local_minute(hit.time), hit.role, hit.snippet) for hit in hits]
    return print_rows(rows, otherwise=f"nothing stored contains {text!r}")


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


def known_conversations(limit: int | None = None) -> Sequence[ConversationSummary]:
    """Return the conversations used last, without making a database where there is none.

    Raises:
        StoreError: it cannot be read.
    """
    if not Locations.of_user().conversations.exists():
        return ()
    with _opened() as store:
        return store.list(limit)


def _opened() -> "closing[Store]":
    return closing(Store.open(Locations.of_user().conversations))
