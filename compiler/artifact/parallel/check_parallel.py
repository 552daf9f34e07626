"""Checks what an artifact says of its ranks."""

from pathlib import Path

from mlxr.compiler.artifact.artifact import Artifact
from mlxr.compiler.artifact.manifest import PARALLEL, SPEC
from mlxr.compiler.artifact.parallel.parallel_plan import ParallelPlan, RankShare, parallel_plan
from mlxr.compiler.artifact.program import PHASES
from mlxr.compiler.errors import ArtifactError, MlxrError


def check_parallel(artifact: Artifact, split: ParallelPlan, folder: Path) -> None:
    """Checks the record of all ranks against the spec, and against each rank's plan and graphs.

    Raises:
        ArtifactError: they say something else.
    """
    parts = [artifact.of_rank(rank) for rank in range(split.size)]
    try:
        wanted = artifact.spec.parallel
        if wanted is None or (wanted.tensor, wanted.pipeline) != (split.tensor, split.pipeline):
            raise ArtifactError(f"{SPEC} has another split")
        graphs = [{str(phase): part.graph(phase) for phase in PHASES} for part in parts]
        expected = parallel_plan(artifact.spec, [part.plan for part in parts], graphs)
    except (MlxrError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{folder / PARALLEL} does not go with {SPEC} and the graphs of ranks ({error}); compile the spec again"
        ) from error
    for rank, (said, own) in enumerate(zip(split.ranks, expected.ranks, strict=True)):
        for name in RankShare.model_fields:
            if getattr(said, name) != getattr(own, name):
                raise ArtifactError(
                    f"{folder / PARALLEL}: {name} of rank {rank} differ from what its plan, graphs and {SPEC} say; "
                    "compile the spec again"
                )
