"""Plants small mistakes in a copy of the sources, one at a time, and reports which of them the tests notice.

    python tests/planted_faults.py                  # with the tests that `make test` runs
    python tests/planted_faults.py --all            # with all tests
    python tests/planted_faults.py --all window     # only mistakes with this word in their names

For each mistake it runs the tests that could notice it, one file or folder after the other, until one fails. It does
not run goldens, which notice any change of a text. The exit code is 1 if a mistake was not noticed. It takes half an
hour, and is not a test itself.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIM, CPU, PASSES = "tests/kernels", "tests/kernels/cpu", "tests/compiler/passes"
WEIGHTS, HOSTS = "tests/runtime/weights", "tests/runtime/hosts"


@dataclass(frozen=True)
class Fault:
    """A mistake: `new` replaces `old` in `file`. `tests` could notice it, the likeliest first."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = [
    # Metal templates
    Fault(
        "attend: sums of two lane groups are weighed alike",
        "templates/metal/attend.metal.jinja",
        "simd_shuffle_xor(total[g], offset) * theirs",
        "simd_shuffle_xor(total[g], offset) * mine",
        (
            "tests/kernels/test_attention.py",
            SIM,
        ),
    ),
    Fault(
        "attend_prefill: the window is one key too long",
        "templates/metal/arena.jinja",
        '" && %s + %du > %s" % (key, k.window, position)',
        '" && %s + %du >= %s" % (key, k.window, position)',
        (
            "tests/kernels/test_attention.py",
            SIM,
        ),
    ),
    Fault(
        "attend_reduce: the partitions after the 32nd are taken for too many",
        "templates/metal/attend_reduce.metal.jinja",
        "min(32u, count - first)",
        "min(32u, count)",
        (
            "tests/kernels/test_split_attention.py",
            SIM,
        ),
    ),
    Fault(
        "q5_k with MMA: fifth bits of the other half",
        "templates/metal/formats/q5_k.jinja",
        "<< (raw.second ? 0u : 4u)",
        "<< (raw.second ? 4u : 0u)",
        (
            "tests/kernels/test_projections.py",
            SIM,
        ),
    ),
    Fault(
        "route: of equal experts of one lane the last one wins",
        "templates/metal/route.jinja",
        "min(expert, left[i] == best ? lane + 32u * i : 0xffffffffu)",
        "left[i] == best ? lane + 32u * i : expert",
        (
            "tests/kernels/test_route.py",
            SIM,
        ),
    ),
    Fault(
        "qk_norm: keys are divided by the number of query elements",
        "templates/metal/qk_norm.metal.jinja",
        "{{ (1 / k_elements) | float_literal }}",
        "{{ (1 / q_elements) | float_literal }}",
        (
            "tests/kernels/test_norms.py",
            SIM,
        ),
    ),
    # CPU templates
    Fault(
        "cpu attention: a thread's second partial result is taken for its first",
        "templates/cpu/attend_decode.jinja",
        "units * from / w->threads < start, ",
        "0, ",
        (
            "tests/kernels/cpu/test_cache.py",
            CPU,
        ),
    ),
    Fault(
        "cpu rope: what is not rotated is not scaled",
        "templates/cpu/cache.h",
        "dst[i] = head[i] * scale;",
        "dst[i] = head[i];",
        (
            "tests/kernels/cpu/test_cache.py",
            CPU,
        ),
    ),
    Fault(
        "cpu q3_k: upper bits of another scale",
        "templates/cpu/formats/q3_k.h",
        "(scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4",
        "(scales[8 + s / 4] >> 2 * (s % 4) & 3) << 4",
        (
            "tests/kernels/cpu/test_formats.py",
            CPU,
        ),
    ),
    Fault(
        "cpu projection: sums of units that wait for more columns share a place",
        "templates/cpu/projection.h",
        "block < K ? row / rows * most + j : 0",
        "block < K ? row / rows + j : 0",
        (
            "tests/kernels/cpu/test_projection.py",
            CPU,
        ),
    ),
    Fault(
        "cpu norm: columns after the last sixteen are nobody's",
        "templates/cpu/rows.h",
        "*to = part == parts - 1 ? n : (int)",
        "*to = (int)",
        (
            "tests/kernels/cpu/test_rows.py",
            CPU,
        ),
    ),
    Fault(
        "cpu attention: threads do not wait before they merge",
        "templates/cpu/attend_decode.jinja",
        "    mlxr_barrier(w);\n    // Sequences of several",
        "    // Sequences of several",
        (
            "tests/kernels/cpu/test_cache.py",
            CPU,
        ),
    ),
    # Passes
    Fault(
        "fuse_residual: fires where the other addend is scaled",
        "compiler/passes/fuse_residual.py",
        'ports = (("b", "a"), ("a", "b")) if attrs.alpha == 1 else (("b", "a"),)',
        'ports = (("b", "a"), ("a", "b"))',
        (PASSES, "tests/kernels/test_families.py"),
    ),
    Fault(
        "merge_qkv: fires where only some have a bias",
        "compiler/passes/join_projections.py",
        'op.attrs, op.inputs.keys()) == (first.inputs["x"], first.attrs, first.inputs.keys())',
        'op.attrs) == (first.inputs["x"], first.attrs)',
        (PASSES,),
    ),
    # Pager
    Fault(
        "pager: a sequence is settled before its copy was made",
        "runtime/cache/growth.py",
        "sequence.settled = sequence.length - sequence.length % self._size",
        "sequence.settled = sequence.length",
        (
            "tests/runtime/cache/test_pager.py",
            "tests/runtime",
        ),
    ),
    Fault(
        "pager: forks that grow together need a block too many",
        "runtime/cache/growth.py",
        "references[last] > 1 and references[last] - left.get(last, 0) > 1",
        "references[last] > 1",
        (
            "tests/runtime/cache/test_pager.py",
            "tests/runtime",
        ),
    ),
    Fault(
        "pager: what the prefix cache knows is overwritten",
        "runtime/cache/growth.py",
        "len(cached[last].tokens) > offset",
        "len(cached[last].tokens) > offset + 1",
        (
            "tests/runtime/cache/test_prefix_cache.py",
            "tests/runtime",
        ),
    ),
    # Loaders
    Fault(
        "tensor_rows: strides of a selection in the wrong order",
        "runtime/weights/tensor_rows.py",
        "reversed(rows.strides), strict=True):\n        places += ",
        "rows.strides, strict=True):\n        places += ",
        (WEIGHTS, "tests/families"),
    ),
    Fault(
        "load_weights: every slab is written to the place of the first",
        "runtime/weights/load_weights.py",
        "put(offset + first * rows.shape[1], rows)",
        "put(offset, rows)",
        (WEIGHTS, "tests/families"),
    ),
    # Hosts
    Fault(
        "samples: rows are chosen only where there are fewer of them",
        "runtime/engine/samples.py",
        "if list(indices) != list(range(len(logits))):",
        "if len(rows) < 2:",
        (
            "tests/runtime/engine/test_step.py",
            "tests/runtime",
        ),
    ),
    Fault(
        "hosts: weights are unpacked for MLX where kernels multiply",
        "compiler/artifact/launch.py",
        "if library else not self.needs_library",
        "if library else True",
        ("tests/runtime/hosts/test_metal_host.py", HOSTS),
    ),
]


