"""How long compiling takes: cold compiles of the bundled specs, and how the time grows with the number of layers.

    python benchmarks/compile.py [--repeat 5] [--json FILE]

Each figure is the median over fresh processes, so nothing is warm; imports are measured separately. The growth is
fitted as time = layers ^ exponent between the ends of the range: 1 is linear. The exit code is 1 if a target is missed:
tinyllama-1.1b in under 1 s after imports, 60 layers of experts (mixture.yaml) in under 3 s, an exponent of at most 1.2.
"""

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
from pathlib import Path

LAYERS = (4, 10, 22, 40, 100, 200, 400)
SPECS = ("storyteller", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b", "mistral-7b")
MIXTURE = Path(__file__).with_name("mixture.yaml")
TARGET_SECONDS = 1.0
MIXTURE_SECONDS = 3.0
TARGET_EXPONENT = 1.2

_PROGRAM = """
import pathlib, sys, time
start = time.perf_counter()
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import dump_spec, load_spec, parse_spec
imports = time.perf_counter() - start
name, layers = sys.argv[1], int(sys.argv[2])
spec = load_spec(pathlib.Path(name) if name.endswith(".yaml") else find_spec(name))
if layers:
    model = spec.model.model_copy(update={"num_layers": layers})
    spec = spec.model_copy(update={"model": model, "memory_budget": None})
text = dump_spec(spec)
start = time.perf_counter()
artifact = compile_spec(parse_spec(text)).artifact
print(imports, time.perf_counter() - start, sum(len(file) for file in artifact.files.values()))
"""


def measure(name: str, layers: int, repeat: int) -> dict[str, float]:
    """Medians over fresh processes: seconds of imports and of compiling, bytes of the artifact."""
    runs = []
    for _ in range(repeat):
        command = [sys.executable, "-c", _PROGRAM, name, str(layers)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        runs.append([float(word) for word in output.split()])
    imports, seconds, size = (statistics.median(column) for column in zip(*runs, strict=True))
    return {"imports_seconds": imports, "compile_seconds": seconds, "artifact_bytes": size}


def main() -> int:
    """Measures, prints a table, and says whether the targets are met."""
    parser = argparse.ArgumentParser(description="Time the compiler.")
    parser.add_argument("--repeat", type=int, default=5, help="processes per figure (5)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    specs = {name: measure(name, 0, args.repeat) for name in SPECS}
    specs["mixture, 60 layers"] = mixture = measure(str(MIXTURE), 0, args.repeat)
    growth = {layers: measure("tinyllama-1.1b", layers, args.repeat) for layers in LAYERS}
    print(f"{platform.machine()}, Python {platform.python_version()}, medians of {args.repeat} cold processes\n")
    print(f"{'spec':<24}{'imports':>10}{'compile':>10}{'artifact':>12}")
    for name, row in specs.items():
        print(_row(name, row))
    print(f"\n{'tinyllama-1.1b, layers':<24}{'imports':>10}{'compile':>10}{'artifact':>12}{'per layer':>12}")
    for layers, row in growth.items():
        print(f"{_row(str(layers), row)}{row['compile_seconds'] / layers * 1e3:>9.2f} ms")
    # With few layers, rendering kernels takes most of the time and does not depend on layers: fit the upper half.
    low, high = 40, LAYERS[-1]
    ratio = growth[high]["compile_seconds"] / growth[low]["compile_seconds"]
    exponent = math.log(ratio) / math.log(high / low)
    seconds = specs["tinyllama-1.1b"]["compile_seconds"]
    of_mixture = mixture["compile_seconds"]
    met = {"tinyllama": seconds < TARGET_SECONDS, "mixture": of_mixture < MIXTURE_SECONDS}
    met["linear"] = exponent <= TARGET_EXPONENT
    print(f"\ntinyllama-1.1b: {seconds:.2f} s (target {TARGET_SECONDS} s): {'met' if met['tinyllama'] else 'MISSED'}")
    print(f"mixture: {of_mixture:.2f} s (target {MIXTURE_SECONDS} s): {'met' if met['mixture'] else 'MISSED'}")
    print(f"growth from {low} to {high} layers: layers^{exponent:.2f} (target {TARGET_EXPONENT}): ", end="")
    print("met" if met["linear"] else "MISSED")
    if args.json:
        args.json.write_text(json.dumps({"specs": specs, "layers": growth, "exponent": exponent, "met": met}, indent=1))
    return 0 if all(met.values()) else 1


def _row(name: str, row: dict[str, float]) -> str:
    seconds = f"{row['imports_seconds']:>8.2f} s{row['compile_seconds']:>8.3f} s"
    return f"{name:<24}{seconds}{row['artifact_bytes'] / 1024:>8.0f} KiB"


if __name__ == "__main__":
    sys.exit(main())
