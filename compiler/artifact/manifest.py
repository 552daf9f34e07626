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
PARALLEL = "parallel.json"
"""Only in an artifact for several ranks, which has a folder `rank-R` with the plan, graphs and sources of each."""
GRAPHS = ("source", "decode", "prefill")
"""The op graphs: as built, and after the passes of each phase."""


def is_artifact(path: Path) -> bool:
    """Whether a folder looks like an artifact."""
    return (path / MANIFEST).is_file()


def rank_folder(rank: int) -> str:
    """The prefix of the paths of a rank's files."""
    return f"rank-{rank}/"


EXPERTS = "experts/"
"""The prefix of the files of what the CPU computes, where a model's card leaves it some layers' experts."""


def sha256(content: bytes) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(content).hexdigest()


def digest_of(hashes: Mapping[str, str]) -> str:
    """The hash of an artifact, from the hashes of its files by path."""
    return sha256(json.dumps(sorted(hashes.items())).encode())
