"""One SQLite file that threads and programs share: transactions on it, and its failures in words.

Knows nothing of what the file holds; `store_schema` does.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turbospark_chat.chat.store_schema import WAIT_SECONDS, connect, primary_code
from turbospark_chat.errors import StoreError

_PROBLEMS = {
    sqlite3.SQLITE_NOTADB: "it is no database; move it away to begin a new one",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; make a copy, then try `sqlite3 FILE .recover`",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and go on",
    sqlite3.SQLITE_IOERR: "it cannot be read or written; look whether the disk or a quota is full, or failing",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; is its folder yours to write?",
    sqlite3.SQLITE_READONLY: "it cannot be written; are the file and its folder yours to write?",
    sqlite3.SQLITE_PERM: "it cannot be written; are the file and its folder yours to write?",
    sqlite3.SQLITE_BUSY: f"another program has kept it busy for {WAIT_SECONDS} seconds; try again",
}


class Database:
    """The user's database, open. Any thread may use it; one at a time does."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path) -> "Database":
        """Open the file at `path`, making it and its folder, for this user alone, if they are not there.

        Raises:
            StoreError: it cannot be used; nothing in it was changed.
        """
        with explained(path):
            return cls(path, connect(path))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for queries that all see the same state.

        Raises:
            StoreError: it cannot be read.
        """
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for changes that are all on the disk at the end, or, after any exception, none.

        Raises:
            StoreError: it cannot be written.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def shrink_log(self) -> None:
        """Bring what was written into the file itself and empty the log, unless another program is reading.

        Raises:
            StoreError: it cannot be written.
        """
        with self._lock, explained(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file; what was written stays."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, explained(self.path):
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk ends it by itself
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failure of the database, or of the file system, into one line that names the file.

    Raises:
        StoreError: what failed, and what to try.
    """
    try:
        yield
    except sqlite3.Error as error:
        problem = _PROBLEMS.get(primary_code(error))
        raise StoreError(f"{path}: {problem} ({error})" if problem else f"{path}: {error}") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(f"{error.filename or path}: {reason}; is its folder yours to write?") from error