def copy_tree(folder: Path) -> None:
    """Copies every file that git tracks or does not ignore, in its current state."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, output.split("\0")):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def noticed(fault: Fault, options: list[str]) -> str:
    """The line of the first failing test; empty if all pass."""
    with tempfile.TemporaryDirectory(prefix="mlxr-fault-") as work:
        folder = Path(work)
        copy_tree(folder)
        text = (folder / fault.file).read_text("utf-8")
        assert text.count(fault.old) == 1, f"{fault.name}: {fault.file} has the text {text.count(fault.old)} times"
        (folder / fault.file).write_text(text.replace(fault.old, fault.new), "utf-8")
        paths = os.pathsep.join(str(folder / path) for path in ("src", "tests/support"))
        for tests in fault.tests:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *options, tests],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": paths},
                capture_output=True,
                text=True,
                check=False,
            )
            message = f"{fault.name}: {tests} did not run\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            assert failed or done.returncode == 0, message
            if failed:
                return failed[0]
    return ""


def main() -> int:
    """Plants the chosen faults; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also run the long tests")
    parser.add_argument("-n", metavar="N", default="auto", help="processes (as many as there are cores)")
    parser.add_argument(
        "word", nargs="*", help="plant only faults with one of these words in their names (default: all)"
    )
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.word or any(word in fault.name for word in arguments.word)]
    options = [
        "--ignore-glob=*test_goldens.py",
        "-n",
        arguments.n,
        "--dist",
        "worksteal",
        *(["--all"] if arguments.all else []),
    ]
    count = 0
    for fault in chosen:
        start = time.monotonic()
        failure = noticed(fault, options)
        count += bool(failure)
        seconds = time.monotonic() - start
        result = "noticed" if failure else "MISSED "
        print(f"{result} {seconds:4.0f} s  {fault.name}\n         {failure[:160]}", flush=True)
    print(f"{count} of {len(chosen)} noticed")
    return 0 if count == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
