"""Writes what is new in a conversation, in the caller's transaction. Knows which of its turns are stored."""

import sqlite3
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

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
from turbospark_chat.chat.turn_result import StoredApart

_TITLE_LENGTH = 60


@dataclass(slots=True)
class Kept:
    """What a program knows to be stored of its conversation."""

    conversation_id: int | None = None
    turns: dict[object, StoredTurn] = field(default_factory=dict)  # by the turn's identity
    ends: dict[str, BranchEnds] = field(default_factory=dict)  # by the branch's name in the conversation
    names: dict[str, str] = field(default_factory=dict)  # from it to the branch's name in the store

    @classmethod
    def of(cls, stored: StoredConversation) -> "Kept":
        """Return what is known of a conversation that was just loaded."""
        turns = {row.turn.identity: row for line in stored.lines.values() for row in line}
        ends = {name: BranchEnds.of(line) for name, line in stored.lines.items()}
        return cls(stored.id, turns, ends, {name: name for name in ends})

    def copy(self) -> "Kept":
        """Return a copy to change."""
        return Kept(self.conversation_id, dict(self.turns), dict(self.ends), dict(self.names))


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
        self._details = {one.line[-1].identity: one.details for one in unkept}
        self._turns_before: dict[object, Turn] = {}  # by the identity of the turn after
        self._now = now

    def write(self, conversation: Conversation, model_name: str) -> tuple[StoredApart, ...]:
        """Write the turns, branch ends and properties that are not stored yet; return what got another name."""
        kept = self._kept
        conversation_id = self._find_conversation() or self._begin_conversation(conversation)
        if conversation_id is None:
            return ()
        for line in (*(one.line for one in self._unkept), *conversation.branches.values()):
            self._turns_before.update((turn.identity, before) for before, turn in pairwise(line))
        for one in self._unkept:
            self._write_turns(conversation_id, one.line, one.details.system)
        apart = self._write_branches(conversation_id, conversation)
        self._connection.execute(
            "UPDATE conversations SET model = ?, system = ?, branch = ?, used = ? WHERE id = ?",
            (
                sql_text(model_name),
                optional_sql_text(conversation.system),
                sql_text(kept.names[conversation.branch]),
                self._now,
                conversation_id,
            ),
        )
        return apart

    def _write_branches(self, conversation_id: int, conversation: Conversation) -> tuple[StoredApart, ...]:
        """Write the turns and ends of every branch; where another program has moved one, under another name."""
        kept, apart = self._kept, []
        there = read_ends(self._connection, conversation_id)
        for name, turns in conversation.branches.items():
            ends = BranchEnds.of(self._write_turns(conversation_id, turns, conversation.system))
            ends_before, stored_name = kept.ends.get(name), kept.names.get(name)
            kept.ends[name] = ends
            if ends == ends_before:
                continue
            if stored_name is None or there.get(stored_name) != ends_before:  # new, or another program's
                stored_name = kept.names[name] = free_name(name, {*there, *kept.names.values()})
                if stored_name != name:
                    apart.append(StoredApart(name, stored_name))
            write_ends(self._connection, conversation_id, stored_name, ends)
        return tuple(apart)

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
        kept.turns, kept.ends, kept.names = {}, {}, {}
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
        self, conversation_id: int, turns: Sequence[Turn], system: str | None
    ) -> tuple[StoredTurn, ...]:
        """Return the rows of a branch's turns; those not stored yet are added, each under the one before."""
        rows: list[StoredTurn] = []
        for turn in self._from_the_start(turns):
            row = self._kept.turns.get(turn.identity)
            if row is None:
                parent = rows[-1] if rows else None
                details = self._details.get(turn.identity, TurnDetails(self._now, system))
                row = insert_turn(self._connection, conversation_id, parent, turn, details)
                self._kept.turns[turn.identity] = row
            rows.append(row)
        return tuple(rows[len(rows) - len(turns) :])

    def _from_the_start(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Return the turns of a branch after those that it has forgotten and another line still has."""
        line = deque(turns)
        while line and (before := self._turns_before.get(line[0].identity)) is not None:
            line.appendleft(before)
        return line
