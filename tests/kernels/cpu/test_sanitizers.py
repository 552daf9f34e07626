"""The C program built with sanitizers: no kernel reads or writes beyond its memory, no arithmetic is undefined, and no
two threads touch the same memory without a barrier between.

Tests of this suite run once more, in a Python into which the sanitizers' runtimes are preloaded.
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
WHOLE_STEPS = str(HERE / "test_hosts.py")
FAMILIES = str(HERE / "test_families.py")
FROM_FILES = str(HERE.parents[1] / "runtime/hosts/cpu/test_cpu_host.py")
TIMEOUT_S = 1500


@dataclass(frozen=True)
class Sanitizer:
    """How to build with it, and what Python needs."""

    flags: str
    libraries: tuple[str, ...]
    options: dict[str, str]
    plugins: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


# Python itself leaks at its end.
MEMORY = Sanitizer(
    "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined",
    ("libasan.so", "libubsan.so"),
    {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ("mlxr_tests.poison_gaps",),
)
# Older thread sanitizers know few places where a program may lie, hence setarch -R. Python and MLX were not built for
# one: what they do between threads it cannot judge.
THREADS = Sanitizer(
    "-O1 -g1 -fsanitize=thread",
    ("libtsan.so",),
    {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1"},
    program=("setarch", platform.machine(), "-R"),
)


@functools.cache
def runtimes(sanitizer: str) -> str:
    """The sanitizer's libraries, which must be there before anything allocates."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no system C compiler")
    paths = []
    for name in sanitizer.split():
        command = [compiler, f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if not Path(path).is_absolute():  # a name alone: the compiler knows no such file
            pytest.skip(f"the compiler cc lacks the sanitizer's runtime {name}")
        paths.append(path)
    return " ".join(paths)


def run_python(sanitizer: Sanitizer, *arguments: str, arch: str | None = None) -> "subprocess.CompletedProcess[str]":
    """A Python with the runtimes in it, whose cpu host builds with the sanitizer."""
    libraries = runtimes(" ".join(sanitizer.libraries))
    if sanitizer.program and shutil.which(sanitizer.program[0]) is None:
        pytest.skip(f"there is no {sanitizer.program[0]}")
    environment = os.environ | sanitizer.options
    environment |= {"CC": "cc", "MLXR_CPU_CFLAGS": sanitizer.flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    if arch:
        environment["MLXR_CPU_ARCH"] = arch
    # Not for setarch, which comes before.
    command = [*sanitizer.program, "env", f"LD_PRELOAD={libraries}", sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


RACE = """
#include <pthread.h>
static int shared;
static void *work(void *p) { ++shared; return p; }
__attribute__((visibility("default"))) int planted(void) {
    pthread_t other;
    pthread_create(&other, NULL, work, NULL);
    work(NULL);
    pthread_join(other, NULL);
    return shared;
}
"""
FUNCTION = '#include <stdlib.h>\n__attribute__((visibility("default"))) int planted(void) {{ {} }}\n'
PLANTED = {
    "a read beyond the heap": (
        MEMORY,
        FUNCTION.format("char *volatile block = malloc(40); return block[40];"),
        "heap-buffer-overflow",
    ),
    "an overflow": (
        MEMORY,
        FUNCTION.format("volatile int x = 2147483647; return x + 1;"),
        "signed integer overflow",
    ),
    "a shift too far": (MEMORY, FUNCTION.format("volatile int x = 40; return 1 << x;"), "shift exponent 40"),
    "a race": (THREADS, RACE, "data race"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str) -> None:
    sanitizer, text, message = PLANTED[name]
    program = f"""
        from mlxr.runtime.hosts.cpu.build import load_library
        library = load_library({text!r}, "planted")
        print("loaded", flush=True)
        library.planted()
        print("unharmed")
    """
    result = run_python(sanitizer, "-c", textwrap.dedent(program))
    assert result.returncode != 0 and result.stdout == "loaded\n", result.stdout + result.stderr
    assert message in result.stderr


def test_a_read_beyond_a_weight_is_found() -> None:
    """All weights are in one block: what lies between them is forbidden by the plugin that the runs below load."""
    program = """
        import sys
        import numpy as np
        import mlxr_tests.poison_gaps
        mlxr_tests.poison_gaps.pytest_configure(None)
        from mlxr.runtime.hosts.cpu import host as cpu_host
        from mlxr.runtime.hosts.cpu.build import load_library
        from mlxr.runtime.hosts.cpu.library import Library
        from mlxr_tests.memory_weights import read_memory
        from mlxr_tests.specs import compiled, small_spec
        from mlxr_tests.native_weights import random_native
        artifact = compiled(small_spec(weights={"default": "f32", "norm": "bf16"}), target="cpu")
        tensors = artifact.plan.programs["cpu"].library.tensors
        native, _ = random_native(artifact.plan)
        text = '__attribute__((visibility("default"))) int look(const char *at) { return *at; }'
        placed = cpu_host.place_tensors(tensors, None, read_memory(native), 1)
        index = next(i for i, tensor in enumerate(tensors) if tensor.layout == "vector")
        library = load_library(text, "look")
        library.look.argtypes = (np.ctypeslib.ctypes.c_void_p,)
        library.look(placed.addresses[index] + tensors[index].size_bytes - 1)
        print("within", flush=True)
        library.look(placed.addresses[index] + tensors[index].size_bytes)
    """
    result = run_python(MEMORY, "-c", textwrap.dedent(program))
    assert result.returncode != 0 and result.stdout == "within\n", result.stdout + result.stderr
    assert "use-after-poison" in result.stderr


@pytest.mark.parametrize("harm", ["", "a missing barrier"])
def test_a_missing_barrier_is_found(harm: str) -> None:
    program = f"""
        from mlxr.compiler.artifact import Artifact
        from mlxr_tests.host_pair import HostPair
        from mlxr_tests.specs import compiled, small_spec
        artifact = compiled(small_spec(compute="exact"), target="cpu")
        head, start, steps = artifact.source("cpu").partition("static void mlxr_decode(")
        if {harm!r}:
            steps = steps.replace("    mlxr_barrier(w);\\n", "", 3)
        (file,) = artifact.plan.programs["cpu"].files
        pair = HostPair(Artifact({{**artifact.files, file: head + start + steps}}), threads=2)
        seq = pair.add()
        for token in range(5):
            batch = pair.step([(seq, [token])])
        print("unharmed")
    """
    result = run_python(THREADS, "-c", textwrap.dedent(program))
    if harm:
        assert result.returncode != 0 and "data race" in result.stderr, result.stdout + result.stderr
    else:
        assert (result.returncode, result.stdout) == (0, "unharmed\n"), result.stderr


@pytest.mark.parametrize(
    ("sanitizer", "file", "chosen", "arch"),
    [
        (MEMORY, WHOLE_STEPS, "test_schedules and (mixed-floats or contiguous-q8 or q5_k or fast-f16)", None),
        (MEMORY, WHOLE_STEPS, "test_schedules and (fast-q8_0 or q4_0-q8-cache or fast-q4_k_m)", None),
        (MEMORY, WHOLE_STEPS, "test_schedules and (f16-layer or fast-q4_k_m)", "x86-64-v2"),
        (MEMORY, WHOLE_STEPS, "test_schedules and (fast-small-blocks or fast-large-blocks or fast-affine)", None),
        (MEMORY, FROM_FILES, "test_files_and_memory_give_the_same_bits and (bf16 or q4_0)", None),
        (MEMORY, FAMILIES, "test_exact and (gpt-oss or deepseek or layer-bias) or test_fast", None),
        (MEMORY, FAMILIES, "test_exact and (gpt-oss or gemma or cohere)", "x86-64-v2"),
        (THREADS, FAMILIES, "test_exact and (gpt-oss or deepseek or olmo) or test_fast and (gemma or gate)", None),
        (THREADS, WHOLE_STEPS, "test_schedules and (mixed-floats or contiguous-q8 or f16-layer)", None),
        (THREADS, WHOLE_STEPS, "test_schedules and (fast-q8_0 or fast-q4_k_m or fast-bf16)", None),
    ],
    ids=[
        *(
            "floats",
            "blocks",
            "least instructions",
            "more blocks",
            "files",
            "families",
            "families of least instructions",
        ),
        *("threads of families", "threads of floats", "threads of blocks"),
    ],
)
def test_kernels(sanitizer: Sanitizer, file: str, chosen: str, arch: str | None) -> None:
    if arch and platform.machine() != "x86_64":
        pytest.skip("names a CPU of another kind")
    # What goes to the file of standard error must not be kept by a pytest that dies with it.
    options = ["-q", "-x", "--all", "--capture=sys", "-p", "no:xdist", "-p", "no:cacheprovider"]
    for plugin in sanitizer.plugins:
        options += ["-p", plugin]
    result = run_python(sanitizer, "-m", "pytest", *options, file, "-k", chosen, arch=arch)
    assert result.returncode == 0, result.stderr[:6000] + result.stdout[-6000:]
    assert "[100%]" in result.stdout, "nothing was run"
