"""The user's stored conversations: list, search, load, name and delete. Knows no model and no chat under way.

`journal` is what adds to them.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Final

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.conversation_rows import (
    line_between,
    optional_text_of,
    read_ends,
    read_turns,
    sql_text,
    text_of,
)
from turbospark_chat.chat.conversation_search import search_turns
from turbospark_chat.chat.conversation_writer import free_name
from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.database import Database
from turbospark_chat.chat.stored_conversation import (
    ConversationSummary,
    SearchHit,
    StoredConversation,
    StoredTurn,
)
from turbospark_chat.chat.text_match import in_one_line
from turbospark_chat.errors import StoreError, UsageError

LAST: Final = "last"  # refers to the conversation used most recently
_LONGEST_NAME = 60


class Store:
    """The conversations in one database. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open the conversations stored at `path`, of which there are none yet where there is no file.

        Raises:
            StoreError: the file cannot be used; nothing in it was changed.
        """
        return cls(Database.open(path))

    def close(self) -> None:
        """Close the database; what was stored stays."""
        self.database.close()

    def list(self, limit: int | None = None) -> tuple[ConversationSummary, ...]:
        """Return what there is, most recently used first.

        Raises:
            StoreError: it cannot be read.
        """
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT conversations.*, ifnull(last.depth - first.depth + 1, 0) AS n_turns FROM conversations"
                " LEFT JOIN branches ON branches.conversation_id = conversations.id AND branches.name = branch"
                " LEFT JOIN turns AS first ON first.id = first_id LEFT JOIN turns AS last ON last.id = last_id"
                " ORDER BY used DESC, conversations.id DESC LIMIT ?",
                (-1 if limit is None else limit,),
            )
            return tuple(
                ConversationSummary(
                    row["id"], row["name"], row["title"], optional_text_of(row["model"]), row["n_turns"],
                    row["created"], row["used"],
                )
                for row in rows
            )  # fmt: skip

    def search(self, text: str, limit: int = 50) -> tuple[SearchHit, ...]:
        """Return where a text occurs, whatever its case, in the turns and titles there are; newest first.

        Raises:
            UsageError: the text is blank.
            StoreError: the database cannot be read.
        """
        if not text.strip():
            raise UsageError("nothing to search for: give a word of what was said")
        with self._reading() as connection:
            return search_turns(connection, text, limit)

    def load(self, reference: str) -> StoredConversation:
        """Return the conversation that an id, a name or `last` refers to.

        With `@TURN` after it, the conversation is on a new branch with that many turns of the one in use, which
        stays as it is; with `@BRANCH` it is on that branch.

        Raises:
            StoreError: there is no such conversation or turn, or it cannot be read.
        """
        whole, at = _split_reference(reference)
        with self._reading() as connection:
            row = _find(connection, whole)
            turns, ends = read_turns(connection, row["id"]), read_ends(connection, row["id"])
            parents = {row_id: turn.parent_id for row_id, turn in turns.items()}
            lines = {
                name: tuple(turns[row_id] for row_id in line_between(parents, its_ends))
                for name, its_ends in ends.items()
            }
        if isinstance(at, str) and at not in lines:
            raise StoreError(f"no branch {at}: conversation {row['id']} has {', '.join(lines)}")
        branch = at if isinstance(at, str) else text_of(row["branch"])
        stored = _stored_conversation(row, lines, branch)
        return _cut_back(stored, at) if isinstance(at, int) else stored

    def check_name(self, name: str, *, of: int | None) -> None:
        """Do nothing where the conversation with the id `of`, or with None a new one, may be called `name`.

        Raises:
            UsageError: the name could be taken for something else, or belongs to another conversation.
            StoreError: the database cannot be read.
        """
        _check_name(name)
        with self._reading() as connection:
            _check_free(connection, name, of)

    def name(self, conversation_id: int, name: str | None) -> None:
        """Give a conversation a name to refer to it by, or with None take it away.

        Raises:
            UsageError: the name could be taken for something else, or belongs to another conversation.
            StoreError: there is no such conversation, or the database cannot be written.
        """
        if name is not None:
            _check_name(name)
        with self.database.writing() as connection:
            _find(connection, str(conversation_id))
            if name is not None:
                _check_free(connection, name, conversation_id)
            connection.execute("UPDATE conversations SET name = ? WHERE id = ?", (name, conversation_id))

    def has(self, conversation_id: int) -> bool:
        """Whether there is such a conversation.

        Raises:
            StoreError: the database cannot be read.
        """
        with self._reading() as connection:
            found = connection.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,))
            return found.fetchone() is not None

    def delete(self, conversation_id: int) -> None:
        """Delete a conversation with everything that was ever said in it; the file holds no trace of it.

        Raises:
            StoreError: there is no such conversation, or the database cannot be written.
        """
        with self.database.writing() as connection:
            _find(connection, str(conversation_id))
            connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
        self.database.shrink_log()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Read rows; what no row could have been stored as is damage."""
        try:
            with self.database.reading() as connection:
                yield connection
        except (ValueError, TypeError, KeyError, struct.error) as error:
            raise StoreError(f"{self.database.path}: the database is damaged ({error!r})") from error


