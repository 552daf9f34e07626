"""Whether an artifact's files are what its own spec compiles to: an artifact is native code, and runs as its user."""

from pathlib import Path

from mlxr.compiler.artifact import TUNING, Artifact
from mlxr.compiler.artifact.manifest import SPEC
from mlxr.compiler.chips.catalog import GENERIC
from mlxr.compiler.errors import ArtifactError
from mlxr.loading.artifact_cache import cached_artifact

_NO_CODE = frozenset({TUNING})
"""What `mlxr tune` adds to what it compiles: the times that it measured."""


def check_compiled_from_spec(artifact: Artifact, folder: Path) -> None:
    """Compiles an artifact's spec again, for its chip and targets, and compares: the same spec gives the same bytes.

    What it is compared with is cached by spec and chip, like all that is compiled.

    Args:
        artifact: it.
        folder: where it was read from, for the error.

    Raises:
        ArtifactError: a file differs, is missing, or is not compiled from the spec; the first one is named.
        MlxrError: its spec cannot be compiled.
    """
    expected = _compiled(artifact)
    own = {name: text for name, text in artifact.files.items() if name not in _NO_CODE}
    different = sorted(name for name in own.keys() | expected.keys() if own.get(name) != expected.get(name))
    if not different:
        return
    chip = "" if artifact.chip.name == GENERIC else f" --chip {artifact.chip.name}"
    raise ArtifactError(
        f"{folder / different[0]} is not what this mlxr compiles {SPEC} to: the artifact was edited, or another build "
        "of mlxr wrote it, and its code would run with all your rights. Compile it again: mlxr-compile "
        f"{folder / SPEC} -o {folder}{chip}; or, if you trust who made it, run it as it is: --trust-artifact, in "
        "Python Changes(trust_artifact=True)"
    )


def _compiled(artifact: Artifact) -> dict[str, str]:
    """The files of what the artifact's spec compiles to."""
    from mlxr.compiler.driver import compile_spec  # noqa: PLC0415 (slow to import)
    from mlxr.compiler.targets.registry import TARGETS  # noqa: PLC0415

    first = artifact if artifact.parallel is None else artifact.of_rank(0)
    targets = first.plan.targets
    if set(targets) == set(TARGETS):
        return dict(cached_artifact(artifact.spec, artifact.chip).files)
    return dict(compile_spec(artifact.spec, targets=tuple(targets), chip=artifact.chip).artifact.files)
