"""Fuses the attention of a decode step and the scan of the Mamba-2 block beside it."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import KEYS_AND_VALUES, STATES
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import RopeWriteAttention
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.mixer_decode import both_of
from mlxr.compiler.passes.base import Edits, PassResult


@dataclass(frozen=True)
class FuseMixers:
    """Fuses what lies between the projections of two blocks that read the same norm.

    1. rope_write_attention(qkv) and conv_ssd(x) of a layer -> mixer_decode(qkv, x), in the place of one of them.

    Does not fire when one reads the other's result, something between them reads the first one's and something else is
    between them that the second one reads, or only some of the layers have both: then a layer has different places in
    their stores.
    """

    name: str = "fuse_mixers"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        attentions = {op.layer: op for op, _ in graph.ops_of(RopeWriteAttention)}
        scans = {op.layer: op for op, _ in graph.ops_of(ConvSsd)}
        for layer, attention in attentions.items():
            scan = scans.get(layer)
            if scan is None or _layers(attentions, attention, KEYS_AND_VALUES[0]) != _layers(scans, scan, STATES):
                continue
            first, second = sorted((attention, scan), key=lambda op: graph.index(op.name))
            if _reads_only_before(graph, second, first):
                edits.replace(first, both_of(attention, scan))
                edits.replace(second)
            elif all(graph.index(reader.name) > graph.index(second.name) for reader in graph.consumers(first.out)):
                edits.replace(first)
                edits.replace(second, both_of(attention, scan))
        return edits.result()


def _layers(ops: dict[int | None, Op], op: Op, store: str) -> list[int | None]:
    """The layers whose ops access the same store as an op."""
    return [layer for layer, other in ops.items() if other.inputs[store] == op.inputs[store]]


def _reads_only_before(graph: OpGraph, op: Op, place: Op) -> bool:
    """Whether all that an op reads is there before another one."""
    makers = [maker for name in op.inputs.values() if (maker := graph.producer(name)) is not None]
    return all(graph.index(maker.name) < graph.index(place.name) for maker in makers)
