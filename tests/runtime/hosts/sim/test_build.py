"""Compilation: messages for texts that Metal would refuse, the cache, several processes at once, no compiler."""

import importlib.util
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mlxr.compiler.errors import HostError, MlxrError
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.hosts.sim import build, toolchain
from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel, prepare
from mlxr.runtime.hosts.sim.signature import parse_signature
from mlxr_tests.few import few

COPY = """[[kernel]] void copy{0}(const device float* x [[buffer(0)]], device float* y [[buffer(1)]]) {{
  y[0] = x[0] + {0};
}}"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that has our own parts, which take longest to compile, and no kernel."""
    parts = (build._RUNTIME, build._CHECKS, build._CONVERSIONS)
    built = [build._build_part(part) for part in parts]
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    for path, part in zip(built, parts, strict=True):
        build._cache.publish(path, build._part_path(part))
    return tmp_path / "sim"


@pytest.fixture
def commands(monkeypatch):
    """The compiler commands that are run."""
    seen = []
    original = build._run

    def record(command, folder, what):
        seen.append(what)
        original(command, folder, what)

    monkeypatch.setattr(build, "_run", record)
    return seen


REFUSED = {
    "device to threadgroup": ("threadgroup float* p = x;", "cannot initialize a variable of type '__local float"),
    "constant to device": (
        "const device float* p = table;",
        "cannot initialize a variable of type 'const __global float",
    ),
    "device to thread in a call": ("first(x);", "no matching function for call to 'first'"),
    "const is dropped": ("device float* p = x;", "cannot initialize a variable of type '__global float"),
    "device to an unqualified pointer": ("const float* p = x;", "pointer or reference without an address space"),
    "a syntax error": ("float a = ;", "expected expression"),
    "double": ("double a = 1.0;", "use of type 'double'"),
    "a plain threadgroup array": ("threadgroup float a[32];", "declare threadgroup arrays with MLXR_THREADGROUP"),
    "too much private memory": (
        "float a[16384]; for (int i = 0; i < 16384; ++i) a[i] = x[i & 7]; y[tid] = a[(uint)x[0]];",
        "stack frame size .* exceeds limit",
    ),
    "recursion": ("y[tid] = endless(x[tid]);", "is recursive, which Metal does not allow"),
    "an atomic": ("__atomic_fetch_add((device int*)y, 1, 0);", "something sim cannot check"),
    "an unknown function": ("y[tid] = metal::erf(x[tid]);", "no member named 'erf' in namespace 'metal'"),
    "a vector with too few components": ("y[tid] = float4(1.0f, 2.0f).x;", "too few or too many components"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_texts_that_metal_refuses(run, name):
    body, message = REFUSED[name]
    head = "constant float table[] = {1}; float first(thread const float* p) { return p[0]; } "
    if name == "recursion":
        head += "float endless(float x) { volatile float y = x; return x > 0 ? endless(y - 1) + endless(y - 2) : 1; }"
    with pytest.raises(HostError, match=message) as caught:
        run(body, head=head)
    assert "planted" in str(caught.value)


@pytest.mark.parametrize(
    "declaration",
    [
        "const float& r = x[0];",
        "thread float a[2]; float *p = a;",
        "auto p = (float4*)x;",
        "T<float> t; const device uint *p;",
    ],
)
def test_pointers_without_an_address_space(run, declaration):
    head = "template <typename U> struct T { U a; U* p; };" if "T<" in declaration else ""
    with pytest.raises(HostError, match="without an address space"):
        run(declaration, head=head)


def test_products_are_no_pointers(run):
    body = "const uint n = uint(2) * tid & 63u; y[tid] = float(n) * x[tid] * 0.5f * sizeof(float);"
    np.testing.assert_array_equal(run(body)[:32], np.arange(32) ** 2 * 4)


def test_program_scope_variables_must_be_constant(run):
    with pytest.raises(HostError, match="program scope variable must reside in constant address space"):
        run("y[tid] = q;", head="float q = 1;")


def test_compile_errors_name_kernel_line_and_command(run):
    with pytest.raises(HostError) as caught:
        run("y[tid] = 1.0f;\n  y[tid] = missing;")
    message = str(caught.value)
    assert "cannot compile kernel 'planted'" in message
    assert "planted.metal:14:12: error: use of undeclared identifier 'missing'" in message
    assert "clcpp" in message


def test_the_second_load_compiles_nothing(cache, commands):
    first = SimKernel.load(COPY.format(7))
    assert commands
    commands.clear()
    second = SimKernel.load(COPY.format(7))
    assert commands == []
    assert second.params == first.params
    SimKernel.load(COPY.format(8))
    assert commands == ["kernel 'copy8'"] * 3
    assert not list(cache.glob(".build-*"))


def test_a_damaged_cache_entry_is_built_anew(cache):
    SimKernel.load(COPY.format(9))
    (entry,) = cache.glob("copy9-*")
    start = entry.read_bytes()[:100]
    entry.unlink()  # the old file is mapped into this process
    entry.write_bytes(start)
    y = np.zeros(1, dtype=np.float32)
    buffers = [SimBuffer.of(np.ones(1, np.float32), writable=False), SimBuffer.of(y, writable=True)]
    SimKernel.load(COPY.format(9)).launch(buffers, (1, 1, 1), (1, 1, 1))
    assert y[0] == 10


DAMAGED = list(itertools.product(["runtime", "checks", "conversions"], [b"", b"\x7fELF damaged"]))


@pytest.mark.parametrize(("name", "content"), few(DAMAGED, DAMAGED[3:4]), ids=str)
def test_our_own_damaged_parts_are_built_anew(cache, name, content):
    (entry,) = cache.glob(f"{name}-*")
    entry.write_bytes(content)
    texts = {f"copy{i}": COPY.format(i).replace("x[0]", "bfloat(x[0])") for i in range(4)}
    y = np.zeros(1, dtype=np.float32)
    buffers = [SimBuffer.of(np.ones(1, np.float32), writable=False), SimBuffer.of(y, writable=True)]
    prepare(texts)["copy3"].launch(buffers, (1, 1, 1), (1, 1, 1))
    assert y[0] == 4
    assert len(entry.read_bytes()) > 1000


def test_the_prelude_is_read_once(cache, commands):
    for i in range(2):
        SimKernel.load(COPY.format(i))
    assert commands.count("its own prelude") == 1
    for kept in cache.glob("prelude-*.*"):
        kept.write_bytes(kept.read_bytes()[:1000])
        commands.clear()
        SimKernel.load(COPY.format(f"{len(kept.suffix)}00"))
        assert commands.count("its own prelude") == 1, "what is damaged is made anew"


def test_a_library_that_never_loads(cache):
    def load(path):
        tries.append(path)
        raise OSError("no")

    tries = []
    text = COPY.format(1)
    with pytest.raises(HostError, match="cannot load kernel 'copy1', which was just built: no"):
        build.load_kernel(text, parse_signature(text), load)
    assert len(tries) == 3


def test_a_changed_sim_is_another_entry(cache, monkeypatch):
    SimKernel.load(COPY.format(1))
    source = build.own_source
    monkeypatch.setattr(build, "own_source", lambda name: source(name) + "# changed" * (name == "instrument.py"))
    SimKernel.load(COPY.format(1))
    assert len(list(cache.glob("copy1-*"))) == 2
    monkeypatch.setattr(build, "RUNTIME_FLAGS", (*build.RUNTIME_FLAGS, "-DCHANGED"))
    SimKernel.load(COPY.format(1))
    assert len(list(cache.glob("copy1-*"))) == 3


def test_comments_decide_nothing_but_the_numbers_of_lines(cache):
    for comment, entries in (("", 1), ("  // [64, 2] f32", 1), (" // x", 1), ("\n// x", 2)):
        SimKernel.load(COPY.format(1).replace("{", f"{{{comment}", 1))
        assert len(list(cache.glob("copy1-*.so"))) == entries


CALLS = """
template <int depth>
__attribute__((noinline)) float nested(uint i, float x) {{
  volatile float a[2500];
  a[i] = x;
  if constexpr (depth > 1) a[i] = nested<depth - 1>(i, x + 1.0f);
  return a[i];
}}
[[kernel]] void deep(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {{
  y[tid] = nested<{0}>(tid, 0.0f);
}}"""


def test_nested_calls_fit_the_stack_or_are_refused(cache):
    y = np.zeros(1024, dtype=np.float32)
    SimKernel.load(CALLS.format(6)).launch([SimBuffer.of(y, writable=True)], (1, 1, 1), (1024, 1, 1))
    assert (y == 5).all()
    with pytest.raises(HostError, match=r"'deep' needs 7\d+ bytes of private memory in all .*; sim allows 65536"):
        SimKernel.load(CALLS.format(7))


def test_a_changed_prelude_or_compiler_is_another_entry(cache, monkeypatch):
    SimKernel.load(COPY.format(1))
    original = build.template
    monkeypatch.setattr(
        build, "template", lambda name: original(name) + ("\n// changed\n" if name.endswith(".h") else "")
    )
    SimKernel.load(COPY.format(1))
    assert len(list(cache.glob("copy1-*"))) == 2


def test_two_processes_build_the_same_kernels_at_once(cache):
    script = textwrap.dedent("""
        import sys, numpy as np
        from mlxr.runtime.hosts.sim.kernel import SimBuffer, prepare
        kernels = prepare({f"copy{i}": sys.argv[1].format(i) for i in range(4)})
        x, y = np.ones(1, np.float32), np.zeros(1, np.float32)
        buffers = [SimBuffer.of(x, writable=False), SimBuffer.of(y, writable=True)]
        for i in range(4):
            kernels[f"copy{i}"].launch(buffers, (1, 1, 1), (1, 1, 1))
            assert y[0] == i + 1
    """)
    source = str(Path(importlib.util.find_spec("mlxr").submodule_search_locations[0]).parent)
    environment = os.environ | {"PYTHONPATH": source}
    command = [sys.executable, "-c", script, COPY]
    children = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
    assert len(list(cache.glob("copy*.so"))) == 4
    assert not list(cache.glob(".build-*"))


def test_prepare_reports_progress_and_keeps_the_order(cache):
    reports = []
    texts = {f"copy{i}": COPY.format(i) for i in (3, 1, 2)}
    kernels = prepare(texts, lambda done, total: reports.append((done, total)))
    assert list(kernels) == ["copy3", "copy1", "copy2"]
    assert reports == [(1, 3), (2, 3), (3, 3)]
    assert prepare({}) == {}


def test_prepare_names_the_kernel_that_fails(cache):
    with pytest.raises(HostError, match="cannot compile kernel 'bad'"):
        prepare({"copy1": COPY.format(1), "bad": "[[kernel]] void bad(device float* y [[buffer(0)]]) { y[0] = z; }"})


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("MLXR_CLANG", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolchain, "zig_executable", lambda: None)
    toolchain._find.cache_clear()
    with pytest.raises(HostError, match="this installs one: pip install ziglang"):
        SimKernel.load(COPY.format(1))
    toolchain._find.cache_clear()


def test_named_compiler_must_be_a_recent_clang(monkeypatch, tmp_path):
    old = tmp_path / "clang"
    old.write_text("#!/bin/sh\necho 'clang version 14.0.0'\n")
    old.chmod(0o755)
    for value in (str(old), str(tmp_path / "missing"), "/bin/true"):
        monkeypatch.setenv("MLXR_CLANG", value)
        with pytest.raises(HostError, match=r"MLXR_CLANG=.* is not a clang of version 17 or newer"):
            SimKernel.load(COPY.format(1))


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MLXR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.library_folder() == tmp_path / "xdg" / "mlxr" / "sim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.library_folder() == tmp_path / ".cache" / "mlxr" / "sim"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXR_CACHE_DIR", "here")
    assert cache_folder("any") == tmp_path / "here" / "any"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(
        HostError, match=r"cannot write to the cache folder .*; set MLXR_CACHE_DIR to a folder that can"
    ):
        build.library_folder()


def test_no_home_folder(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("MLXR_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(MlxrError, match="set MLXR_CACHE_DIR"):
        cache_folder("any")
    with pytest.raises(HostError, match="set MLXR_CACHE_DIR"):
        SimKernel.load(COPY.format(1))


def test_a_relative_cache_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXR_CACHE_DIR", "relative")
    SimKernel.load(COPY.format(1))
    assert list((tmp_path / "relative" / "sim").glob("copy1-*.so"))


def test_a_truncated_library_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader maps a truncated library and the process dies of SIGBUS, so damage must be seen before."""
    program = (
        "import sys, numpy as np\n"
        "from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel\n"
        "text = open(sys.argv[1]).read()\n"
        "out = np.zeros(32, np.float32)\n"
        "SimKernel.load(text).launch([SimBuffer.of(out, writable=True)], (1, 1, 1), (32, 1, 1))\n"
        "print(out.sum())\n"
    )
    kernel = tmp_path / "k.metal"
    kernel.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "[[kernel]] void ones(device float* out [[buffer(0)]], uint3 at [[thread_position_in_grid]]) {\n"
        "  out[at.x] = 1.0f;\n}\n"
    )
    cache = tmp_path / "cache"
    environment = os.environ | {"MLXR_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> str:
        command = [sys.executable, "-c", program, str(kernel)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert run() == "32.0"
    for library in (cache / "sim").glob("*.so"):
        os.truncate(library, 3000)
    assert run() == "32.0"
    assert all(library.stat().st_size > 3000 for library in (cache / "sim").glob("*.so"))
