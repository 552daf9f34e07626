"""The artifact: a directory that anyone can open and read, and the only thing the runtime sees of the compiler.

    manifest.json           format, version, and the SHA-256 of every other file
    spec.yaml               the spec as resolved
    graph.source.json/.txt  the op graph as built; graph.decode and graph.prefill: after the passes
    plan.json               launches, buffers, weights, arena geometry, memory
    chip.json               the chip that launch geometry was chosen for: its figures and rules
    tuning.json             where the rules were measured: by `mlxr tune`, with the times of all candidates
    kernels/NAME.metal      one complete Metal file per kernel (target metal)
    cpu/model.c             the whole model as one C file (target cpu)

Same spec, same bytes. An artifact appears whole or not at all; one that was changed since is refused.
"""

import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from mlxr.compiler.artifact.folder_lock import alone_in, unchanging
from mlxr.compiler.chips.chip import Chip
from mlxr.compiler.debug import debug_level
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import Segment, WeightLayout, part_places, plane_row_bytes
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.verify import ARENA_TOKEN
from mlxr.compiler.schedule.cpu import CpuLaunch, CpuProgram, CpuStep, CpuTensor
from mlxr.compiler.schedule.plan import BatchDim, Condition, Extent, KernelEntry, Launch, Plan, Step
from mlxr.compiler.schedule.record import MemoryPlan
from mlxr.compiler.schedule.running import decode_dims
from mlxr.compiler.schedule.target_types import TARGETS, Target, TargetTypes
from mlxr.compiler.schedule.weights import Recipe, Rows, TensorSource, WeightPlan
from mlxr.compiler.spec.load import parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.other_files import other_than_an_artifact
from mlxr.compiler.targets.metal.sections import body_of, header_of
from mlxr.compiler.text.plural import counted
from mlxr.compiler.version import ARTIFACT_FORMAT, VERSION

__all__ = [
    "ARENA_TOKEN",
    "TARGETS",
    "ArenaGeometry",
    "Artifact",
    "BatchDim",
    "Chip",
    "Condition",
    "CpuLaunch",
    "CpuProgram",
    "CpuStep",
    "CpuTensor",
    "DType",
    "Extent",
    "KernelEntry",
    "Launch",
    "MemoryPlan",
    "ModelSpec",
    "Op",
    "OpGraph",
    "Plan",
    "Recipe",
    "Rows",
    "Segment",
    "Step",
    "Target",
    "TargetTypes",
    "TensorSource",
    "Value",
    "WeightFormat",
    "WeightLayout",
    "WeightPlan",
    "debug_level",
    "decode_dims",
    "is_artifact",
    "load_artifact",
    "part_places",
    "plane_row_bytes",
]

MANIFEST = "manifest.json"
CHIP = "chip.json"
TUNING = "tuning.json"
GRAPHS = ("source", "decode", "prefill")


