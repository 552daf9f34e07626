"""Lowers ops to launches: chooses kernels, geometry and conditions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlxr.compiler.arena import ArenaGeometry
from mlxr.compiler.codegen.attention_kernels import AttendKernel, AttendPrefillKernel, AttendReduceKernel
from mlxr.compiler.codegen.kernels import (
    THREADGROUP_BYTES,
    CopyBlocksKernel,
    EmbedKernel,
    Kernel,
    ProjectionKernel,
    RopeCacheWriteKernel,
)
from mlxr.compiler.dtypes import DType
from mlxr.compiler.errors import PlanError
from mlxr.compiler.graph import Op, OpGraph, Value
from mlxr.compiler.ops import Shape
from mlxr.compiler.passes.pipeline import Step
from mlxr.compiler.plan.geometry import Geometry
from mlxr.compiler.plan.plan import BatchDim, Condition, Extent

ONE = Extent()


@dataclass(frozen=True)
class Draft:
    """A launch before its kernel is rendered and named."""

    op: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent]
    when: Condition | None = None
    mlx_min_rows: int | None = None


@dataclass(frozen=True)
class Scratch:
    """A buffer between two launches of one op."""

    name: str
    shape: Shape
    dtype: DType


def layer_buffer(layer: object) -> str:
    """The constant buffer that tells a kernel its layer."""
    return f"layer.{layer}"


class Lowering:
    """Lowers the ops of one step's graph, collecting launches and scratch buffers."""

    def __init__(self, graph: OpGraph, step: Step, arena: ArenaGeometry, geometry: Geometry) -> None:
        self.graph = graph
        self.step = step
        self.arena = arena
        self.geometry = geometry
        self.drafts: list[Draft] = []
        self.scratch: list[Scratch] = []
        self._rules: dict[str, Callable[[Op], None]] = {
            "embed": self._embed,
            "linear": self._projection,
            "projection": self._projection,
            "rope_write_attention": self._decode_attention,
            "rope_cache_write": self._cache_write,
            "rope_attention": self._prefill_attention,
        }

    def run(self) -> list[Draft]:
        """Lowers every op.

        Raises:
            PlanError: an op has no kernel; a pass that should have fused it did not fire.
        """
        for op in self.graph.ops:
            rule = self._rules.get(op.kind)
            if rule is None:
                raise PlanError(f"op {op.name!r} ({op.kind}) has no kernel in step {self.step}; was it not fused?")
            rule(op)
        return self.drafts

    def _emit(
        self, op: Op, kernel: Kernel, grid: tuple[Extent, ...], buffers: dict[str, str], **options: object
    ) -> None:
        names = dict(op.inputs) | buffers
        self.drafts.append(
            Draft(
                op.name,
                kernel,
                tuple(names[port] for port, _ in kernel.inputs),
                tuple(buffers[port] for port, _ in kernel.outputs),
                (*grid, *(ONE,) * (3 - len(grid))),  # type: ignore[arg-type]
                **options,  # type: ignore[arg-type]
            )
        )

    def _value(self, op: Op, port: str) -> Value:
        return self.graph.value(op.inputs[port])

    def _embed(self, op: Op) -> None:
        table = self._value(op, "table")
        vocab, hidden = _numbers(table.shape)
        kernel = EmbedKernel("embed", vocab, hidden, table.dtype, self.graph.value(op.out).dtype)
        self._emit(op, kernel, (Extent(dim="tokens"),), {"token_ids": op.inputs["ids"], "out": op.out})

    def _projection(self, op: Op) -> None:
        weight, out, g = self._value(op, "weight"), self.graph.value(op.out), self.geometry
        _, in_features = _numbers(weight.shape)
        gather = "rows" in op.inputs
        dim: BatchDim = "rows" if gather else "tokens"
        activation = op.attrs.get("activation")
        out_features = out.shape[1]
        assert isinstance(out_features, int), "weights have no symbolic dims"
        label = weight.name.rpartition(".")[2] if op.out not in self.graph.outputs else "logits"
        several = ProjectionKernel(
            label=f"{label}_rows",
            in_features=in_features,
            out_features=out_features,
            weight=weight.dtype,
            activation=self._value(op, "x").dtype,
            out=out.dtype,
            norm=self._value(op, "norm").dtype if "norm" in op.inputs else None,
            eps=_optional_float(op.attrs.get("eps")),
            bias=self._value(op, "bias").dtype if "bias" in op.inputs else None,
            residual="residual" in op.inputs,
            gather=gather,
            activation_kind=str(activation) if activation else None,
            outs=g.matmul_outputs // (2 if activation else 1),
            simdgroups=g.matmul_simdgroups,
            tile=g.matmul_tile,
        )
        one = replace(
            several,
            label=label,
            outs=g.matvec_outputs // (2 if activation else 1),
            simdgroups=g.matvec_simdgroups,
            tile=1,
        )
        buffers = {"out": op.out, "dims": "dims"}
        # MLX multiplies matrices of one type; widening a weight for it would need memory that nobody planned.
        one_type = several.weight == several.activation == several.out
        mlx_min_rows = g.mlx_min_rows if one_type else None
        many_grid = (
            Extent(times=-(-out_features // several.outs_per_threadgroup)),
            Extent(dim=dim, per=several.tile),
        )
        if self.step == "prefill":
            self._emit(op, several, many_grid, buffers, mlx_min_rows=mlx_min_rows)
            return
        one_grid = (Extent(times=-(-out_features // one.outs_per_threadgroup)),)
        if self.arena.max_sequences == 1:
            self._emit(op, one, one_grid, buffers)
        else:
            self._emit(op, one, one_grid, buffers, when=Condition(dim=dim, maximum=1))
            several_rows = Condition(dim=dim, minimum=2)
            self._emit(op, several, many_grid, buffers, when=several_rows, mlx_min_rows=mlx_min_rows)

    def _rope_fields(self, op: Op) -> dict[str, object]:
        return {
            "arena": self.arena,
            "num_heads": op.attrs["num_heads"],
            "activation": self._value(op, "qkv").dtype,
            "frequencies": self._value(op, "frequencies").data,
            "rotary_dim": op.attrs["rotary_dim"],
            "rope_layout": op.attrs["rope_layout"],
        }

    def _arena_buffers(self, op: Op) -> dict[str, str]:
        return {"layer": layer_buffer(op.attrs["layer"]), "token_out": op.outputs["token"]}

    def _cache_write(self, op: Op) -> None:
        kernel = RopeCacheWriteKernel("rope_cache_write", **self._rope_fields(op))  # type: ignore[arg-type]
        self._emit(op, kernel, (Extent(dim="tokens"),), self._arena_buffers(op))

    def _decode_attention(self, op: Op) -> None:
        g, partition = self.geometry, self.geometry.partition
        partitions = -(-self.arena.context // partition)
        fields = self._rope_fields(op) | {"scale": op.attrs["scale"], "window": op.attrs["window"]}
        whole = AttendKernel(
            "attend",
            **fields,  # type: ignore[arg-type]
            simdgroups=g.attend_simdgroups,
            partition=0,
            max_partitions=0,
        )
        buffers = self._arena_buffers(op) | {"out": op.out}
        grid = (Extent(times=self.arena.num_kv_heads), Extent(dim="seqs"))
        if partitions == 1:
            self._emit(op, whole, grid, buffers)
            return
        self._emit(op, whole, grid, buffers, when=Condition(dim="context", maximum=partition))
        long = Condition(dim="context", minimum=partition + 1)
        part = replace(whole, label="attend_partition", partition=partition, max_partitions=partitions)
        heads, head_dim = whole.num_heads, whole.head_dim
        between = {"partial": f"{op.name}.partial", "stats": f"{op.name}.stats", "dims": "dims"}
        self.scratch.append(Scratch(between["partial"], ("seqs", heads, partitions, head_dim), DType.F32))
        self.scratch.append(Scratch(between["stats"], ("seqs", heads, partitions, 4), DType.F32))
        self._emit(op, part, (*grid, Extent(dim="partitions")), buffers | between, when=long)
        reduce = AttendReduceKernel("attend_reduce", heads, head_dim, partitions, whole.activation)
        reduce_grid = (Extent(times=heads), Extent(dim="seqs"))
        self._emit(op, reduce, reduce_grid, between | {"out": op.out}, when=long)

    def _prefill_attention(self, op: Op) -> None:
        fields = self._rope_fields(op) | {"scale": op.attrs["scale"], "window": op.attrs["window"]}
        kernel = self._fitting_prefill(fields)
        grid = (Extent(times=self.arena.num_kv_heads * kernel.head_groups), Extent(dim="tiles"))
        self._emit(op, kernel, grid, self._arena_buffers(op) | {"out": op.out})

    def _fitting_prefill(self, fields: dict[str, object]) -> AttendPrefillKernel:
        """The largest tiles that threadgroup memory holds: full key tiles first, then rows."""
        g = self.geometry
        keys = g.prefill_keys
        while keys >= 4:
            rows = g.prefill_rows
            while rows >= 8:
                kernel = AttendPrefillKernel(
                    "attend_prefill",
                    **fields,  # type: ignore[arg-type]
                    tile=1,
                    heads=1,
                    keys=keys,
                    rows_per_simdgroup=g.prefill_rows_per_simdgroup,
                )
                heads = min(rows, kernel.gqa_ratio)
                kernel = replace(kernel, tile=rows // heads, heads=heads)
                if kernel.threadgroup_bytes <= THREADGROUP_BYTES and kernel.threads <= 1024:
                    return kernel
                rows //= 2
            keys //= 2
        raise PlanError(f"no prefill attention tile of heads of {self.arena.head_dim} fits {THREADGROUP_BYTES} bytes")


def copy_blocks_draft(arena: ArenaGeometry, geometry: Geometry) -> Draft:
    """The launch that copies blocks before a step writes into shared ones."""
    kernel = CopyBlocksKernel("copy_blocks", arena)
    return Draft(
        "copy_blocks",
        kernel,
        ("copies", "k_arena", "v_arena", "arena_token"),
        ("copy_blocks.token",),
        (Extent(dim="copies"), Extent(times=arena.num_layers), ONE),
    )


def _numbers(shape: Shape) -> tuple[int, int]:
    rows, columns = shape
    assert isinstance(rows, int) and isinstance(columns, int), "weights have no symbolic dims"
    return rows, columns


def _optional_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
