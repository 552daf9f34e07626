"""The manifest of an artifact: the names of its files, and their hashes."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

MANIFEST = "manifest.json"
SPEC = "spec.yaml"
PLAN = "plan.json"
CHIP = "chip.json"
TUNING = "tuning.json"
GRAPHS = ("source", "decode", "prefill")
"""The op graphs: as built, and after the passes of each phase."""


def is_artifact(path: Path) -> bool:
    """Whether a folder looks like an artifact."""
    return (path / MANIFEST).is_file()


def sha256(content: bytes) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(content).hexdigest()


def digest_of(hashes: Mapping[str, str]) -> str:
    """The hash of an artifact, from the hashes of its files by path."""
    return sha256(json.dumps(sorted(hashes.items())).encode())
