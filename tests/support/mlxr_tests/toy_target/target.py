"""The toy target: types, lowering and texts."""

import hashlib
from collections.abc import Mapping

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort
from mlxr.compiler.artifact.program import PHASES, Program, TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.schedule.kernel import Kernel
from mlxr.compiler.schedule.lowered import Lowered, LoweredPhase, LoweringInput
from mlxr.compiler.schedule.lowering import Lowering, Rule
from mlxr.compiler.schedule.program import PlacedProgram, make_program
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import TakeKernel
from mlxr.compiler.targets.provenance import Provenance
from mlxr_tests.toy_target import kernels


class ToyTarget:
    """See `mlxr.compiler.targets.target.Target`."""

    name = "toy"
    activations = ("f32",)

    def types(self, spec: ModelSpec, half: HalfType | None) -> TargetTypes:
        why = "the toy target has no other"
        return TargetTypes(
            target=self.name, activations=DType.F32, cache=DType.F32, activations_because=why, cache_because=why
        )

    def lower(self, inputs: LoweringInput) -> Lowered:
        phases = []
        for name in PHASES:
            graph = inputs.graphs[name]
            lowering = ToyLowering(graph, name, inputs.arena)
            lowering.lower_ops()
            shapes = {v.name: (v.shape, DType.F32) for v in graph.values if v.role == "activation"}
            phases.append(LoweredPhase(name, lowering.pending, shapes, graph.outputs[:1]))
        return Lowered(tuple(phases), copy_blocks=())

    def render(
        self, placed: PlacedProgram, inputs: LoweringInput, origin: Provenance, take_kernel: TakeKernel
    ) -> tuple[Program, dict[str, str]]:
        entries: dict[Kernel, KernelEntry] = {}
        sources: dict[str, str] = {}
        for kernel in placed.kernels:
            name = f"{kernel.label}_{hashlib.sha256(kernel.text('f').encode()).hexdigest()[:8]}"
            sources[f"toy/{name}.py"] = kernel.text(name)
            reads, writes = (
                tuple(KernelPort(name=port, dtype=dtype) for port, dtype in ports)
                for ports in (kernel.inputs, kernel.outputs)
            )
            entries[kernel] = KernelEntry(
                name=name, label=kernel.label, file=f"toy/{name}.py", inputs=reads, outputs=writes
            )
        return make_program(placed, entries, inputs), sources


class ToyLowering(Lowering):
    """Lowers each op to one function, and attention in decode to two."""

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        return {
            Embed: lambda op: self.emit(op, kernels.embed(op.attrs_as(Embed).scale)),
            Linear: self._product,
            Projection: self._product,
            RopeCacheWrite: self._write,
            RopeAttention: self._attend,
            RopeWriteAttention: self._write_and_attend,
        }

    def _product(self, op: Op) -> None:
        self.emit(op, kernels.product(op.attrs_as(Product), op.inputs))

    def _write(self, op: Op) -> None:
        self.emit(op, kernels.cache_write(op.attrs_as(PackedHeads), self.value(op, "frequencies").data))

    def _attend(self, op: Op) -> None:
        self.emit(op, kernels.attend(op.attrs_as(PackedAttention), self.value(op, "frequencies").data))

    def _write_and_attend(self, op: Op) -> None:
        self._write(op)
        self._attend(op)
