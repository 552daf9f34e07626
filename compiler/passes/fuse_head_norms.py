"""Fuses the norms of heads into the attention of a decode step."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeReadAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.norm import Norm, QkNorm
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseHeadNorms:
    """Fuses the norms of heads into the attention that reads them.

    1. rope_write_attention(qk_norm(qkv)) -> rope_write_attention(qkv, q_norm, k_norm), which also makes the values.
    2. rope_read_attention(norm(q)) -> rope_read_attention(q, q_norm), where the norm is of each head.

    Whoever attends with a head then makes it for itself. That pays for the one token of a sequence in a decode step.

    Does not fire when the norm is a layer norm, has a bias, is of all heads together or comes after the rotation,
    when values have another size than keys, or when its result is read elsewhere.
    """

    name: str = "fuse_head_norms"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every attention."""
        edits = Edits(graph)
        for op, attention in graph.ops_of(RopeWriteAttention):
            norm = sole_producer(graph, op.inputs["qkv"], QkNorm)
            if norm is not None and _is_of_heads(norm, norm.attrs_as(QkNorm)):
                of = norm.attrs_as(QkNorm)
                weights = {port: norm.inputs[port] for port in ("q_norm", "k_norm") if port in norm.inputs}
                attrs = replace(
                    attention,
                    norm_eps=of.eps,
                    norm_scope=of.scope,
                    norms_values=of.norms_values,
                    values_from_keys=of.values_from_keys,
                )
                _fuse(edits, op, norm, attrs, {"qkv": norm.inputs["qkv"]} | weights)
        for op, read in graph.ops_of(RopeReadAttention):
            norm = sole_producer(graph, op.inputs["qkv"], Norm)
            if norm is None or norm.attrs_as(Norm).groups != read.num_heads or read.v_dim or not _is_plain(norm):
                continue
            weight = {"q_norm": norm.inputs["weight"]} if "weight" in norm.inputs else {}
            of_one = not weight or graph.value(norm.inputs["weight"]).shape == (read.head_dim,)
            reading = replace(read, norm_eps=norm.attrs_as(Norm).eps, norm_scope="head" if of_one else "heads")
            _fuse(edits, op, norm, reading, {"qkv": norm.inputs["x"]} | weight)
        return edits.result()


def _is_of_heads(norm: Op, attrs: QkNorm) -> bool:
    has = {"q_norm_bias", "mean_squares", "positions"} & norm.inputs.keys()
    return attrs.kind == "rms" and attrs.scope != "all" and attrs.v_dim is None and not has


def _is_plain(norm: Op) -> bool:
    return norm.attrs_as(Norm).kind == "rms" and norm.inputs.keys() <= {"x", "weight"}


def _fuse(edits: Edits, op: Op, norm: Op, attrs: PackedAttention, inputs: dict[str, str]) -> None:
    edits.replace(norm)
    edits.replace(op, replace(op, attrs=attrs, inputs=op.inputs | inputs))
