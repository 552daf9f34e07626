"""What a model compiles to: the launches of a decode step, and its memory. python examples/inspect_plan.py [MODEL]."""

import sys
from collections import Counter

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"

plan = mlxr.compile(MODEL).plan
for name, program in plan.programs.items():
    memory = program.memory
    print(f"{name}: {memory.total_bytes / 2**20:.1f} MiB in all")
    launches = Counter(launch.kernel.rpartition("_")[0] for launch in program.phase("decode").launches)
    for kernel, count in launches.items():
        print(f"  {count:3} x {kernel}")