@dataclass(frozen=True)
class Artifact:
    """An artifact in memory: relative path to content, manifest excluded."""

    files: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Artifact {self.spec.name}: {len(self.files)} files, digest {self.digest[:12]}>"

    @cached_property
    def spec(self) -> ModelSpec:
        """The spec as resolved."""
        return parse_spec(self.files["spec.yaml"], "spec.yaml")

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return Plan.model_validate_json(self.files["plan.json"])

    @cached_property
    def chip(self) -> Chip:
        """The chip that launch geometry was chosen for."""
        return Chip.model_validate_json(self.files[CHIP])

    def graph(self, name: str) -> OpGraph:
        """The op graph `source`, `decode` or `prefill`."""
        return OpGraph.from_json(json.loads(self.files[f"graph.{name}.json"]))

    def kernel_text(self, name: str) -> str:
        """The complete Metal text of a kernel.

        Raises:
            ArtifactError: there is no kernel of that name.
        """
        return self.files[self.kernel_entry(name).file]

    def kernel_sections(self, name: str) -> tuple[str, str]:
        """Header and body of a kernel, as MLX's `metal_kernel` takes them."""
        text = self.kernel_text(name)
        return header_of(text), body_of(text)

    @property
    def cpu_source(self) -> str:
        """The C text.

        Raises:
            ArtifactError: the artifact was compiled without the cpu target.
        """
        if self.plan.cpu is None:
            raise ArtifactError("the artifact has no target cpu; compile it with mlxr-compile --target cpu")
        return self.files[self.plan.cpu.file]

    def kernel_entry(self, name: str) -> KernelEntry:
        """The plan's entry of a kernel, by its full name or by its label when only one kernel has it.

        Raises:
            ArtifactError: there is no such kernel, or several.
        """
        found = [k for k in self.plan.kernels if name in (k.name, k.label)]
        if len(found) > 1:
            names = ", ".join(k.name for k in found)
            raise ArtifactError(f"the artifact has several kernels named {name!r}; give one's full name: {names}")
        if not found:
            labels = list(dict.fromkeys(k.label for k in self.plan.kernels))
            like = difflib.get_close_matches(name, [*labels, *(k.name for k in self.plan.kernels)], 1)
            hint = f"; did you mean {like[0]!r}?" if like else "."
            raise ArtifactError(f"the artifact has no kernel named {name!r}{hint} It has {', '.join(labels)}")
        return found[0]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files."""
        return _digest(self._hashes)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {path: _sha256(text.encode()) for path, text in sorted(self.files.items())}

    @property
    def manifest(self) -> str:
        """The text of manifest.json."""
        manifest = {
            "format": ARTIFACT_FORMAT,
            "version": VERSION,
            "name": self.spec.name,
            "digest": self.digest,
            "files": self._hashes,
        }
        return json.dumps(manifest, indent=1) + "\n"

    def write(self, folder: str | Path, *, whatever_is_there: bool = False) -> None:
        """Writes the artifact, replacing an artifact that is there. The folder keeps its mode.

        Of several processes that write into one folder each puts its whole artifact there; the last one's stays.

        Args:
            folder: where to write it.
            whatever_is_there: whether anything else is replaced too: in a cache, whose entries may be damaged.

        Raises:
            ArtifactError: the folder holds something else, or cannot be written; nothing is left half-written.
        """
        folder = Path(folder).resolve()
        try:
            with unchanging(folder.parent):
                _check_replaceable(folder, whatever_is_there)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
            ) as work:
                staging, old = Path(work) / "new", Path(work) / "old"
                for path, text in [*self.files.items(), (MANIFEST, self.manifest)]:
                    target = staging / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text, encoding="utf-8")
                with alone_in(folder.parent):
                    _check_replaceable(folder, whatever_is_there)
                    _move_into_place(staging, folder, old)
        except OSError as error:
            raise ArtifactError(f"cannot write {folder}: {error.strerror or error}") from error


def _check_replaceable(folder: Path, whatever_is_there: bool) -> None:
    """Raises ArtifactError unless the folder is new, empty, or holds an artifact and nothing else."""
    if whatever_is_there or not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not is_artifact(folder)):
        raise ArtifactError(f"{folder} exists and is not an artifact; name an empty or a new folder")
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"] if is_artifact(folder) else {}
        known = {MANIFEST, *files}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = {MANIFEST}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if found - known:
        raise ArtifactError(
            f"{folder} holds {sorted(found - known)[0]!r}, which its artifact does not name; replacing the artifact "
            "would delete it: move it away, or name another folder"
        )


def _move_into_place(staging: Path, folder: Path, old: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    if folder.is_dir():
        staging.chmod(folder.stat().st_mode & 0o7777)
    folder.rename(old)
    try:
        staging.rename(folder)
    except OSError:
        old.rename(folder)
        raise


def is_artifact(path: Path) -> bool:
    """Whether a folder looks like an artifact."""
    return (path / MANIFEST).is_file()


def load_artifact(path: str | Path) -> Artifact:
    """Reads an artifact and checks its format, version and every hash.

    Raises:
        ArtifactError: it is missing, of another version, or changed since it was written.
    """
    folder = Path(path)
    with unchanging(Path(os.path.realpath(folder)).parent):
        return _load(folder)


def _load(folder: Path) -> Artifact:
    if not is_artifact(folder):
        raise ArtifactError(other_than_an_artifact(folder))
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{folder / MANIFEST} cannot be read ({error}); compile the spec again") from error
    try:
        version, layout, digest = manifest["version"], manifest["format"], manifest["digest"]
        hashes: dict[str, str] = dict(manifest["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder / MANIFEST} is not a manifest; compile the spec again") from error
    if (layout, version) != (ARTIFACT_FORMAT, VERSION):
        raise ArtifactError(
            f"{folder} was written by mlxr {version} (format {layout}); this is mlxr {VERSION} (format "
            f"{ARTIFACT_FORMAT}); compile the spec again"
        )
    artifact = Artifact({name: _read(folder, name, expected) for name, expected in hashes.items()})
    if _digest(hashes) != digest:
        raise ArtifactError(f"{folder / MANIFEST} was changed since it was written; compile the spec again")
    missing = [
        n for n in ("plan.json", "spec.yaml", CHIP, *(f"graph.{g}.json" for g in GRAPHS)) if n not in artifact.files
    ]
    if missing:
        raise ArtifactError(f"{folder} lacks {', '.join(missing)}; compile the spec again")
    try:
        named = [k.file for k in artifact.plan.kernels] + ([artifact.plan.cpu.file] if artifact.plan.cpu else [])
        absent = [name for name in named if name not in artifact.files]
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / 'plan.json'} is not a plan ({counted(error.error_count(), 'error')}); compile the spec again"
        ) from error
    try:
        _ = artifact.chip
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / CHIP} does not describe a chip ({counted(error.error_count(), 'error')}); compile the spec "
            "again"
        ) from error
    if absent:
        raise ArtifactError(f"{folder} lacks {', '.join(absent)}; compile the spec again")
    return artifact


def _read(folder: Path, name: str, expected: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ArtifactError(f"{folder / MANIFEST} names {name!r}, which is outside the artifact")
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{folder / name} cannot be read ({error.strerror}); compile the spec again") from error
    if _sha256(content) != expected:
        raise ArtifactError(f"{folder / name} was changed since it was written; compile the spec again")
    return content.decode("utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(hashes: Mapping[str, str]) -> str:
    return _sha256(json.dumps(sorted(hashes.items())).encode())
