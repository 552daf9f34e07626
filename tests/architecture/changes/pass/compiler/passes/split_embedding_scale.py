"""A toy: takes the factor out of the embedding."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.ir.ops.stretch import Stretch
from mlxr.compiler.passes.base import Edits, PassResult


@dataclass(frozen=True)
class SplitEmbeddingScale:
    """Makes the factor of the embedding an op.

    1. embed(scale = s) -> stretch(embed(scale = 1), factor = s), for s other than 1.
    """

    name: str = "split_embedding_scale"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every embedding."""
        edits = Edits(graph)
        for op, attrs in graph.ops_of(Embed):
            if attrs.scale == 1:
                continue
            rows = edits.declare(replace(graph.value(op.out), name=f"{op.out}.rows"))
            embed = replace(op, attrs=replace(attrs, scale=1.0), outputs={"out": rows})
            edits.replace(op, embed, Op(f"{op.name}.stretch", Stretch(attrs.scale), {"x": rows}, {"out": op.out}))
        return edits.result()
