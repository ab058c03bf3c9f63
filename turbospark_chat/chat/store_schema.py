"""The tables of the conversations' database, and how the file is made, recognised and brought up to date.

Knows nothing of what the rows mean to a chat.
"""

import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Final

from turbospark_chat.errors import StoreError

APPLICATION_ID: Final = 0x54537043  # "TSpC", which tells this file from any other program's
WAIT_SECONDS: Final = 10  # for another program that is writing
_RETRY_SECONDS = 0.01
_PRIVATE = stat.S_IRUSR | stat.S_IWUSR

STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # `branch` is the one in use. Ids are never used again: another program may still hold a deleted one.
        """
        CREATE TABLE conversations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT UNIQUE,
            title TEXT NOT NULL,
            model TEXT,
            system TEXT,
            branch TEXT NOT NULL,
            created REAL NOT NULL,
            used REAL NOT NULL
        )
        """,
        # A tree: rows are added and never changed. `depth` counts the turns from the first one of its line on.
        """
        CREATE TABLE turns (
            id INTEGER PRIMARY KEY,
            conversation_id INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            parent_id INTEGER,
            depth INTEGER NOT NULL,
            user TEXT NOT NULL,
            user_role TEXT NOT NULL,
            reply TEXT NOT NULL,
            reasoning TEXT,
            complete INTEGER NOT NULL,
            tool_calls TEXT,
            generated TEXT NOT NULL,
            generated_ids BLOB NOT NULL,
            ended REAL NOT NULL,
            system TEXT,
            model TEXT,
            arithmetic TEXT,
            settings TEXT,
            seed TEXT,
            reason TEXT,
            prompt_tokens INTEGER,
            reused_prefix_tokens INTEGER,
            prefilled_tokens INTEGER,
            new_tokens INTEGER,
            prefill_seconds REAL,
            decode_seconds REAL,
            UNIQUE (conversation_id, id),
            FOREIGN KEY (conversation_id, parent_id) REFERENCES turns (conversation_id, id)
        )
        """,
        "CREATE INDEX turns_by_parent ON turns (conversation_id, parent_id)",
        # A branch is a line of turns, from `first_id` down to `last_id`; both are NULL where it has none.
        """
        CREATE TABLE branches (
            id INTEGER PRIMARY KEY,
            conversation_id INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            first_id INTEGER,
            last_id INTEGER,
            UNIQUE (conversation_id, name),
            FOREIGN KEY (conversation_id, first_id) REFERENCES turns (conversation_id, id),
            FOREIGN KEY (conversation_id, last_id) REFERENCES turns (conversation_id, id)
        )
        """,
    ),
)
"""What brings a database from each version to the next; a new file has version 0."""


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's code for the kind of failure, 0 where the failure is not SQLite's."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def connect(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, made if it is not there, in the newest version.

    Raises:
        StoreError: it is another program's, or a newer version's; it was not changed.
        sqlite3.Error, OSError: it cannot be opened or written.
    """
    _make_private(path)
    connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        _recognise(connection, path)
        _write_ahead(connection)
        for setting in ("synchronous = FULL", "cell_size_check = ON", "secure_delete = ON"):
            connection.execute(f"PRAGMA {setting}")
        _migrate(connection)
        connection.execute("PRAGMA foreign_keys = ON")  # a step may rebuild tables, so only after them
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Make the file and its folder for this user alone; SQLite gives its files beside it the same rights.

    A folder that is there already is left as it is: it may be shared on purpose.
    """
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(stat.S_IRWXU)  # whatever the umask left of it
    try:
        # Only a file that is not there: closing one that this process has open would undo SQLite's locks on it.
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE)
    except FileExistsError:
        _check_not_cut_off(path)
    else:
        os.close(descriptor)
    if stat.S_IMODE(path.stat().st_mode) != _PRIVATE:
        path.chmod(_PRIVATE)


def _check_not_cut_off(path: Path) -> None:
    """Refuse an empty file whose log is not: SQLite would take it for a new one and delete the log."""
    log = path.with_name(f"{path.name}-wal")
    if path.stat().st_size == 0 and log.exists() and log.stat().st_size:
        raise StoreError(f"{path}: it is empty, but {log.name} is not; move both away to begin a new one")


def _recognise(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # another program may be making the tables just now
    application_id, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    n_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    is_new = not (application_id or version or n_tables)
    if application_id != APPLICATION_ID and not is_new:
        raise StoreError(f"{path}: it is another program's database; move it away to begin a new one")
    if version > len(STEPS):
        raise StoreError(
            f"{path}: a newer turbospark_chat wrote it (version {version}, this one knows {len(STEPS)});"
            " upgrade this one"
        )


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Write through a log, so that readers and a writer do not wait for each other."""
    give_up = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:  # SQLite itself does not wait here
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(_RETRY_SECONDS)


def _migrate(connection: sqlite3.Connection) -> None:
    if _pragma(connection, "user_version") == len(STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[_pragma(connection, "user_version") :]:  # another program may have been faster
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
