"""The command `mlxr-compile`: compiles a spec to an artifact and reports what the artifact will need."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mlxr.compiler.artifact.artifact import Artifact
from mlxr.compiler.artifact.c_library import CLibrary
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, MemoryPlan, Program
from mlxr.compiler.artifact.typical_steps import launches_of
from mlxr.compiler.chips.catalog import GENERIC, find_chip
from mlxr.compiler.cli.parallel_summary import describe_parallel, parallel_summary
from mlxr.compiler.cli.parser import CommandParser, VersionAction
from mlxr.compiler.cli.spec_options import add_parallel_arguments, add_type_arguments, parallel_of, type_changes
from mlxr.compiler.driver import Compilation, compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.change import changed
from mlxr.compiler.spec.heads_text import heads_of
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.schema import spec_schema
from mlxr.compiler.targets.registry import TARGETS, choose_targets, refused_activations
from mlxr.compiler.text import counted, size


def run(argv: Sequence[str] | None) -> int:
    """Runs the command line, unguarded.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.

    Raises:
        MlxrError: the spec, the chip or the output folder is at fault.
    """
    parser = CommandParser(
        prog="mlxr-compile",
        description="Compile a model spec into a launch plan and specialised code: Metal kernels, and a C program.",
        epilog=f"Bundled specs: {', '.join(bundled_specs())}.",
    )
    parser.add_argument("spec", nargs="?", metavar="SPEC", help="a YAML file, or the name of a bundled spec")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write the artifact")
    parser.add_argument(
        "--target",
        type=_targets,
        metavar="T,...",
        help=f"what to generate code for: {','.join(TARGETS)} (default: all that can run the spec)",
    )
    parser.add_argument(
        "--chip",
        default=GENERIC,
        metavar="NAME",
        help="the GPU to choose launch geometry for: h200, m4-max, ... (default: none in particular)",
    )
    add_type_arguments(parser)
    add_parallel_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a spec, for editors, and exit")
    parser.add_argument("--version", action=VersionAction)
    args = parser.parse_args(argv)
    if args.schema:
        if args.spec or args.output or args.json:
            parser.error("--schema goes with no SPEC and no other option: mlxr-compile --schema > spec.schema.json")
        print(json.dumps(spec_schema(), indent=2))
        return 0
    if args.spec is None:
        parser.error("give a SPEC, or --schema")
    if (reason := refused_activations(args.activations, args.target or TARGETS)) is not None:
        parser.error(reason)
    changes = replace(type_changes(args), parallel=parallel_of(parser, args))
    spec = changed(load_spec(find_spec(args.spec)), changes)
    compilation = compile_spec(spec, targets=args.target, chip=find_chip(args.chip))
    if args.output is not None:
        compilation.artifact.write(args.output)
    print(json.dumps(summary(compilation, args.output), indent=1) if args.json else describe(compilation, args.output))
    return 0


def _targets(text: str) -> tuple[str, ...]:
    try:
        return choose_targets([name.strip() for name in text.split(",")])
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def summary(compilation: Compilation, output: Path | None) -> dict[str, object]:
    """The summary for programs."""
    if (split := compilation.artifact.parallel) is not None:
        return parallel_summary(compilation, split, output)
    plan = compilation.artifact.plan
    metal, cpu = plan.programs.get("metal"), plan.programs.get("cpu")  # this JSON's keys name these two
    return {
        "name": compilation.artifact.spec.name,
        "artifact": str(output) if output else None,
        "digest": compilation.artifact.digest,
        "targets": list(plan.targets),
        "batch_invariant": {target: program.batch_invariant for target, program in plan.programs.items()},
        "chip": compilation.artifact.chip.name,
        "kernels": [kernel.name for kernel in metal.kernels] if metal else [],
        "launches": _launches(plan, metal) if metal else {},
        "memory": _memory(plan.first.memory),
        "needed_bytes": plan.largest_memory.total_bytes,
        "cpu": _c_program(plan, cpu, cpu.library) if cpu and cpu.library else None,
        "arena": {
            "mode": plan.arena.mode,
            "layout": plan.arena.layout,
            "num_blocks": plan.arena.num_blocks,
            "block_size": plan.arena.block_size,
            "context": plan.arena.context,
            "max_sequences": plan.arena.max_sequences,
        },
        "compile_ms": round(compilation.time_us / 1000, 1),
    }


def _c_program(plan: Plan, program: Program, library: CLibrary) -> dict[str, object]:
    (file,) = program.files
    return {
        "file": file,
        "compute": library.compute,
        "kernels": [kernel.name for kernel in program.kernels],
        "launches": _launches(plan, program),
        "memory": _memory(program.memory),
        "bytes_per_thread": library.thread_bytes,
    }


def _launches(plan: Plan, program: Program) -> dict[str, int]:
    return {phase.name: launches_of(plan, phase) for phase in program.phases}


def _memory(memory: MemoryPlan) -> dict[str, object]:
    return memory.model_dump() | {"total_bytes": memory.total_bytes}


def describe(compilation: Compilation, output: Path | None) -> str:
    """The summary for people."""
    if (split := compilation.artifact.parallel) is not None:
        return describe_parallel(compilation, split, output)
    artifact, plan = compilation.artifact, compilation.artifact.plan
    model, arena, memory = artifact.spec.model, plan.arena, plan.first.memory
    ops = {name: len(artifact.graph(name)) for name in ("source", *PHASES)}
    sequences = counted(arena.max_sequences, "sequence")
    full_sequences = arena.num_blocks // arena.max_blocks_per_sequence
    room = "" if full_sequences >= arena.max_sequences else f" (room for {full_sequences} of them at full context)"
    budget = f" of a budget of {size(memory.budget_bytes)}" if memory.budget_bytes else ""
    formats = ", ".join(sorted({str(part.format) for weight in plan.weights for part in weight.parts}))
    caches = {str(program.types.cache): target for target, program in plan.programs.items()}
    cache = ", ".join(f"{name} ({target})" if len(caches) > 1 else name for name, target in caches.items())
    lines = [
        f"{artifact.spec.name}: {model.num_layers} layers, hidden {model.hidden_size}, "
        f"{heads_of(model, ratio=True)}, vocabulary {model.vocab_size}",
        f"  graph    {ops['source']} ops, fused to {ops['decode']} (decode) and {ops['prefill']} (prefill)",
    ]
    lines += [f"  {target:<8} {_sources(artifact, program)}" for target, program in plan.programs.items()]
    lines += [
        f"  weights  {size(memory.weights_bytes)}, {formats}",
        f"  arena    {size(memory.arena_bytes)}: {arena.num_blocks} blocks of {arena.block_size} tokens, {arena.mode}, "
        f"context {arena.context} x {sequences}{room}, {cache}",
        *_windows(arena),
        f"  scratch  {_scratch(plan)}",
        f"  total    {_totals(plan)}{budget}",
        f"compiled in {compilation.time_us / 1000:.0f} ms" + (f" to {output}" if output else "; -o DIR writes it"),
    ]
    return "\n".join(lines)


def _windows(arena: ArenaGeometry) -> Iterator[str]:
    """What layers with a window save, if the arena gives back what left them."""
    for group in arena.groups:
        if group.window is not None:
            yield (
                f"           {counted(len(group.layers), 'layer')} with a window of {group.window} tokens: "
                f"{group.num_blocks} blocks; whole, the arena would take {size(arena.whole_bytes)}"
            )


def _sources(artifact: Artifact, program: Program) -> str:
    """The code that was generated for a target."""
    bits = ", the same bits for any batch" if program.batch_invariant else ""
    if program.library is None:
        return f"{len(program.kernels)} kernels, geometry for {artifact.chip.title}{bits}"
    return f"{len(program.kernels)} functions of C in {program.files[0]}, compute {program.library.compute}{bits}"


def _totals(plan: Plan) -> str:
    """The memory that each target needs; the budget applies to the largest."""
    return ", ".join(f"{size(program.memory.total_bytes)} ({target})" for target, program in plan.programs.items())


def _scratch(plan: Plan) -> str:
    """The scratch memory of each target: activations, and on CPUs the buffers of each thread."""
    texts = []
    for target, program in plan.programs.items():
        activations, library = size(program.memory.activation_bytes), program.library
        threads = f", and {size(library.thread_bytes)} more for each thread after the first" if library else ""
        texts.append(f"{activations}{'' if library else ' of activations'} ({target}{threads})")
    return ", ".join(texts)
