"""An artifact in memory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.kernel_entry import KernelEntry, body_of, header_of
from mlxr.compiler.artifact.manifest import (
    CHIP,
    EXPERTS,
    MANIFEST,
    PARALLEL,
    PLAN,
    SPEC,
    digest_of,
    rank_folder,
    sha256,
)
from mlxr.compiler.artifact.parallel.parallel_plan import ParallelPlan
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.writer import write_files
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.spec.load import parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.version import ARTIFACT_FORMAT, VERSION


@dataclass(frozen=True)
class Artifact:
    """An artifact in memory: relative path to content, manifest excluded."""

    files: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Artifact {self.spec.name}: {len(self.files)} files, digest {self.digest[:12]}>"

    @cached_property
    def spec(self) -> ModelSpec:
        """The resolved spec."""
        return parse_spec(self.files[SPEC], SPEC, is_dumped=True)

    @cached_property
    def parallel(self) -> ParallelPlan | None:
        """How the model is split over ranks, each with a plan of its own (see `of_rank`); None: it is not split."""
        text = self.files.get(PARALLEL)
        return None if text is None else ParallelPlan.model_validate_json(text)

    def of_rank(self, rank: int) -> "Artifact":
        """The artifact of one rank of a model that is split."""
        return Artifact(self._below(rank_folder(rank)))

    @cached_property
    def experts(self) -> "Artifact | None":
        """The artifact of what the CPU computes beside a card, some layers' experts; None: the card computes all."""
        return Artifact(self._below(EXPERTS)) if EXPERTS + PLAN in self.files else None

    def _below(self, prefix: str) -> dict[str, str]:
        own = {path.removeprefix(prefix): text for path, text in self.files.items() if path.startswith(prefix)}
        return {SPEC: self.files[SPEC], CHIP: self.files[CHIP], **own}

    @cached_property
    def plan(self) -> Plan:
        """The plan.

        Raises:
            ArtifactError: the model is split, so that each rank has its own.
        """
        if self.parallel is not None:
            size = self.parallel.size
            raise ArtifactError(
                f"{self.spec.name} is split over {size} ranks, and this is for a model of one machine: compile it "
                f"without parallel; what runs it is mlx.launch -n {size} -- mlxr run ARTIFACT --weights W"
            )
        return Plan.model_validate_json(self.files[PLAN])

    @cached_property
    def chip(self) -> Chip:
        """The chip that launch geometry was chosen for."""
        return Chip.model_validate_json(self.files[CHIP])

    def graph(self, name: str) -> OpGraph:
        """The op graph `source`, `decode` or `prefill`."""
        return OpGraph.from_json(json.loads(self.files[f"graph.{name}.json"]))

    def source(self, target: str) -> str:
        """The text of a program that is a single file, like that of target cpu.

        Raises:
            ArtifactError: the artifact was compiled without that target.
        """
        (file,) = self.plan.program(target).files
        return self.files[file]

    def kernel_text(self, name: str, target: str | None = None) -> str:
        """The text of the file that holds a kernel; see `kernel_entry`."""
        return self.files[self.kernel_entry(name, target).file]

    def kernel_sections(self, name: str, target: str | None = None) -> tuple[str, str]:
        """Header and body of a kernel in Metal, as MLX's `metal_kernel` takes them; see `kernel_entry`."""
        text = self.kernel_text(name, target)
        return header_of(text), body_of(text)

    def kernel_entry(self, name: str, target: str | None = None) -> KernelEntry:
        """The plan's entry of a kernel.

        Args:
            name: its full name, or its label if only one kernel of the program has that label.
            target: the target whose program has the kernel; None: the leading target.

        Raises:
            ArtifactError: there is no such program or kernel, or several kernels match.
        """
        program = self.plan.first if target is None else self.plan.program(target)
        return program.find_kernel(name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files."""
        return digest_of(self._hashes)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {path: sha256(text.encode()) for path, text in sorted(self.files.items())}

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
        """Writes the artifact, replacing an artifact that is already there. The folder keeps its mode.

        If several processes write into one folder, each writes its whole artifact, and the last one stays.

        Args:
            folder: where to write it.
            whatever_is_there: whether to replace other contents too, as in a cache, whose entries may be damaged.

        Raises:
            ArtifactError: the folder holds something else, or cannot be written; nothing is left half-written.
        """
        write_files({**self.files, MANIFEST: self.manifest}, Path(folder), whatever_is_there=whatever_is_there)
