"""`mlxr inspect --json`: the same facts for programs. Launches are never folded here, and keys are stable."""

import dataclasses
from typing import Any

from mlxr.compiler.artifact import Artifact, KernelEntry
from mlxr.compiler.artifact.running import chunk_dims
from mlxr.inspect.launches import LaunchRow, programs
from mlxr.inspect.report import parameters, scenarios


def report_json(artifact: Artifact) -> dict[str, Any]:
    """Model, memory, arena, kernels and launches as plain data."""
    plan = artifact.plan
    steps = programs(artifact)
    rows = [row for program in steps for row in program.rows]
    decode = next(program for program in steps if program.name == "decode")
    per_token = [{"batch": name, "launches": len(decode.running(dims))} for name, dims in scenarios(artifact).items()]
    arena = {name: value for name, value in dataclasses.asdict(plan.arena).items() if name != "dtype"}
    return {
        "name": artifact.spec.name,
        "digest": artifact.digest,
        "chip": artifact.chip.name,
        "parameters": parameters(artifact),
        "num_layers": plan.num_layers,
        "memory": plan.memory.model_dump() | {"total_bytes": plan.memory.total_bytes},
        "arena": arena | {"dtype": str(plan.arena.dtype), "shape": list(plan.arena.shape)},
        "types": [types.model_dump(mode="json") for types in plan.types],
        "chunk": plan.chunk.model_dump() | {"max_tokens": plan.max_tokens},
        "arena_chosen": plan.arena_chosen.model_dump() if plan.arena_chosen else None,
        "launches_per_decode_token": per_token,
        "launches_per_prefill_chunk": next(len(p.running(chunk_dims(plan))) for p in steps if p.name == "prefill"),
        "decode_step": next((step.chosen.model_dump() for step in plan.steps if step.chosen), None),
        "kernels": [
            kernel_json(kernel) | {"num_launches": sum(row.kernel == kernel for row in rows)} for kernel in plan.kernels
        ],
        "launches": [_launch(row) for row in rows],
    }


def kernel_json(kernel: KernelEntry) -> dict[str, Any]:
    """A kernel as plain data."""
    return kernel.model_dump(mode="json")


def _launch(row: LaunchRow) -> dict[str, Any]:
    launch = row.launch
    return {
        "step": row.step,
        "index": row.index,
        "layer": row.layer,
        "op": launch.op,
        "op_kind": row.op_kind,
        "kernel": launch.kernel,
        "grid": [str(extent) for extent in launch.threadgroups],
        "threads": row.kernel.threads,
        "threadgroup_bytes": row.kernel.threadgroup_bytes,
        "when": launch.when.model_dump() if launch.when else None,
        "mlx": [condition.model_dump() for condition in launch.mlx],
        "feeds_mlx": launch.feeds_mlx,
        "inputs": list(launch.inputs),
        "outputs": list(launch.outputs),
        "weight_bytes": row.weight_bytes,
        "weight_bytes_per": "token" if row.per_token else "launch",
    }
