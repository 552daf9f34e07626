"""The tables of the registry, as the steps that lead from one version of them to the next."""

APPLICATION_ID = 0x4D4C5852
"""SQLite's mark of whose file it is: "MLXR"."""

MIGRATIONS = (
    """
    CREATE TABLE specs (hash TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
    CREATE TABLE templates (hash TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
    CREATE TABLE models (
        name TEXT PRIMARY KEY,
        source BLOB NOT NULL,
        kind TEXT NOT NULL,
        spec_hash TEXT NOT NULL REFERENCES specs,
        template_hash TEXT REFERENCES templates,
        options TEXT NOT NULL,
        added REAL NOT NULL,
        last_used REAL
    ) STRICT;
    CREATE INDEX models_by_spec ON models (spec_hash);
    CREATE INDEX models_by_template ON models (template_hash);
    CREATE TABLE files (
        model TEXT NOT NULL REFERENCES models ON DELETE CASCADE,
        path BLOB NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        PRIMARY KEY (model, path)
    ) STRICT;
    CREATE TABLE artifacts (
        spec_hash TEXT NOT NULL REFERENCES specs ON DELETE CASCADE,
        chip TEXT NOT NULL,
        version TEXT NOT NULL,
        folder BLOB NOT NULL,
        created REAL NOT NULL,
        PRIMARY KEY (spec_hash, chip, version)
    ) STRICT;
    -- Adapters are named where a model is loaded, and nothing writes this table.
    CREATE TABLE adapters (
        model TEXT NOT NULL REFERENCES models ON DELETE CASCADE,
        name TEXT NOT NULL,
        path BLOB NOT NULL,
        sha256 TEXT NOT NULL,
        PRIMARY KEY (model, name)
    ) STRICT;
    """,
    """
    CREATE TABLE new_artifacts (
        spec_hash TEXT NOT NULL REFERENCES specs ON DELETE CASCADE,
        chip TEXT NOT NULL,
        version TEXT NOT NULL,
        sequences INTEGER NOT NULL,
        folder BLOB NOT NULL,
        created REAL NOT NULL,
        PRIMARY KEY (spec_hash, chip, version, sequences)
    ) STRICT;
    INSERT INTO new_artifacts SELECT spec_hash, chip, version, 1, folder, created FROM artifacts;
    DROP TABLE artifacts;
    ALTER TABLE new_artifacts RENAME TO artifacts;
    """,
)
"""Step N leads from version N to N + 1; version 0 is an empty file. A step that was released never changes."""
