"""Joins the projections of an attention with those of the Mamba-2 block beside it, which reads the same norm."""

from dataclasses import dataclass, replace
from typing import Any

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import GateHeads, Split
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.ssd import Ssd
from mlxr.compiler.passes.attention_walk import AttentionSite, attention_sites, source_of
from mlxr.compiler.passes.base import Edits, PassResult
from mlxr.compiler.passes.join_projections import are_alike, columns_of, join_projections

_ALIGNED = 8
"""Columns of which a row is a multiple, so that kernels may read 16 bytes of any of its heads."""
_FIRSTS = {port: f"{port}_first" for port in ("x", "dt", "gate")}
_FIRST = {CausalConv: {"x": "first"}, Ssd: _FIRSTS, ConvSsd: _FIRSTS}
"""By kind of what reads a Mamba-2 block's projection: by port, the attribute that says where its columns begin."""


@dataclass(frozen=True)
class JoinMixers:
    """Joins the merged projection of an attention and that of a Mamba-2 block of the same layer.

    1. split(linear(x, qkv)) that one attention reads, with conv_ssd(linear(x, in)), or with
       ssd(causal_conv(linear(x, in))) -> both read linear(x, [qkv; in]).

    Does not fire when they read different x, only one has a bias, queries or keys have a norm, which needs rows of its
    own, something else reads the projections, or rows would not be multiples of 16 bytes.
    """

    name: str = "join_mixers"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits, scans = Edits(graph), {op.layer: op for kind in (Ssd, ConvSsd) for op, _ in graph.ops_of(kind)}
        for site in attention_sites(graph):
            scan = scans.get(site.attention.layer)
            qkv, own = _merged(graph, site), None if scan is None else graph.producer(scan.inputs["dt"])
            if qkv is None or own is None or not isinstance(own.attrs, Linear) or not are_alike((qkv, own)):
                continue
            readers = graph.consumers(own.out)
            aligned = (columns_of(graph, qkv) + columns_of(graph, own)) % _ALIGNED == 0
            if aligned and own.out not in graph.outputs and all(type(op.attrs) in _FIRST for op in readers):
                joined = join_projections(edits, (qkv, own), "qkv_in")
                for op in graph.consumers(qkv.out):
                    edits.replace(op, _reading(op, qkv.out, joined.op.out))
                for op in readers:
                    edits.replace(op, _moved(_reading(op, own.out, joined.op.out), joined.op.out, joined.firsts[1]))
        return edits.result()


def _merged(graph: OpGraph, site: AttentionSite) -> Op | None:
    """The projection of an attention's queries, keys and values, if nothing else reads it and heads have no norm."""
    split = source_of(graph, site.q, Split)
    if split is None or site.q.norm is not None or site.k.norm is not None:
        return None
    readers = graph.consumers(split.inputs["x"])
    alone = all(op is split or (isinstance(op.attrs, GateHeads) and op is site.gate) for op in readers)
    op = graph.producer(split.inputs["x"]) if alone and split.inputs["x"] not in graph.outputs else None
    return op if op is not None and isinstance(op.attrs, Linear) else None


def _reading(op: Op, name: str, other: str) -> Op:
    """An op that reads another value in place of one."""
    return replace(op, inputs={port: other if bound == name else bound for port, bound in op.inputs.items()})


def _moved(op: Op, name: str, columns: int) -> Op:
    """An op whose columns of a value begin so much further."""
    firsts = {attr: port for port, attr in _FIRST[type(op.attrs)].items() if op.inputs.get(port) == name}
    moved: dict[str, Any] = {attr: getattr(op.attrs, attr) + columns for attr in firsts}
    return replace(op, attrs=replace(op.attrs, **moved))
