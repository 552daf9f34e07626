"""Everything that differs between two artifacts."""

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.artifact.manifest import CHIP, PLAN, SPEC
from mlxr.compiler.artifact.typical_steps import usual_context
from mlxr.compiler.spec.record import Record
from mlxr.diff.field_changes import FieldChange, Json, field_changes
from mlxr.diff.graph_diff import GraphDiff, graph_diff
from mlxr.diff.kernel_diff import TargetDiff, kernel_diff
from mlxr.diff.memory_diff import MemoryDiff, memory_diff
from mlxr.diff.time_diff import TimeDiff, time_diff
from mlxr.diff.weight_diff import WeightChange, weight_diff

GRAPHS = ("source", "decode", "prefill")
_OF_PROGRAM = {"phases", "kernels", "copy_blocks", "memory", "step_kernels", "casts", "library"}
_OF_PLAN = {"programs", "weights"}


class Side(Record):
    """One of the two artifacts."""

    name: str
    digest: str
    chip: str
    targets: tuple[str, ...]


class ModelDiff(Record):
    """The differences of two artifacts.

    Attributes:
        a, b: what is compared.
        same: whether both are equal, byte for byte.
        spec: fields of the resolved specs that differ.
        chip: fields of the chips that differ.
        plan: other facts of the plans that differ: arena, types, sizes of batches and chunks.
        graphs: `source` (as built), `decode` and `prefill` (after fusion).
        targets: the kernels of each target that both are compiled for.
        weights: tensors that differ.
        memory: bytes, for each target that both are compiled for; equal ones, too.
        time: predicted times.
        files: other files of the artifacts that differ.
    """

    a: Side
    b: Side
    same: bool
    spec: tuple[FieldChange, ...]
    chip: tuple[FieldChange, ...]
    plan: tuple[FieldChange, ...]
    graphs: tuple[GraphDiff, ...]
    targets: tuple[TargetDiff, ...]
    weights: tuple[WeightChange, ...]
    memory: tuple[MemoryDiff, ...]
    time: TimeDiff
    files: tuple[str, ...]


def model_diff(
    a: Artifact, b: Artifact, chip: Chip | None = None, context: int | None = None, *, lines: bool = False
) -> ModelDiff:
    """Compares two artifacts.

    Args:
        a: the first artifact.
        b: the second artifact.
        chip: for which times are predicted; None: A's own, if its speed is known.
        context: tokens of the sequence in the predicted decode step; None: 512, or what both hold.
        lines: whether to add unified diffs of the sources.

    Raises:
        RequestError: one of the artifacts does not hold so many tokens.
    """
    targets = [target for target in a.plan.targets if target in b.plan.targets]
    usual = min(usual_context(artifact.plan) for artifact in (a, b))
    return ModelDiff(
        a=_side(a),
        b=_side(b),
        same=a.digest == b.digest,
        spec=field_changes(a.spec.model_dump(mode="json"), b.spec.model_dump(mode="json")),
        chip=field_changes(a.chip.model_dump(mode="json"), b.chip.model_dump(mode="json")),
        plan=field_changes(_plan(a), _plan(b)),
        graphs=tuple(graph_diff(name, a.graph(name), b.graph(name)) for name in GRAPHS),
        targets=tuple(kernel_diff(a, b, target, lines=lines) for target in targets),
        weights=weight_diff(a, b),
        memory=tuple(memory_diff(target, a.plan.program(target), b.plan.program(target)) for target in targets),
        time=time_diff(a, b, chip or a.chip, usual if context is None else context, 1),
        files=_files(a, b),
    )


def _side(artifact: Artifact) -> Side:
    return Side(
        name=artifact.spec.name,
        digest=artifact.digest,
        chip=artifact.chip.title,
        targets=artifact.plan.targets,
    )


def _plan(artifact: Artifact) -> dict[str, Json]:
    """The plan without what is compared elsewhere: graphs, kernels, launches, weights, memory."""
    plan = artifact.plan
    programs = {name: program.model_dump(mode="json", exclude=_OF_PROGRAM) for name, program in plan.programs.items()}
    return {**plan.model_dump(mode="json", exclude=_OF_PLAN), "programs": programs}


def _files(a: Artifact, b: Artifact) -> tuple[str, ...]:
    """Files that differ and that no other comparison here covers, such as tuning.json."""
    sources = {file for artifact in (a, b) for program in artifact.plan.programs.values() for file in program.files}
    graphs = {f"graph.{name}.{kind}" for name in GRAPHS for kind in ("json", "txt")}
    told = {SPEC, PLAN, CHIP, *graphs, *sources}
    paths = dict.fromkeys((*a.files, *b.files))
    return tuple(path for path in paths if path not in told and a.files.get(path) != b.files.get(path))
