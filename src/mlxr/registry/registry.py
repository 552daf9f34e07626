"""The registry's methods; see the package."""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxr.compiler.spec.change import Changes
from mlxr.loading.options import LoadOptions, changes_as_dict
from mlxr.registry import NameTakenError, RegistryError
from mlxr.registry.database import data_folder, reading, writing
from mlxr.registry.records import ArtifactRecord, FileRecord, ModelRecord
from mlxr.runtime.hosts.registry import AUTO

FILE_NAME = "registry.db"


class Registry:
    """Models by name. Threads and processes may use one at once; each method is a transaction of its own.

    Every method raises RegistryError where the file cannot be read (or, for those that change something, written), is
    damaged, or is of a newer version.

    Attributes:
        path: its file. Nothing creates it before the first model is added.
    """

    def __init__(self, path: Path | None = None) -> None:
        """The registry in a file; None: the user's own."""
        self.path = path or data_folder() / FILE_NAME

    def add(
        self, model: ModelRecord, spec: str, artifacts: Iterable[ArtifactRecord] = (), *, replace: bool = False
    ) -> None:
        """Registers a model, with the text of its spec, and the artifacts that the cache has of it.

        Raises:
            NameTakenError: the name is taken, and `replace` is False.
        """
        with writing(self.path) as db:
            if replace:
                db.execute("DELETE FROM models WHERE name = ?", (model.name,))
            elif row := db.execute("SELECT source FROM models WHERE name = ?", (model.name,)).fetchone():
                raise NameTakenError(taken(model.name, _path(row["source"])))
            db.execute("INSERT OR IGNORE INTO specs VALUES (?, ?)", (model.spec_hash, spec))
            template = model.options.template
            digest = None if template is None else hashlib.sha256(template.encode()).hexdigest()
            if digest is not None:
                db.execute("INSERT OR IGNORE INTO templates VALUES (?, ?)", (digest, template))
            db.execute(
                "INSERT INTO models (name, source, kind, spec_hash, template_hash, options, added, last_used) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    model.name,
                    _bytes(model.source),
                    model.kind,
                    model.spec_hash,
                    digest,
                    _options_text(model.options),
                    model.added or time.time(),
                    model.last_used,
                ),
            )
            rows = [
                (model.name, _bytes(file.path), file.size_bytes, file.mtime_ns, file.sha256) for file in model.files
            ]
            db.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?)", rows)
            for artifact in artifacts:
                _put_artifact(db, artifact)
            _drop_unused(db)

    def get(self, name: str) -> ModelRecord | None:
        """The model of that name; None: there is none."""
        return next(iter(self._models("WHERE name = ?", (name,))), None)

    def models(self) -> tuple[ModelRecord, ...]:
        """All models, by name."""
        return self._models("ORDER BY name", ())

    def names(self) -> tuple[str, ...]:
        """The names of all models, sorted."""
        with reading(self.path) as db:
            return () if db is None else tuple(row[0] for row in db.execute("SELECT name FROM models ORDER BY name"))

    def remove(self, name: str) -> tuple[ArtifactRecord, ...]:
        """Removes a model from the registry, and nothing else.

        Returns:
            The artifacts in the cache that no registered model needs any more.

        Raises:
            RegistryError: there is no such model.
        """
        if self.get(name) is None:  # so that no registry is created by a wrong name
            raise RegistryError(f"no model is registered as {name!r}; mlxr list shows the names")
        with writing(self.path) as db:
            db.execute("DELETE FROM models WHERE name = ?", (name,))
            return _drop_unused(db)

    def touch(self, name: str) -> None:
        """Notes that a model is used now."""
        with writing(self.path) as db:
            db.execute("UPDATE models SET last_used = ? WHERE name = ?", (time.time(), name))

    def spec(self, spec_hash: str) -> str | None:
        """The text of a spec of a registered model; None: there is none of that hash."""
        with reading(self.path) as db:
            row = None if db is None else db.execute("SELECT text FROM specs WHERE hash = ?", (spec_hash,)).fetchone()
        return None if row is None else str(row[0])

    def add_artifact(self, artifact: ArtifactRecord) -> None:
        """Registers an artifact in the cache; it takes the place of one of the same spec, chip, version and sequences.

        Raises:
            RegistryError: no registered model has that spec.
        """
        with writing(self.path) as db:
            if db.execute("SELECT 1 FROM specs WHERE hash = ?", (artifact.spec_hash,)).fetchone() is None:
                raise RegistryError(f"{artifact.folder}: no registered model has the spec of this artifact")
            _put_artifact(db, artifact)

    def artifacts(self, spec_hash: str | None = None) -> tuple[ArtifactRecord, ...]:
        """The artifacts in the cache of a spec; None: of all registered models."""
        where, values = ("", ()) if spec_hash is None else ("WHERE spec_hash = ?", (spec_hash,))
        with reading(self.path) as db:
            if db is None:
                return ()
            rows = db.execute(f"SELECT * FROM artifacts {where} ORDER BY spec_hash, chip, version, sequences", values)
            return tuple(map(_artifact, rows))

    def _models(self, clause: str, values: tuple[str, ...]) -> tuple[ModelRecord, ...]:
        with reading(self.path) as db:
            if db is None:
                return ()
            db.execute("BEGIN")  # models and their files as of one moment
            rows = db.execute(
                "SELECT models.*, templates.text AS template FROM models "
                f"LEFT JOIN templates ON templates.hash = template_hash {clause}",
                values,
            ).fetchall()
            return tuple(self._model(row, _files(db, row["name"])) for row in rows)

    def _model(self, row: sqlite3.Row, files: tuple[FileRecord, ...]) -> ModelRecord:
        try:
            options = _options(json.loads(row["options"]), row["template"])
        except (TypeError, ValueError, AttributeError) as error:
            raise RegistryError(
                f"{self.path}: the options of {row['name']!r} cannot be read ({error}); mlxr remove {row['name']}, and "
                "add it again"
            ) from error
        return ModelRecord(
            row["name"],
            _path(row["source"]),
            row["kind"],
            row["spec_hash"],
            options,
            files,
            row["added"],
            row["last_used"],
        )


