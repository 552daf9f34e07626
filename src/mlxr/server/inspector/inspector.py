"""Everything that the page asks of one artifact. What is slow to compute is kept, so a server has one for each model.

Nothing here touches an engine: counts of launches are given, and `arena_view` and `history` are apart.
"""

from collections.abc import Mapping
from functools import cached_property

from mlxr.compiler.artifact import Artifact, BatchDim, Chip, OpGraph, decode_dims
from mlxr.compiler.artifact.typical_steps import chunk_dims, usual_context
from mlxr.compiler.errors import ArtifactError, RequestError
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.inspect.c_report import CallRow, call_rows
from mlxr.inspect.launches import PhaseRows, phase_rows
from mlxr.inspect.roofline import LaunchLimit, Work, call_works, roofline
from mlxr.inspect.roofline import works as works_of
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls
from mlxr.server.inspector.graph_view import GraphsView, NodeView, graphs_view, ports
from mlxr.server.inspector.kernel_view import KernelView, kernel_view
from mlxr.server.inspector.op_view import LaunchView, OpView, c_calls, metal_launches


class Inspector:
    """Graphs, ops and kernels of an artifact. Any thread may use it."""

    def __init__(self, artifact: Artifact, chip: Chip | None = None, context: int | None = None) -> None:
        """Takes an artifact.

        Args:
            artifact: what to inspect.
            chip: the chip that times are predicted for; None: the artifact's own. Without figures nothing is predicted.
            context: tokens of the sequence in a decode step; None: 512, or as many as the artifact holds.

        Raises:
            RequestError: the artifact does not hold so many tokens.
        """
        most = artifact.plan.arena.context
        if context is not None and not 1 <= context <= most:
            raise RequestError(f"context is {context}; the artifact holds 1 to {most}")
        self.artifact, self.chip = artifact, chip or artifact.chip
        self._context = usual_context(artifact.plan) if context is None else context

    @cached_property
    def graphs(self) -> GraphsView:
        """The op graphs before and after fusion, placed."""
        return graphs_view(self.artifact)

    def kernel(self, target: str, name: str) -> KernelView:
        """A kernel with its source.

        Raises:
            ArtifactError: there is no such target or kernel, or several kernels match.
        """
        return kernel_view(self.artifact, target, name)

    def op(
        self,
        graph: str,
        name: str,
        launched: Mapping[str, Mapping[str, int]] | None = None,
        timed: Mapping[str, TimedCalls] | None = None,
    ) -> OpView:
        """An op with its launches.

        Args:
            graph: `source`, `decode` or `prefill`.
            name: the op's name; it may be in any layer.
            launched: what `Engine.launch_counts` says, by target; None: no host runs the artifact.
            timed: measured times of the calls of target cpu, by phase; None: none were measured.

        Raises:
            ArtifactError: there is no such graph or op.
        """
        views = {view.name: view for view in self.graphs.graphs}
        if graph not in views:
            raise ArtifactError(f"there is no graph {graph!r}; graphs are {', '.join(views)}")
        try:
            op = self._op_graphs[graph].op(name)
        except KeyError:
            raise ArtifactError(f"graph {graph} has no op {name!r}") from None
        layers = next((f.layers for f in views[graph].frames if op.layer in f.layers), ())
        node = self._node(views[graph].nodes, op.name, op.layer, layers)
        return OpView(
            graph=graph,
            id=name,
            kind=op.kind,
            summary=op.attrs.summary,
            layer=op.layer,
            layers=layers,
            attributes=op.attrs.attributes,
            inputs=ports(self._op_graphs[graph], op.inputs),
            outputs=ports(self._op_graphs[graph], op.outputs),
            parts=tuple(_in_layer(part.id, node.layer, op.layer) for part in node.parts),
            computed_by={phase: _in_layer(fused, node.layer, op.layer) for phase, fused in node.fused_into.items()},
            batch=self._batch(graph),
            launches=self._launches(graph, name, launched or {}, timed or {}),
        )

    def _node(self, nodes: tuple[NodeView, ...], name: str, layer: int | None, layers: tuple[int, ...]) -> NodeView:
        """The drawn op that stands for one of any layer."""
        drawn = _in_layer(name, layer, layers[0] if layers else None)
        return next(node for node in nodes if node.id == drawn)

    def _launches(
        self, graph: str, name: str, launched: Mapping[str, Mapping[str, int]], timed: Mapping[str, TimedCalls]
    ) -> tuple[LaunchView, ...]:
        if graph == "source":
            return ()
        metal = [row for row in (self._metal[graph].rows if self._metal else ()) if row.launch.op == name]
        works, limits = self._works.get(graph, {}), self.limits.get(graph, {})
        calls = [row for row in self.calls if row.phase == graph and row.launch.op == name]
        dims, batch = self.dims(graph), self._batch(graph)
        cpu = call_works(self.artifact, "cpu", calls, dims)
        return (
            *metal_launches(self.artifact, metal, works, limits, dims, self.chip.title, batch, launched.get("metal")),
            *c_calls(self.artifact, calls, cpu, launched.get("cpu"), timed.get(graph)),
        )

    def dims(self, graph: str) -> Mapping[BatchDim, int]:
        """The batch that threadgroups and predictions are told for."""
        return decode_dims(1, self._context) if graph == "decode" else chunk_dims(self.artifact.plan)

    def _batch(self, graph: str) -> str:
        """That batch, for people."""
        if graph == "source":
            return ""
        dims = self.dims(graph)
        if graph == "decode":
            return f"1 sequence of {dims['context']} tokens"
        return f"the first {dims['tokens']} tokens of a prompt"

    @cached_property
    def _op_graphs(self) -> dict[str, OpGraph]:
        return {view.name: self.artifact.graph(view.name) for view in self.graphs.graphs}

    @cached_property
    def _metal(self) -> dict[str, PhaseRows]:
        if "metal" not in self.artifact.plan.targets:
            return {}
        return {phase.name: phase for phase in phase_rows(self.artifact, "metal")}

    @cached_property
    def calls(self) -> list[CallRow]:
        """The calls of the program in C, if there is one."""
        if "cpu" not in self.artifact.plan.targets:
            return []
        return call_rows(self.artifact, self.artifact.plan.program("cpu"))

    @cached_property
    def _works(self) -> dict[str, dict[int, Work]]:
        """Bytes and FLOPs of the launches of each phase, by index."""
        phases = [(name, self._metal[name]) for name in ("decode", "prefill") if self._metal]
        return {name: works_of(self.artifact, rows, self.dims(name)) for name, rows in phases}

    @cached_property
    def limits(self) -> dict[str, dict[int, LaunchLimit]]:
        """Predictions for each phase, by index of the launch."""
        if self.chip.figures is None or not self._metal:
            return {}
        steps = roofline(self.artifact, self.chip, self._context, 1)
        return {step.name: {limit.row.index: limit for limit in step.launches} for step in steps}


def _in_layer(name: str, layer: int | None, other: int | None) -> str:
    """The name of an op of a layer in another one that is like it."""
    if layer is None or other is None or layer == other:
        return name
    prefix = layer_prefix(layer)
    return layer_prefix(other) + name.removeprefix(prefix) if name.startswith(prefix) else name
