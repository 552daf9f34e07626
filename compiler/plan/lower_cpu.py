"""Lowers the ops of one step to calls of C functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.arena import ArenaGeometry
from mlxr.compiler.codegen.cpu.attention import CpuAttendDecode, CpuAttendPrefill, CpuCacheWrite, CpuRopeTable
from mlxr.compiler.codegen.cpu.kernel import CpuKernel
from mlxr.compiler.codegen.cpu.projection import CpuEmbed, CpuProjection, Segment
from mlxr.compiler.errors import PlanError
from mlxr.compiler.graph import Op, OpGraph, Value
from mlxr.compiler.passes.pipeline import Step
from mlxr.compiler.spec.model import ModelSpec

ROPE_TABLE = "rope_table"
_PROJECTION_PORTS: tuple[str, ...] = ("x", "norm", "bias", "residual")


@dataclass(frozen=True)
class CpuDraft:
    """A call before its function is rendered and named; see `CpuLaunch`."""

    op: str
    kernel: CpuKernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layer: int | None = None
    needs_rows: bool = False


class CpuLowering:
    """Lowers one step's graph. Rotations are looked up in a table that the step's first call makes."""

    def __init__(self, spec: ModelSpec, graph: OpGraph, step: Step, arena: ArenaGeometry, max_tokens: int) -> None:
        self.spec, self.graph, self.step, self.arena = spec, graph, step, arena
        self.max_tokens = max_tokens
        self.shapes = spec.matrix_shapes()
        self.drafts: list[CpuDraft] = []
        self._rules: dict[str, Callable[[Op], None]] = {
            "embed": self._embed,
            "linear": self._projection,
            "projection": self._projection,
            "rope_write_attention": self._attend_decode,
            "rope_cache_write": self._cache_write,
            "rope_attention": self._attend_prefill,
        }

    def run(self) -> list[CpuDraft]:
        """Lowers every op.

        Raises:
            PlanError: an op has no function; a pass that should have fused it did not fire.
        """
        for op in self.graph.ops:
            rule = self._rules.get(op.kind)
            if rule is None:
                raise PlanError(f"op {op.name!r} ({op.kind}) has no C function in step {self.step}; was it not fused?")
            rule(op)
        return self.drafts

    def _value(self, op: Op, port: str) -> Value:
        return self.graph.value(op.inputs[port])

    def _add(self, op: Op, kernel: CpuKernel, buffers: dict[str, str], layer: int | None = None) -> None:
        """Adds a call. `buffers`: what is bound to the kernel's parameters by their names."""
        bound = [(param.kind, buffers[param.name]) for param in kernel.params if param.kind != "layer"]
        self.drafts.append(
            CpuDraft(
                op.name,
                kernel,
                tuple(name for kind, name in bound if kind != "output"),
                tuple(name for kind, name in bound if kind == "output"),
                layer,
                needs_rows="rows" in op.inputs,
            )
        )

    def _embed(self, op: Op) -> None:
        table = self._value(op, "table")
        vocab, hidden = table.shape
        assert isinstance(vocab, int) and isinstance(hidden, int), "weights have no symbolic dims"
        held = self.spec.weights.of_tensor(table.parts[0])
        layout: Literal["packed", "rows"] = "packed" if held.is_quantised else "rows"
        kernel = CpuEmbed(label="embed", vocab_size=vocab, hidden_size=hidden, format=held, layout=layout)
        self._add(op, kernel, {"table": table.name, "out": op.out})

    def _projection(self, op: Op) -> None:
        weight = self._value(op, "weight")
        in_features, logits = weight.shape[1], op.out in self.graph.outputs
        assert isinstance(in_features, int), "weights have no symbolic dims"
        label = "logits" if logits else weight.name.rpartition(".")[2]
        segments = tuple(Segment(self.spec.weights.of_tensor(part), self.shapes[part][0]) for part in weight.parts)
        gather = "rows" in op.inputs
        activation, eps = op.attrs.get("activation"), op.attrs.get("eps")
        kernel = CpuProjection(
            label=label,
            in_features=in_features,
            segments=segments,
            norm="norm" in op.inputs,
            eps=float(eps) if isinstance(eps, float | int) and "norm" in op.inputs else None,
            bias="bias" in op.inputs,
            residual="residual" in op.inputs,
            gather=gather,
            activation_kind=str(activation) if activation else None,
            compute=self.spec.compute,
            max_rows=self.max_tokens,
            logits=logits,
        )
        buffers: dict[str, str] = {port: op.inputs[port] for port in _PROJECTION_PORTS if port in op.inputs}
        buffers |= {f"w{index}": part for index, part in enumerate(weight.parts)} | {"out": op.out}
        self._add(op, kernel, buffers)

    def _heads(self, op: Op) -> dict[str, object]:
        """Fields of the kernels that rotate, and the table that they share."""
        frequencies = self._value(op, "frequencies").data
        if not any(draft.outputs == (ROPE_TABLE,) for draft in self.drafts):
            table = CpuRopeTable(label=ROPE_TABLE, frequencies=frequencies)
            self.drafts.insert(0, CpuDraft(ROPE_TABLE, table, (), (ROPE_TABLE,)))
        fields = {name: op.attrs[name] for name in ("num_heads", "rotary_dim", "rope_layout")}
        return fields | {"arena": self.arena}

    def _rotated(self, op: Op, kernel: CpuKernel) -> None:
        buffers = {"qkv": op.inputs["qkv"], "rope_table": ROPE_TABLE} | ({"out": op.out} if "out" in op.outputs else {})
        self._add(op, kernel, buffers, int(str(op.attrs["layer"])))

    def _cache_write(self, op: Op) -> None:
        self._rotated(op, CpuCacheWrite(label="cache_write", **self._heads(op)))  # type: ignore[arg-type]

    def _attend_decode(self, op: Op) -> None:
        softmax = {"scale": op.attrs["scale"], "window": op.attrs["window"], "compute": self.spec.compute}
        self._rotated(op, CpuAttendDecode(label="attend_decode", **self._heads(op), **softmax))  # type: ignore[arg-type]

    def _attend_prefill(self, op: Op) -> None:
        softmax = {"scale": op.attrs["scale"], "window": op.attrs["window"], "compute": self.spec.compute}
        self._rotated(op, CpuAttendPrefill(label="attend_prefill", **self._heads(op), **softmax))  # type: ignore[arg-type]
