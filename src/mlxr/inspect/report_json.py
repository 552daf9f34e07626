"""`mlxr inspect --json`: the same facts for programs. Launches are never folded here, and keys are stable."""

import dataclasses
from typing import Any

from mlxr.compiler.artifact import PHASES, ArenaGeometry, Artifact, KernelEntry
from mlxr.compiler.artifact.typical_steps import chunk_dims
from mlxr.inspect.launches import LaunchRow, phase_rows
from mlxr.inspect.report import parameters, scenarios


def report_json(artifact: Artifact, target: str = "metal") -> dict[str, Any]:
    """Model, memory, arena, kernels and launches as plain data."""
    plan, program = artifact.plan, artifact.plan.program(target)
    phases = phase_rows(artifact, target)
    rows = [row for phase in phases for row in phase.rows]
    decode, prefill = (next(phase for phase in phases if phase.name == name) for name in PHASES)
    per_token = [{"batch": name, "launches": len(decode.running(dims))} for name, dims in scenarios(artifact).items()]
    return {
        "name": artifact.spec.name,
        "digest": artifact.digest,
        "chip": artifact.chip.name,
        "parameters": parameters(artifact),
        "num_layers": plan.num_layers,
        "memory": program.memory.model_dump() | {"total_bytes": program.memory.total_bytes},
        "arena": _arena(program.arena),
        "batch_invariant": program.batch_invariant,
        "types": [each.types.model_dump(mode="json") for each in plan.programs.values()],
        "chunk": plan.chunk.model_dump() | {"max_tokens": plan.max_tokens},
        "arena_chosen": plan.arena_chosen.model_dump() if plan.arena_chosen else None,
        "launches_per_decode_token": per_token,
        "launches_per_prefill_chunk": len(prefill.running(chunk_dims(plan))),
        "decode_step": next((phase.chosen.model_dump() for phase in program.phases if phase.chosen), None),
        "kernels": [
            kernel_json(kernel) | {"num_launches": sum(row.kernel == kernel for row in rows)}
            for kernel in program.kernels
        ],
        "launches": [_launch(row) for row in rows],
    }


def _arena(arena: ArenaGeometry) -> dict[str, Any]:
    """The limits of sequences, the groups of layers, and the stores."""
    limits = {name: getattr(arena, name) for name in ("layout", "mode", "block_size", "max_sequences", "context")}
    return limits | {
        "bytes": arena.size_bytes,
        "groups": [dataclasses.asdict(group) for group in arena.groups],
        "stores": [
            {
                "name": part.name,
                "scope": part.store.scope,
                "group": part.group,
                "shape": list(part.shape),
                "dtype": str(part.dtype),
                "bytes": part.size_bytes,
            }
            for part in arena.allocations
        ],
    }


def kernel_json(kernel: KernelEntry) -> dict[str, Any]:
    """A kernel as plain data."""
    return kernel.model_dump(mode="json")


def _launch(row: LaunchRow) -> dict[str, Any]:
    """The launch of a kernel; `mlx`: when MLX's functions run in its place, or take what it makes (`feeds_mlx`)."""
    launch = row.launch
    mlx = launch.when if launch.needs_library else launch.yields
    return {
        "step": row.phase,
        "index": row.index,
        "layer": row.layer,
        "op": launch.op,
        "op_kind": row.op_kind,
        "kernel": launch.kernel,
        "grid": [str(extent) for extent in launch.threadgroups],
        "threads": row.kernel.threads,
        "threadgroup_bytes": row.kernel.threadgroup_bytes,
        "when": launch.when.model_dump() if launch.when and not launch.needs_library else None,
        "mlx": [part.model_copy(update={"also": None}).model_dump() for part in mlx.parts] if mlx else [],
        "feeds_mlx": launch.needs_library,
        "inputs": list(launch.inputs),
        "outputs": list(launch.outputs),
        "weight_bytes": row.weight_bytes,
        "weight_bytes_per": "token" if row.per_token else "launch",
    }
