"""Finds and opens the registry's SQLite file, brings its tables up to date, and words SQLite's errors.

* Each use opens a connection of its own and closes it: threads and processes share nothing but the file.
* The journal is a write-ahead log: readers and a writer do not wait for each other. A writer waits for another one, up
  to `PATIENCE_S`.
* A file of a newer version, a damaged one, or one of another program is refused. Nothing is removed from it.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mlxr.compiler.artifact.folder_lock import alone_in
from mlxr.registry import RegistryError
from mlxr.registry.schema import APPLICATION_ID, MIGRATIONS

PATIENCE_S = 10.0
"""How long a writer waits for another one."""
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")


def data_folder() -> Path:
    """The folder, as an absolute path. It may not exist yet.

    It is `$MLXR_DATA_DIR`; else `~/Library/Application Support/mlxr` on macOS; else `$XDG_DATA_HOME/mlxr`, else
    `~/.local/share/mlxr`.

    Raises:
        RegistryError: no variable is set and there is no home folder, or the current folder does not exist any more.
    """
    try:
        if own := os.environ.get("MLXR_DATA_DIR"):
            folder = Path(own)
        elif sys.platform == "darwin":
            folder = Path.home() / "Library" / "Application Support" / "mlxr"
        elif base := os.environ.get("XDG_DATA_HOME"):
            folder = Path(base) / "mlxr"
        else:
            folder = Path.home() / ".local" / "share" / "mlxr"
        return folder.absolute()
    except (RuntimeError, OSError) as error:
        raise RegistryError(f"there is no place for the registry: {error}; set MLXR_DATA_DIR to a folder") from error


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection for queries; None if there is no registry yet.

    Raises:
        RegistryError: it cannot be read, is damaged, or is not a registry of this version or an older one.
    """
    with _worded(path, "read"):
        if not path.exists():
            yield None
            return
        if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
            uri = f"{path.as_uri()}?mode=rw"  # a reader may have to make the log's index
        else:
            # Where nothing can be written, SQLite reads only what it is told that nobody writes.
            uri = f"{path.as_uri()}?mode=ro" + ("" if _log(path).exists() else "&immutable=1")
        with closing(_connection(uri)) as connection:
            version = _version(connection, path)
            if version == 0:
                yield None
                return
            if version < len(MIGRATIONS):
                _migrate(connection, path)
            yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection within a transaction, which ends with the block. The registry is created where there is none.

    Raises:
        RegistryError: as `reading`; or it cannot be written, or others write it all the time.
    """
    with _worded(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(_connection(f"{path.as_uri()}?mode=rwc")) as connection:
            if _version(connection, path) < len(MIGRATIONS):
                _migrate(connection, path)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _connection(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0: there are none yet."""
    begins = not connection.in_transaction
    if begins:
        connection.execute("BEGIN")  # all three of one moment: another process may be making the tables
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version, owner = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
    if begins:
        connection.execute("COMMIT")
    if owner != APPLICATION_ID:
        if version or tables:
            raise RegistryError(
                f"{path}: this is a database of another program, not MLXR's registry; move it to another place, or set "
                "MLXR_DATA_DIR to another folder"
            )
        return 0
    if version > len(MIGRATIONS):
        raise RegistryError(
            f"{path}: a newer MLXR wrote this registry (version {version}; this MLXR knows up to {len(MIGRATIONS)}); "
            "update MLXR, or set MLXR_DATA_DIR to another folder"
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    with alone_in(path.parent):  # SQLite does not wait for others when it changes the kind of journal
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for number in range(_version(connection, path), len(MIGRATIONS)):
                for statement in filter(str.strip, MIGRATIONS[number].split(";")):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


@contextmanager
def _worded(path: Path, verb: str) -> Iterator[None]:
    """Turns errors of SQLite and of the system into ones that say which file, and how to go on."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith(_DAMAGED):
            raise RegistryError(
                f"{path}: the registry is damaged ({error}). Move the file away, with the files beside it whose names "
                "begin alike, and add the models again; the models' own files are elsewhere, and nothing has happened "
                "to them"
            ) from error
        if code.startswith(_BUSY):
            raise RegistryError(
                f"{path}: another process has been writing the registry for {PATIENCE_S:.0f} s; try again later"
            ) from error
        raise RegistryError(f"{path}: cannot {verb} the registry: {error}; {_REMEDY}") from error
    except OSError as error:
        raise RegistryError(
            f"{error.filename or path}: cannot {verb} the registry: {error.strerror or error}; {_REMEDY}"
        ) from error


_REMEDY = "set MLXR_DATA_DIR to a folder that you can write"
