"""Turns and branches as rows of the database, and back. Takes part in the caller's transaction.

A text is stored as SQLite's TEXT, which other programs can read; one that TEXT cannot hold, because of a lone
surrogate or a NUL, is stored as the bytes of its UTF-8 instead.
"""

import json
import sqlite3
import struct
from collections.abc import Mapping

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message, ToolCall
from turbospark_chat.chat.stored_conversation import BranchEnds, StoredTurn, TurnDetails

SqlText = str | bytes
_PLAIN = (  # details that are stored as they are
    "ended", "arithmetic", "reason", "prompt_tokens", "reused_prefix_tokens", "prefilled_tokens", "new_tokens",
    "prefill_seconds", "decode_seconds",
)  # fmt: skip


def sql_text(text: str) -> SqlText:
    """Return what to store for a text."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        return data if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return data


def text_of(stored: SqlText) -> str:
    """Return the text that was stored."""
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def optional_sql_text(text: str | None) -> SqlText | None:
    """Return what to store for a text that may be missing."""
    return None if text is None else sql_text(text)


def optional_text_of(stored: SqlText | None) -> str | None:
    """Return the text that was stored, if there was one."""
    return None if stored is None else text_of(stored)


def insert_turn(
    connection: sqlite3.Connection,
    conversation_id: int,
    parent: StoredTurn | None,
    turn: Turn,
    details: TurnDetails,
) -> StoredTurn:
    """Add a turn under `parent`, or as the first of a line."""
    parent_id, depth = (parent.row_id, parent.depth + 1) if parent else (None, 1)
    columns: dict[str, object] = {
        "conversation_id": conversation_id,
        "parent_id": parent_id,
        "depth": depth,
        **_columns_of_turn(turn),
        **_columns_of_details(details),
    }
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    cursor = connection.execute(f"INSERT INTO turns ({names}) VALUES ({marks})", tuple(columns.values()))
    row_id = cursor.lastrowid or 0  # of an INSERT it is never None
    return StoredTurn(row_id, parent_id, depth, turn, details)


def read_turns(connection: sqlite3.Connection, conversation_id: int) -> dict[int, StoredTurn]:
    """Return all turns of a conversation by their row's id, oldest first.

    Raises:
        ValueError, TypeError, KeyError, struct.error: a row holds what no turn could have been stored as.
    """
    rows = connection.execute("SELECT * FROM turns WHERE conversation_id = ? ORDER BY id", (conversation_id,))
    return {
        row["id"]: StoredTurn(row["id"], row["parent_id"], row["depth"], _turn_of(row), _details_of(row))
        for row in rows
    }


def read_ends(connection: sqlite3.Connection, conversation_id: int) -> dict[str, BranchEnds]:
    """Return the ends of a conversation's branches by name, in the order in which they began."""
    rows = connection.execute(
        "SELECT name, first_id, last_id FROM branches WHERE conversation_id = ? ORDER BY id",
        (conversation_id,),
    )
    return {text_of(row["name"]): BranchEnds(row["first_id"], row["last_id"]) for row in rows}


def write_ends(connection: sqlite3.Connection, conversation_id: int, branch: str, ends: BranchEnds) -> None:
    """Begin a branch with these ends, or move them."""
    connection.execute(
        "INSERT INTO branches (conversation_id, name, first_id, last_id) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (conversation_id, name)"
        " DO UPDATE SET first_id = excluded.first_id, last_id = excluded.last_id",
        (conversation_id, sql_text(branch), ends.first_id, ends.last_id),
    )


def line_between(parents: Mapping[int, int | None], ends: BranchEnds) -> list[int]:
    """Return the rows of a branch from its first to its last, given each row's parent.

    Raises:
        KeyError: a row is missing between them.
    """
    line: list[int] = []
    row_id = ends.last_id
    while row_id is not None:
        line.append(row_id)
        if row_id == ends.first_id:
            break
        row_id = parents[row_id]
        if len(line) > len(parents):
            raise KeyError(row_id)  # a ring, which only damage can make
    return line[::-1]


def _columns_of_turn(turn: Turn) -> dict[str, object]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in turn.reply.tool_calls]
    return {
        "user": sql_text(turn.user.content),
        "user_role": turn.user.role,
        "reply": sql_text(turn.reply.content),
        "reasoning": optional_sql_text(turn.reply.reasoning),
        "complete": turn.reply.complete,
        "tool_calls": _sql_json(calls) if calls else None,
        "generated": sql_text(turn.generated),
        "generated_ids": struct.pack(f"<{len(turn.generated_ids)}I", *turn.generated_ids),
    }


def _columns_of_details(details: TurnDetails) -> dict[str, object]:
    return {
        **{name: getattr(details, name) for name in _PLAIN},
        "system": optional_sql_text(details.system),
        "model": optional_sql_text(details.model),
        "settings": _sql_json(dict(details.settings)) if details.settings else None,
        "seed": None if details.seed is None else str(details.seed),  # may be larger than SQLite's integers
    }


def _sql_json(value: object) -> SqlText:
    return sql_text(
        json.dumps(value, ensure_ascii=False)
    )  # escaped, two halves would come back as one character


def _turn_of(row: sqlite3.Row) -> Turn:
    calls = tuple(ToolCall(**call) for call in json.loads(text_of(row["tool_calls"] or "[]")))
    reply = Message(
        "assistant",
        text_of(row["reply"]),
        reasoning=optional_text_of(row["reasoning"]),
        complete=bool(row["complete"]),
        tool_calls=calls,
    )
    ids = struct.unpack(f"<{len(row['generated_ids']) // 4}I", row["generated_ids"])
    return Turn(Message(row["user_role"], text_of(row["user"])), reply, text_of(row["generated"]), ids)


def _details_of(row: sqlite3.Row) -> TurnDetails:
    return TurnDetails(
        system=optional_text_of(row["system"]),
        model=optional_text_of(row["model"]),
        settings=json.loads(text_of(row["settings"] or "{}")),
        seed=None if row["seed"] is None else int(row["seed"]),
        **{name: row[name] for name in _PLAIN},
    )
