"""Responses that the server keeps, so that requests may go on from them: in memory, or in a file of SQLite.

A response has its own input and output alone, and the name of the one that it went on from: a conversation is a chain.
When there are too many bytes, the least recently used are removed; using a response uses all of its chain.
"""

import hashlib
import json
import os
import re
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.server.errors import ApiError

_APPLICATION_ID, _VERSION = 0x4D4C5252, 1
_PATIENCE_SECONDS = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, input TEXT NOT NULL, response TEXT NOT NULL,
    bytes INTEGER NOT NULL, used INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS by_use ON responses (used);
"""
_ITEM = re.compile(r"[a-z]+_([0-9a-f]{32})\d+")
Items = list[dict[str, Any]]


class KeptResponses:
    """The responses of all clients. Threads may share it; each call may wait for a disk."""

    def __init__(self, most_bytes: int, path: Path | None = None) -> None:
        """Opens the file, or makes it.

        Args:
            most_bytes: of all responses' JSON; 0: nothing is kept.
            path: of the file, which other servers may use, too; None: they are in memory.

        Raises:
            RequestError: the file cannot be used.
        """
        self.most_bytes, self._path, self._lock = most_bytes, path, threading.Lock()
        try:
            if path is not None:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # it has what users write
            place = path or ":memory:"
            self._db = sqlite3.connect(place, _PATIENCE_SECONDS, check_same_thread=False, isolation_level=None)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise RequestError(
                f"{path}: responses cannot be kept there: {reason}; choose another file with --responses-file"
            ) from error

    def save(self, response: dict[str, Any], given: Items, owner: str) -> bool:
        """Keeps a response; false if it is larger than all may be.

        Args:
            response: whole, at its end.
            given: the items of its own input.
            owner: who may use it.
        """
        texts = json.dumps(given), json.dumps(response)
        size = sum(map(len, texts))
        if size > self.most_bytes:
            return False
        row = (response["id"], owner, response["previous_response_id"], *texts, size)
        with self._lock, self._writing() as db:
            added = "INSERT OR REPLACE INTO responses SELECT ?, ?, ?, ?, ?, ?, ifnull(max(used), 0) + 1 FROM responses"
            db.execute(added, row)
            (total,) = db.execute("SELECT sum(bytes) FROM responses").fetchone()
            while total > self.most_bytes:
                oldest, freed = db.execute("SELECT id, bytes FROM responses ORDER BY used LIMIT 1").fetchone()
                db.execute("DELETE FROM responses WHERE id = ?", (oldest,))
                total -= freed
        return True

    def response(self, response_id: str, owner: str) -> dict[str, Any]:
        """A response.

        Raises:
            ApiError: there is none of that name.
        """
        with self._lock:
            response: dict[str, Any] = json.loads(self._row(response_id, owner, "response_id")[2])
        return response

    def input_items(self, response_id: str, owner: str) -> Items:
        """All that a response answered, the oldest first: inputs and outputs of its chain, and its own input.

        Raises:
            ApiError: it, or one that it went on from, is not there.
        """
        return self._chain(response_id, owner, "response_id")[0]

    def conversation(self, response_id: str, owner: str) -> Items:
        """`input_items`, and what the response said.

        Raises:
            ApiError: it, or one that it went on from, is not there.
        """
        given, output = self._chain(response_id, owner, "previous_response_id")
        return given + output

    def item(self, item_id: str, owner: str) -> dict[str, Any]:
        """An item of a response's output.

        Raises:
            ApiError: there is none of that name.
        """
        if match := _ITEM.fullmatch(item_id):
            with suppress(ApiError):
                for item in self.response(f"resp_{match[1]}", owner)["output"]:
                    if item["id"] == item_id:
                        return dict(item)
        raise _absent("item", item_id, "input", "send the item itself")

    def delete(self, response_id: str, owner: str) -> None:
        """Removes a response.

        Raises:
            ApiError: there is none of that name.
        """
        with self._lock, self._writing() as db:
            self._row(response_id, owner, "response_id")
            db.execute("DELETE FROM responses WHERE id = ?", (response_id,))

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._db.close()

    def _chain(self, response_id: str, owner: str, field: str) -> tuple[Items, Items]:
        rows, names = [], []
        name: str | None = response_id
        with self._lock, self._writing() as db:
            while name is not None:
                previous, given, response = self._row(name, owner, field)
                names.append((name,))
                rows.append((json.loads(given), json.loads(response)["output"]))
                name = previous
            (used,) = db.execute("SELECT max(used) FROM responses").fetchone()
            db.executemany(f"UPDATE responses SET used = {int(used) + 1} WHERE id = ?", names)
        items: Items = []
        for given, output in reversed(rows[1:]):
            items += given + output
        return items + rows[0][0], rows[0][1]

    def _row(self, response_id: str, owner: str, field: str) -> tuple[str | None, str, str]:
        asked = "SELECT previous, input, response FROM responses WHERE id = ? AND owner = ?"
        row: tuple[str | None, str, str] | None = self._db.execute(asked, (response_id, owner)).fetchone()
        if row is None:
            raise _absent("response", response_id, field, "send the whole conversation as input")
        return row

    def _writing(self) -> "_Transaction":
        return _Transaction(self._db)

    def _prepare(self) -> None:
        with closing(self._db.cursor()) as db:
            owner, version, tables = (
                db.execute(f"SELECT * FROM {source}").fetchone()[0]
                for source in ("pragma_application_id", "pragma_user_version", "(SELECT count(*) FROM sqlite_master)")
            )
            if tables and (owner, version) != (_APPLICATION_ID, _VERSION):
                raise RequestError(
                    f"{self._path}: this file is of another program, or of another version of MLXR: choose another one "
                    "with --responses-file"
                )
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.executescript(_TABLE)


class _Transaction:
    """A transaction, which ends with the block."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: object, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def owner_of(key: str) -> str:
    """Who may use what is kept: whoever has the same key.

    Args:
        key: of the request; empty: it has none.
    """
    return hashlib.sha256(key.encode("latin-1", "replace")).hexdigest() if key else ""


def _absent(what: str, name: str, field: str, instead: str) -> ApiError:
    code = "previous_response_not_found" if field == "previous_response_id" else "not_found"
    message = f"there is no {what} {name!r:.80} here: it was not kept, or is no longer: {instead}"
    return ApiError(404, message, param=field, code=code)