def _split_reference(reference: str) -> tuple[str, int | str | None]:
    """Return what says which conversation, and the turn or the branch behind it."""
    whole, _, at = reference.strip().partition("@")
    return whole, int(at) if re.fullmatch("[0-9]{1,9}", at) else at or None


def _find(connection: Connection, reference: str) -> Row:
    """Return the row of the conversation that an id, a name or `last` refers to."""
    where: str
    values: tuple[object, ...]
    where, values = "WHERE name = ?", (sql_text(reference),)
    if reference == LAST:
        where, values = "ORDER BY used DESC, id DESC", ()
    elif re.fullmatch("[0-9]{1,18}", reference):
        where, values = "WHERE id = ?", (int(reference),)
    row: Row | None = connection.execute(f"SELECT * FROM conversations {where} LIMIT 1", values).fetchone()
    if row is None and reference == LAST:
        raise StoreError("no conversation is stored yet: one is from its first reply on")
    if row is None:
        raise StoreError(f"no conversation {reference}: `ts history` lists them")
    return row


def _stored_conversation(
    row: Row, lines: Mapping[str, tuple[StoredTurn, ...]], branch: str
) -> StoredConversation:
    branches = {name: [stored.turn for stored in line] for name, line in lines.items()}
    # The one that was in use may have got another prompt since its last turn; the others went on as theirs was.
    systems = {name: line[-1].details.system for name, line in lines.items() if line}
    systems = {**dict.fromkeys(lines, system := optional_text_of(row["system"])), **systems}
    systems[text_of(row["branch"])] = system
    return StoredConversation(
        id=row["id"],
        name=row["name"],
        title=row["title"],
        model=optional_text_of(row["model"]),
        created=row["created"],
        used=row["used"],
        conversation=Conversation(system=systems[branch], branch=branch, branches=branches, systems=systems),
        details=tuple(stored.details for stored in lines[branch]),
        lines=lines,
    )


def _cut_back(stored: StoredConversation, n_turns: int) -> StoredConversation:
    """Return the conversation as it was after `n_turns` turns, on a new branch unless that is all there is."""
    conversation, n_there = stored.conversation, len(stored.details)
    if not 1 <= n_turns <= n_there:
        turns = counted(n_there, "turn")
        there = f"{turns}: give {stored.id}@1 to {stored.id}@{n_there}" if n_there else "no turns"
        raise StoreError(f"no turn {n_turns}: conversation {stored.id} has {there}")
    if n_turns == n_there:
        return stored
    details = stored.details[:n_turns]
    branch = free_name(f"from-{n_turns}", conversation.branches)
    branches = {**conversation.branches, branch: conversation.turns[:n_turns]}
    system = details[-1].system
    cut_back = Conversation(system=system, branch=branch, branches=branches, systems=conversation.systems)
    return replace(stored, conversation=cut_back, details=details)


def _check_name(name: str) -> None:
    """Refuse what is no name, or could be taken for another reference."""
    if in_one_line(name, limit=_LONGEST_NAME) != name or not name:
        raise UsageError(f"{name!r} is no name: give up to {_LONGEST_NAME} characters in one line")
    if name == LAST or name.isdecimal() or "@" in name:
        raise UsageError(f"`{name}` would be read as something else: give a name with letters and no @")


def _check_free(connection: Connection, name: str, conversation_id: int | None) -> None:
    """Refuse a name that another conversation has."""
    taken = connection.execute("SELECT id FROM conversations WHERE name = ?", (name,)).fetchone()
    if taken and taken["id"] != conversation_id:
        raise UsageError(f"conversation {taken['id']} is called `{name}` already: give another name")
