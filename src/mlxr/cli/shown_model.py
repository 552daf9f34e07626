"""A registered model, as JSON and as text for people."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from mlxr.loading.options import changes_as_dict
from mlxr.registry.file_status import FileStatus
from mlxr.registry.records import ModelRecord
from mlxr.runtime.hosts.registry import AUTO


def as_json(model: ModelRecord, status: FileStatus) -> dict[str, Any]:
    """A model without its files: paths as text, times in seconds since 1970."""
    options = {
        name: str(value) if isinstance(value, Path) else value
        for name in ("weights", "tokenizer", "host", "threads", "template")
        if (value := getattr(model.options, name)) not in (None, AUTO)
    }
    return {
        "name": model.name,
        "kind": model.kind,
        "source": str(model.source),
        "size_bytes": model.size_bytes,
        "status": status.state,
        "status_file": None if status.path is None else str(status.path),
        "added": model.added,
        "last_used": model.last_used,
        "options": options | changes_as_dict(model.options.changes),
        "spec_hash": model.spec_hash,
    }


def files_as_json(model: ModelRecord) -> list[dict[str, Any]]:
    """The files of a model."""
    return [dataclasses.asdict(file) | {"path": str(file.path)} for file in model.files]


def moment(seconds: float | None) -> str:
    """A time for people, of this machine's time zone."""
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
