"""Searches what was said in the stored conversations. Reads every text: SQLite knows the case of ASCII only."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from turbospark_chat.chat.conversation_rows import line_between, read_ends, text_of
from turbospark_chat.chat.stored_conversation import SearchHit
from turbospark_chat.chat.text_match import find_folded, snippet_around


def search_turns(connection: sqlite3.Connection, text: str, limit: int) -> tuple[SearchHit, ...]:
    """Return the newest hits. A title is one only where nothing else in its conversation is.

    What no branch leads to any more, because it was undone or tried again, is not searched.
    """
    wanted = text.casefold()
    hits = list(islice(_hits_in_turns(connection, wanted), limit))
    found = {hit.id for hit in hits}
    hits += [hit for hit in _hits_in_titles(connection, wanted) if hit.id not in found]
    return tuple(sorted(hits, key=lambda hit: hit.time, reverse=True)[:limit])


@dataclass(frozen=True, slots=True)
class _Place:
    branch: str
    number: int  # from 1
    is_in_use: bool


def _hits_in_turns(connection: sqlite3.Connection, wanted: str) -> Iterator[SearchHit]:
    places: dict[int, dict[int, _Place]] = {}  # of the turns of each conversation that has a match
    rows = connection.execute(
        "SELECT turns.id, conversation_id, user, reply, ended, title, branch FROM turns"
        " JOIN conversations ON conversations.id = conversation_id ORDER BY turns.id DESC"
    )
    for row in rows:
        for role, column in (("assistant", "reply"), ("user", "user")):
            said = text_of(row[column])
            match = find_folded(said, wanted)
            if match is None:
                continue
            conversation_id = row["conversation_id"]
            if conversation_id not in places:
                places[conversation_id] = _places(connection, conversation_id, text_of(row["branch"]))
            place = places[conversation_id].get(row["id"])
            if place is None:
                continue
            snippet = snippet_around(said, *match)
            yield SearchHit(
                conversation_id, place.number, place.branch, role, row["title"],
                snippet.text, snippet.start, snippet.end, row["ended"],
                f"{conversation_id}@{place.number if place.is_in_use else place.branch}",
            )  # fmt: skip


def _hits_in_titles(connection: sqlite3.Connection, wanted: str) -> Iterator[SearchHit]:
    for row in connection.execute("SELECT id, name, title, created FROM conversations"):
        for title in (row["name"] or "", row["title"]):
            match = find_folded(title, wanted)
            if match is not None:
                snippet = snippet_around(title, *match)
                yield SearchHit(
                    row["id"], None, None, "title", row["title"],
                    snippet.text, snippet.start, snippet.end, row["created"], str(row["id"]),
                )  # fmt: skip
                break


def _places(connection: sqlite3.Connection, conversation_id: int, in_use: str) -> dict[int, _Place]:
    """Return where each turn of a conversation is by its row's id, on the branch in use if it is there."""
    rows = connection.execute("SELECT id, parent_id FROM turns WHERE conversation_id = ?", (conversation_id,))
    parents = {row["id"]: row["parent_id"] for row in rows}
    ends = read_ends(connection, conversation_id)
    places: dict[int, _Place] = {}
    for branch in sorted(ends, key=lambda branch: branch != in_use):
        for number, row_id in enumerate(line_between(parents, ends[branch]), start=1):
            places.setdefault(row_id, _Place(branch, number, branch == in_use))
    return places
