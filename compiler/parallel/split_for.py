"""The default split of a model over ranks."""

from mlxr.compiler.errors import PlanError, SpecError
from mlxr.compiler.spec.change import Changes, changed
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.compiler.spec.share import shares


def split_for(spec: ModelSpec, ranks: int) -> Parallel:
    """The spec's own split; else each layer over all ranks; else, if a layer cannot be divided so, stages of layers.

    Args:
        spec: the spec.
        ranks: how many ranks there are, at least 2.

    Raises:
        PlanError: the model cannot be divided so; the message says what was tried. Or the spec's own split is over
            another number of ranks.
    """
    assert ranks > 1, "one rank needs no split"
    if spec.parallel is not None:
        if spec.parallel.size != ranks:
            raise PlanError(
                f"{spec.name} is split over {spec.parallel.size} ranks, and there are {ranks}: start as many, or "
                "change parallel in the spec"
            )
        return spec.parallel
    reasons = []
    for split in (Parallel(tensor=ranks), Parallel(pipeline=ranks)):
        try:
            shares(changed(spec, Changes(parallel=split)))
        except (PlanError, SpecError) as error:
            reasons.append(f"  parallel: {split.in_words}: {error}")
        else:
            return split
    raise PlanError("\n".join([f"{spec.name} cannot be split over {ranks} ranks; tried were", *reasons]))
