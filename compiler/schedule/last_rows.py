"""Whether prompts compute their last rows alone, which the geometry of their steps decides."""

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.spec.model import ModelSpec


def chooses_last_rows(spec: ModelSpec, table: GeometryTable) -> bool:
    """Whether prompts compute what follows the last attention only where logits are wanted."""
    chosen = table.choose(Site.of_chunk(spec.model.num_layers, spec.model.hidden_size)).geometry.chunk
    return bool(chosen.last_rows) and not spec.deterministic
