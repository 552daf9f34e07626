"""Lowers the ops of one step to calls of C functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops import AttrValue
from mlxr.compiler.passes.pipeline import Step
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.cpu.kernels.attention import CpuAttendDecode, CpuAttendPrefill, CpuCacheWrite, CpuRopeTable
from mlxr.compiler.targets.cpu.kernels.experts import CpuExperts
from mlxr.compiler.targets.cpu.kernels.kernel import OUTPUTS, CpuKernel
from mlxr.compiler.targets.cpu.kernels.projection import CpuEmbed, CpuProjection, Segment
from mlxr.compiler.targets.cpu.kernels.rows import MOST_EXPERTS, CpuNorm, CpuQkNorm, CpuRoute

ROPE_TABLE = "rope_table"
"""The buffer of the first table of rotations; a model with several has more, numbered from 2."""


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
    """Lowers one step's graph. Rotations are looked up in tables that the step's first calls make."""

    def __init__(self, spec: ModelSpec, graph: OpGraph, step: Step, arena: ArenaGeometry, max_tokens: int) -> None:
        self.spec, self.graph, self.step, self.arena = spec, graph, step, arena
        self.max_tokens = max_tokens
        self.shapes = spec.matrix_shapes()
        self.drafts: list[CpuDraft] = []
        self._tables: dict[CpuRopeTable, str] = {}
        self._rules: dict[str, Callable[[Op], None]] = {
            "embed": self._embed,
            "linear": self._projection,
            "projection": self._projection,
            "norm": self._norm,
            "qk_norm": self._qk_norm,
            "rope_write_attention": self._attend_decode,
            "rope_cache_write": self._cache_write,
            "rope_attention": self._attend_prefill,
            "route": self._route,
            "expert_projection": self._expert_projection,
            "expert_combine": self._expert_combine,
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
        tables = [CpuDraft(name, table, (), (name,)) for table, name in self._tables.items()]
        return tables + self.drafts

    def _value(self, op: Op, port: str) -> Value:
        return self.graph.value(op.inputs[port])

    def _width(self, op: Op, port: str) -> int:
        """Columns of a value, or elements of a vector."""
        width = self._value(op, port).shape[-1]
        assert isinstance(width, int), "only rows have symbolic dims"
        return width

    def _add(self, op: Op, kernel: CpuKernel, buffers: dict[str, str] | None = None, layer: int | None = None) -> None:
        """Adds a call. Parameters are bound to the op's ports of their names, or to `buffers`."""
        places = op.inputs | op.outputs | (buffers or {})
        bound = [(param.kind in OUTPUTS, places[param.name]) for param in kernel.params if param.kind != "layer"]
        self.drafts.append(
            CpuDraft(
                op.name,
                kernel,
                tuple(name for is_output, name in bound if not is_output),
                tuple(name for is_output, name in bound if is_output),
                layer,
                needs_rows="rows" in self.graph.value(next(iter(op.outputs.values()))).shape,
            )
        )

    def _embed(self, op: Op) -> None:
        table = self._value(op, "table")
        vocab, hidden = table.shape
        assert isinstance(vocab, int) and isinstance(hidden, int), "weights have no symbolic dims"
        held = self.spec.weights.of_tensor(table.parts[0])
        layout: Literal["packed", "rows"] = "packed" if held.is_quantised else "rows"
        scale = _number(op.attrs["scale"])
        self._add(op, CpuEmbed("embed", vocab, hidden, held, layout, scale))

    def _matrix_fields(self, op: Op, experts: int = 1) -> dict[str, Any]:
        """Fields of the kernels that multiply with a weight of `experts` matrices."""
        weight = self._value(op, "weight")
        segments = tuple(Segment(self.spec.weights.of_tensor(p), self.shapes[p][0] // experts) for p in weight.parts)
        kind = op.attrs.get("activation")
        normed = "norm" in op.inputs
        return {
            "label": weight.name.rpartition(".")[2],
            "in_features": self._width(op, "weight"),
            "segments": segments,
            "compute": self.spec.compute,
            "max_rows": self.max_tokens,
            "norm": op.attrs["norm_kind"] if normed else None,
            "norm_bias": "norm_bias" in op.inputs,
            "eps": _number(op.attrs["eps"]) if normed else None,
            "bias": "bias" in op.inputs,
            "residual": "residual" in op.inputs,
            "residual_scale": _number(op.attrs.get("residual_scale", 1.0)),
            "activation_kind": kind,
            "gated": kind is not None and bool(op.attrs["gated"]),
            "limit": op.attrs.get("limit"),
        }

    def _weights(self, op: Op) -> dict[str, str]:
        return {f"w{index}": part for index, part in enumerate(self._value(op, "weight").parts)}

    def _projection(self, op: Op) -> None:
        logits = op.out in self.graph.outputs
        fields = self._matrix_fields(op) | {
            "gather": "rows" in op.inputs,
            "out_scale": _number(op.attrs.get("out_scale", 1.0)),
            "out_cap": op.attrs.get("out_cap"),
            "gate": "gate" in op.inputs,
            "logits": logits,
        }
        if any(reader.kind == "route" for reader in self.graph.consumers(op.out)):
            fields["compute"] = "exact"  # where two experts are nearly as good, rounding would choose
        kernel = CpuProjection(**fields | ({"label": "logits"} if logits else {}))
        self._add(op, kernel, self._weights(op))

    def _norm(self, op: Op) -> None:
        groups, width = _whole(op.attrs["groups"]), self._width(op, "x")
        kernel = CpuNorm(
            label="norm",
            width=width,
            groups=groups,
            kind=op.attrs["kind"],  # type: ignore[arg-type]
            eps=_number(op.attrs["eps"]),
            piece_weights=groups > 1 and self._width(op, "weight") == width,
            bias="bias" in op.inputs,
            residual="residual" in op.inputs,
            residual_scale=_number(op.attrs["residual_scale"]),
            count="rows" if self._value(op, "x").shape[0] == "rows" else "tokens",
        )
        self._add(op, kernel)

    def _qk_norm(self, op: Op) -> None:
        fields: dict[str, Any] = {
            name: op.attrs[name] for name in ("num_heads", "num_kv_heads", "head_dim", "scope", "kind", "eps")
        }
        self._add(op, CpuQkNorm(label="qk_norm", bias="q_norm_bias" in op.inputs, **fields))

    def _route(self, op: Op) -> None:
        count = self._width(op, "x")
        if count > MOST_EXPERTS:
            raise PlanError(f"op {op.name!r} routes to {count} experts; target cpu has at most {MOST_EXPERTS}")
        fields: dict[str, Any] = {name: op.attrs[name] for name in ("top_k", "router", "normalise", "scale")}
        self._add(op, CpuRoute(label="route", num_experts=count, bias="bias" in op.inputs, **fields))

    def _experts(self, op: Op, *, combine: bool) -> None:
        count, top_k = _whole(op.attrs["num_experts"]), _whole(op.attrs["top_k"])
        fields = self._matrix_fields(op, count)
        for part, segment in zip(self._value(op, "weight").parts, fields["segments"], strict=True):
            if segment.format.is_quantised and segment.rows % PANEL_ROWS:
                raise PlanError(
                    f"{part} has {segment.rows} rows an expert in {segment.format}; target cpu packs {PANEL_ROWS} rows "
                    f"together: make them a multiple of that, or the format a float one"
                )
        fields |= {"label": f"experts_{fields['label']}", "num_experts": count, "top_k": top_k, "combine": combine}
        per_pair = combine or self._width(op, "x") != fields["in_features"]
        self._add(op, CpuExperts(**fields, inputs_of_pairs=per_pair), self._weights(op))

    def _expert_projection(self, op: Op) -> None:
        self._experts(op, combine=False)

    def _expert_combine(self, op: Op) -> None:
        self._experts(op, combine=True)

    def _heads(self, op: Op) -> dict[str, Any]:
        """Fields of the kernels that rotate."""
        fields = {name: op.attrs[name] for name in ("num_heads", "rotary_dim", "rope_layout")}
        return fields | {"arena": self.arena}

    def _softmax(self, op: Op) -> dict[str, Any]:
        """Fields of the attention kernels."""
        fields = self._heads(op) | {name: op.attrs[name] for name in ("scale", "window", "softcap")}
        beta, context = op.attrs["temperature_beta"], op.attrs["temperature_context"]
        temperature = None if beta is None else (_number(beta), _whole(context))
        return fields | {"compute": self.spec.compute, "sinks": "sinks" in op.inputs, "temperature": temperature}

    def _rotated(self, op: Op, kernel: CpuKernel) -> None:
        """Adds a call that reads the table of its op's rotations, which those with the same ones share."""
        buffers = {}
        if "frequencies" in op.inputs:
            frequencies = self._value(op, "frequencies").data
            table = CpuRopeTable(label=ROPE_TABLE, frequencies=frequencies, scale=_number(op.attrs["rope_scale"]))
            number = len(self._tables) + 1
            name = self._tables.setdefault(table, ROPE_TABLE if number == 1 else f"{ROPE_TABLE}_{number}")
            buffers["rope_table"] = name
        self._add(op, kernel, buffers, _whole(op.attrs["layer"]))

    def _cache_write(self, op: Op) -> None:
        self._rotated(op, CpuCacheWrite(label="cache_write", **self._heads(op)))

    def _attend_decode(self, op: Op) -> None:
        self._rotated(op, CpuAttendDecode(label="attend_decode", **self._softmax(op)))

    def _attend_prefill(self, op: Op) -> None:
        self._rotated(op, CpuAttendPrefill(label="attend_prefill", **self._softmax(op)))


def _number(value: AttrValue) -> float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return float(value)


def _whole(value: AttrValue) -> int:
    assert isinstance(value, int), f"{value!r} is not a whole number"
    return value