def taken(name: str, source: Path) -> str:
    """The message for a name that is taken."""
    return f"{name!r} is registered already, for {source}; choose another name, or give --replace"


def _put_artifact(db: sqlite3.Connection, artifact: ArtifactRecord) -> None:
    created = artifact.created or time.time()
    db.execute(
        "INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?, ?)",
        (artifact.spec_hash, artifact.chip, artifact.version, artifact.sequences, _bytes(artifact.folder), created),
    )


def _drop_unused(db: sqlite3.Connection) -> tuple[ArtifactRecord, ...]:
    """Removes specs and templates that no model has; returns the artifacts of those specs."""
    unused = "SELECT hash FROM specs WHERE hash NOT IN (SELECT spec_hash FROM models)"
    rows = db.execute(f"SELECT * FROM artifacts WHERE spec_hash IN ({unused})").fetchall()
    db.execute(f"DELETE FROM specs WHERE hash IN ({unused})")
    db.execute(
        "DELETE FROM templates WHERE hash NOT IN (SELECT template_hash FROM models WHERE template_hash NOT NULL)"
    )
    return tuple(map(_artifact, rows))


def _files(db: sqlite3.Connection, name: str) -> tuple[FileRecord, ...]:
    rows: Iterable[sqlite3.Row] = db.execute("SELECT * FROM files WHERE model = ? ORDER BY path", (name,))
    return tuple(FileRecord(_path(row["path"]), row["size"], row["mtime_ns"], row["sha256"]) for row in rows)


def _artifact(row: sqlite3.Row) -> ArtifactRecord:
    return ArtifactRecord(
        row["spec_hash"], row["chip"], row["version"], _path(row["folder"]), row["created"], row["sequences"]
    )


def _options_text(options: LoadOptions) -> str:
    paths = {"weights": options.weights, "tokenizer": options.tokenizer}
    values: dict[str, Any] = {name: str(path) for name, path in paths.items() if path is not None}
    values |= {} if options.host == AUTO else {"host": options.host}
    values |= {} if options.threads is None else {"threads": options.threads}
    return json.dumps(values | {"changes": changes_as_dict(options.changes)}, sort_keys=True)


def _options(values: dict[str, Any], template: str | None) -> LoadOptions:
    weights, tokenizer = (
        None if (text := values.get(name)) is None else Path(text) for name in ("weights", "tokenizer")
    )
    changes = dict(values["changes"])
    changes["accepted_keys"] = tuple(changes.get("accepted_keys", ()))
    host, threads = values.get("host", AUTO), values.get("threads")
    return LoadOptions(weights, tokenizer, host, threads, Changes(**changes), template)


def _bytes(path: Path) -> bytes:
    """A path as the table has it: names of files need not be text."""
    return os.fsencode(path)


def _path(value: bytes) -> Path:
    return Path(os.fsdecode(value))
