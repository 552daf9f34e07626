"""The ordered list of passes, and the driver that verifies and times each one."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.debug import debug_level
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.verify import Proven, verify
from mlxr.compiler.passes.base import Pass
from mlxr.compiler.passes.fuse_attention import FuseAttention
from mlxr.compiler.passes.fuse_clamp import FuseClamp
from mlxr.compiler.passes.fuse_conv import FuseConv
from mlxr.compiler.passes.fuse_delta import FuseDelta
from mlxr.compiler.passes.fuse_experts import FuseExperts
from mlxr.compiler.passes.fuse_gather import FuseGather
from mlxr.compiler.passes.fuse_head_norms import FuseHeadNorms
from mlxr.compiler.passes.fuse_latent import FuseLatent
from mlxr.compiler.passes.fuse_latent_decode import FuseLatentDecode
from mlxr.compiler.passes.fuse_mamba2 import FuseMamba2
from mlxr.compiler.passes.fuse_mixers import FuseMixers
from mlxr.compiler.passes.fuse_mlp import FuseMlp
from mlxr.compiler.passes.fuse_norm import FuseNorm
from mlxr.compiler.passes.fuse_output import FuseOutput
from mlxr.compiler.passes.fuse_post_norm import FusePostNorm
from mlxr.compiler.passes.fuse_qk_norm import FuseQkNorm
from mlxr.compiler.passes.fuse_residual import FuseResidual
from mlxr.compiler.passes.fuse_route import FuseRoute
from mlxr.compiler.passes.fuse_shared_expert import FuseSharedExpert
from mlxr.compiler.passes.fuse_sum import FuseSum
from mlxr.compiler.passes.fuse_text_attention import FuseTextAttention
from mlxr.compiler.passes.join_mixers import JoinMixers
from mlxr.compiler.passes.last_rows import LastRows
from mlxr.compiler.passes.last_token_logits import LastTokenLogits
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr.compiler.passes.order_arena import OrderArena
from mlxr.compiler.passes.remove_dead_ops import RemoveDeadOps
from mlxr.compiler.passes.split_adapters import SplitAdapters


@dataclass(frozen=True)
class PassRecord:
    """The record of one pass."""

    name: str
    modified: bool
    num_ops: int
    time_us: float


def passes_of(phase: PhaseName, *, deterministic: bool = False, last_rows: bool = False) -> list[Pass]:
    """The passes of a phase's pipeline, in order.

    Args:
        phase: the phase.
        deterministic: whether both phases compute in the same way, so that they give the same bits.
        last_rows: whether prompts compute what follows the last attention only where logits are wanted.
    """
    like: PhaseName = "prefill" if deterministic else phase
    of_few_tokens = (
        FuseRoute(),  # after FuseNorm and FuseMlp, which make the projection that takes it
        FuseSharedExpert(),  # after FuseRoute, and after FuseResidual, which adds the shared expert to the others
        FuseSum(),  # after FuseSharedExpert, which adds a product to that of experts
        FusePostNorm(),  # after FuseResidual, which gives the norm its residual
        FuseLatentDecode(),  # after FuseLatent, which joins the projections whose results it reads
    )
    return [
        LastTokenLogits(),
        FuseClamp(),  # before MergeQkv, which merges the projections that are clamped
        FuseLatent(like),  # before FuseNorm, as MergeQkv
        MergeQkv(),  # before FuseNorm, which then fuses the norm into one consumer instead of three
        FuseMlp(),  # before FuseNorm, for the same reason
        FuseDelta(like),  # likewise
        FuseMamba2(like),  # likewise
        JoinMixers(),  # after MergeQkv and FuseMamba2, whose projections it joins
        FuseConv(like),  # before FuseNorm, too; after the two, which make convolutions of prompts
        FuseNorm(),  # after FuseMlp, because it also fuses into expert projections
        FuseOutput(),  # before FuseResidual: a residual is added after all else
        FuseGather(),  # after FuseNorm and FuseOutput, which leave the projection next to the gather
        FuseExperts(),  # before FuseResidual
        FuseResidual(),
        *(of_few_tokens if like == "decode" else ()),
        FuseQkNorm(),  # needs MergeQkv's split
        FuseAttention(like),  # needs MergeQkv's split, with no norm between it and the attention
        FuseTextAttention(),  # likewise, of encoders
        *((LastRows(),) if last_rows and phase == "prefill" else ()),  # after all that fuse steps into projections
        *((FuseHeadNorms(),) if like == "decode" else ()),  # after FuseQkNorm and FuseAttention, which leave its ops
        *((FuseMixers(),) if like == "decode" else ()),  # after FuseHeadNorms, which gives attention its norms
        SplitAdapters(),  # after all that fuse steps into projections, which leaves them to another op
        RemoveDeadOps(),
        OrderArena(),  # last: chains the remaining accesses in their final order
    ]


def run_phases(
    source: OpGraph, *, deterministic: bool, last_rows: bool = False
) -> tuple[dict[PhaseName, OpGraph], dict[PhaseName, list[PassRecord]]]:
    """The ordered graph of each phase, and the record of its passes; see `passes_of` and `run_passes`.

    Raises:
        GraphError: a pass broke a rule.
    """
    options = {"deterministic": deterministic, "last_rows": last_rows}
    proven: Proven = {}
    ran = {phase: run_passes(source, passes_of(phase, **options), proven) for phase in PHASES}
    return {phase: graph for phase, (graph, _) in ran.items()}, {phase: records for phase, (_, records) in ran.items()}


def run_passes(
    graph: OpGraph, passes: Sequence[Pass], proven: Proven | None = None
) -> tuple[OpGraph, list[PassRecord]]:
    """Runs passes on a source graph, verifying the graph before, after each pass that changes it, and at the end.

    `proven` has what was found of the same source graph before; see `verify`.

    MLXR_DEBUG=1 prints the timings to standard error, and MLXR_DEBUG=2 also the graph after each pass.

    Raises:
        GraphError: a pass broke a rule; the message names the passes already run.
    """
    level, proven = debug_level(), {} if proven is None else proven
    verify(graph, "source", proven=proven)
    records: list[PassRecord] = []
    for graph_pass in passes:
        start = time.perf_counter()
        result = graph_pass.run(graph)
        time_us = (time.perf_counter() - start) * 1e6
        records.append(PassRecord(graph_pass.name, result.modified, len(result.graph), time_us))
        if result.modified:
            graph = result.graph
            if graph_pass is not passes[-1]:
                verify(graph, "fused", ", ".join(r.name for r in records), proven)
        if level >= 1:
            print(f"pass {records[-1].name}: {records[-1].num_ops} ops, {records[-1].time_us:.0f} us", file=sys.stderr)
        if level >= 2:
            print(graph.dump(), file=sys.stderr)
    verify(graph, "ordered", ", ".join(r.name for r in records), proven)
    return graph, records
