"""What the tuner tries: values of each size of the geometry, and the batches in which a size matters."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.tuning.record import Sizes

_VALUES: dict[str, tuple[int, ...]] = {
    "matvec_outputs": (1, 2, 4, 8, 16, 32),
    "matvec_simdgroups": (1, 2, 4, 8, 16),
    "matvec_split": (1, 2, 4, 8),
    "matvec_unroll": (1, 2, 4),
    "matmul_outputs": (1, 2, 4, 8),
    "matmul_simdgroups": (1, 2, 4, 8),
    "matmul_split": (1, 2, 4, 8),
    "matmul_unroll": (1, 2, 4),
    "matmul_tile": (2, 4, 8, 16),
    "mma_simdgroups": (4, 6, 8, 12),
    "attend_simdgroups": (1, 2, 4, 8, 16),
    "attend_heads": (1, 2, 4, 8),
    "attend_unroll": (1, 2, 4),
    "attend_whole": (0, 256, 1024, 2048),
    "partition": (32, 64, 128, 256, 512, 1024, 2048, 4096),
    "partitions": (8, 16, 32, 64),
    "partition_simdgroups": (2, 4, 8),
    "partition_heads": (1, 2, 4, 8),
    "partition_unroll": (1, 2, 4),
    "prefill_rows": (16, 32, 64),
    "prefill_keys": (8, 16, 32),
    "prefill_rows_per_simdgroup": (2, 4, 8, 16),
}
"""In the order in which they are tried. Sizes that this version of the geometry lacks are left out."""

_VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "matvec_mma": (
        {"matvec_mma": 0, "matvec_outputs": 4, "matvec_simdgroups": 4, "matvec_split": 4, "matvec_unroll": 2},
        {"matvec_mma": 1, "matvec_outputs": 16, "matvec_simdgroups": 8, "matvec_split": 8, "matvec_unroll": 1},
    ),
    "attend_mma": ({"attend_mma": 0}, {"attend_mma": 1}),
    "partition_mma": ({"partition_mma": 0}, {"partition_mma": 1}),
    "prefill_mma": ({"prefill_mma": 0, "prefill_rows": 32}, {"prefill_mma": 1, "prefill_rows": 64}),
}
"""By matrix instructions or not, each with sizes to begin with, if it has some of its own. They are tried before other
sizes, so that these are found for them, and on chips alone whose rules know of them."""

THRESHOLDS = ("gemm_min_rows", "mlx_min_rows")
"""Sizes that are a number of rows from which something else runs."""

OF_ALL_QUANTISED = "mlx_quantised_min_rows"
"""Such a size that all quantised weights share: one launch unpacks what several projections read."""

EVERYWHERE = "all quantised weights"
"""The site of a rule for all launches."""

THRESHOLD_ROWS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Rows at which both sides of a threshold are timed."""


def changes_of(name: str) -> tuple[Sizes, ...]:
    """What to try of a size, others that it asks for among it; none where there is nothing to choose."""
    known = name in {field.name for field in fields(Geometry)}
    return _VARIANTS.get(name) or tuple({name: value} for value in _VALUES.get(name, ()) if known)


def variants_of(rules: Iterable[GeometryRule]) -> tuple[str, ...]:
    """The sizes that say whether something is made by matrix instructions, as far as a chip's rules know of them."""
    known = {name for rule in rules for name, size in rule.sizes.items() if size}
    return tuple(name for name in _VARIANTS if name in known)


def is_variant(name: str) -> bool:
    """Whether a size is one of those that `variants_of` a chip may give."""
    return name in _VARIANTS


def is_possible(sizes: dict[str, int]) -> bool:
    """Whether there are kernels of these sizes."""
    try:
        Geometry(**sizes)
    except PlanError:
        return False
    return True


def rule_for(site: str, sizes: dict[str, int], because: str) -> GeometryRule:
    """A measured rule for one kind of launch alone, or for all."""
    sites = () if site == EVERYWHERE else (site,)
    return GeometryRule(sizes=sizes, because=because, origin="measured", sites=sites)


@dataclass(frozen=True)
class Scenario:
    """A batch, and the sizes that are chosen by its times.

    Attributes:
        name: for people.
        prefixes: of the sizes.
        sequences: of a decode step; 0: a prefill step.
        tokens: of each sequence: in the cache with the new one, or of the prompt.
        every_row: whether a prompt gives logits of all its tokens.
    """

    name: str
    prefixes: tuple[str, ...]
    sequences: int
    tokens: int
    every_row: bool = False


def scenarios(max_sequences: int, max_tokens: int, context: int) -> tuple[Scenario, ...]:
    """The batches of an artifact: one sequence, several, a prompt.

    Args:
        max_sequences: what the artifact holds.
        max_tokens: of a step.
        context: tokens of a sequence in decode.
    """
    few = min(8, max_tokens)
    several = Scenario(f"a prompt of {few} tokens", ("matmul_", "mma_"), 0, few)
    if max_sequences > 1:
        count = min(8, max_sequences)
        several = Scenario(f"{count} sequences", ("matmul_", "mma_"), count, context)
    return (
        Scenario(f"1 sequence of {context} tokens", ("matvec_", "attend_", "partition"), 1, context),
        several,
        Scenario(f"a prompt of {max_tokens} tokens", ("prefill_",), 0, max_tokens),
    )
