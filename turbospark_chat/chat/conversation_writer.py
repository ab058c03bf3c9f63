"""Writes what is new in a conversation, in the caller's transaction. Knows which of its turns are stored."""

import sqlite3
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from turbospark_chat.chat.attachment import without_attachments
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.conversation_rows import (
    insert_turn,
    optional_sql_text,
    read_ends,
    sql_text,
    write_ends,
)
from turbospark_chat.chat.stored_conversation import BranchEnds, StoredConversation, StoredTurn, TurnDetails
from turbospark_chat.chat.text_match import in_one_line

_TITLE_LENGTH = 60


@dataclass(slots=True)
class Kept:
    """What a program knows to be stored of its conversation.

    Turns are found by identity, so each is held for as long as it is listed.
    """

    conversation_id: int | None = None
    turns: dict[int, StoredTurn] = field(default_factory=dict)  # by id() of the turn
    lines: dict[str, tuple[StoredTurn, ...]] = field(
        default_factory=dict
    )  # by the branch's name in the conversation
    names: dict[str, str] = field(default_factory=dict)  # from it to the branch's name in the store

    @classmethod
    def of(cls, stored: StoredConversation) -> "Kept":
        """Return what is known of a conversation that was just loaded."""
        lines = dict(stored.lines)
        turns = {id(row.turn): row for line in lines.values() for row in line}
        return cls(stored.id, turns, lines, {name: name for name in lines})

    def copy(self) -> "Kept":
        """Return a copy to change."""
        return Kept(self.conversation_id, dict(self.turns), dict(self.lines), dict(self.names))


@dataclass(frozen=True, slots=True)
class UnkeptTurn:
    """A turn that ended, the last of `line`, and was not stored since. It may be on no branch any more."""

    line: tuple[Turn, ...]
    details: TurnDetails


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name`, with a number after it if it is taken."""
    if name not in taken:
        return name
    return next(numbered for number in count(2) if (numbered := f"{name}-{number}") not in taken)


class ConversationWriter:
    """One transaction's work. What it wrote it notes in `kept`, which holds once the transaction is through."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        kept: Kept,
        unkept: Sequence[UnkeptTurn],
        now: float,  # seconds since the epoch
    ) -> None:
        self._connection = connection
        self._kept = kept
        self._unkept = unkept
        self._details = {id(one.line[-1]): one.details for one in unkept}
        self._now = now

    def write(self, conversation: Conversation, model_name: str) -> None:
        """Write the turns, branch ends and properties that are not stored yet."""
        kept, branch = self._kept, conversation.branch
        conversation_id = self._find_conversation() or self._begin_conversation(conversation)
        if conversation_id is None:
            return
        for one in self._unkept:
            self._write_turns(conversation_id, branch, one.line, one.details.system)
        there = read_ends(self._connection, conversation_id)
        for name, turns in conversation.branches.items():
            line = self._write_turns(conversation_id, name, turns, conversation.system)
            ends, ends_before = BranchEnds.of(line), BranchEnds.of(kept.lines.get(name, ()))
            kept.lines[name] = line
            stored_name = kept.names.get(name)
            if stored_name is not None and ends == ends_before:
                continue
            if stored_name is None or there.get(stored_name) != ends_before:  # new, or another program's
                stored_name = kept.names[name] = free_name(name, {*there, *kept.names.values()})
            write_ends(self._connection, conversation_id, stored_name, ends)
        self._connection.execute(
            "UPDATE conversations SET model = ?, system = ?, branch = ?, used = ? WHERE id = ?",
            (
                sql_text(model_name),
                optional_sql_text(conversation.system),
                sql_text(kept.names[branch]),
                self._now,
                conversation_id,
            ),
        )

    def _find_conversation(self) -> int | None:
        """Return the id, None where there is no conversation yet or another program has deleted it."""
        row = self._connection.execute(
            "SELECT id FROM conversations WHERE id = ?", (self._kept.conversation_id,)
        ).fetchone()
        return row["id"] if row else None

    def _begin_conversation(self, conversation: Conversation) -> int | None:
        """Return the id of a new conversation, None where there is no turn to begin it with."""
        kept = self._kept
        self._details = {key: row.details for key, row in kept.turns.items()} | self._details
        kept.turns, kept.lines, kept.names = {}, {}, {}
        lines = (conversation.turns, *conversation.branches.values())
        first = next((turns[0] for turns in lines if turns), None)
        kept.conversation_id = (
            None if first is None else self._insert_conversation(conversation.branch, first)
        )
        return kept.conversation_id

    def _insert_conversation(self, branch: str, first: Turn) -> int | None:
        title = in_one_line(without_attachments(first.user.content), limit=_TITLE_LENGTH)
        return self._connection.execute(
            "INSERT INTO conversations (title, branch, created, used) VALUES (?, ?, ?, ?)",
            (title, sql_text(branch), self._now, self._now),
        ).lastrowid

    def _write_turns(
        self, conversation_id: int, branch: str, turns: Sequence[Turn], system: str | None
    ) -> tuple[StoredTurn, ...]:
        """Return the rows of a branch's turns, each under the one before; those not stored yet are added."""
        line: list[StoredTurn] = []
        for turn in turns:
            parent = line[-1] if line else None
            row = self._find_turn(turn, parent, branch, len(line))
            if row is None:
                details = self._details.get(id(turn), TurnDetails(self._now, system))
                row = insert_turn(self._connection, conversation_id, parent, turn, details)
            self._kept.turns[id(turn)] = row
            line.append(row)
        return tuple(line)

    def _find_turn(
        self, turn: Turn, parent: StoredTurn | None, branch: str, position: int
    ) -> StoredTurn | None:
        """Return the row of a turn under `parent`; a branch whose oldest turns were forgotten may begin anywhere."""
        parent_id = parent.row_id if parent else None
        known = self._kept.turns.get(id(turn))
        if known is not None and (parent is None or known.parent_id == parent_id):
            return known
        if id(turn) in self._details:  # it was said just now, if maybe in the same words
            return None
        # The same turn with the ids of another tokenizer: where it was in the branch, or among what hangs there.
        lines = (self._kept.lines.get(branch, ()), *self._kept.lines.values())
        there = (line[position] for line in lines if position < len(line))
        likely = (row for row in there if parent is None or row.parent_id == parent_id)
        others = (row for row in reversed(self._kept.turns.values()) if row.parent_id == parent_id)
        same = (row for row in chain(likely, others) if _say_the_same(row.turn, turn))
        return next((replace(row, turn=turn) for row in same), None)


def _say_the_same(one: Turn, other: Turn) -> bool:
    return (one.user, one.reply, one.generated) == (other.user, other.reply, other.generated)
