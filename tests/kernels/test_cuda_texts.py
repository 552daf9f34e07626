"""Every kernel compiles through the CUDA prelude, with NVIDIA's own compiler, which needs no card.

As far as NVVM's intermediate code: enough for every error in a text, and a fifth of the time.
"""

import re
from collections.abc import Iterator

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.build import AWAIT, RESIDENT, build_cubins, cuda_source, pool_bytes, prelude
from mlxr.runtime.hosts.cuda.fatbin import compressed
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.variants import VARIANTS, variant

FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_90a", "-dlto")
SM_90A = (*FLAGS[:2], "--gpu-architecture=sm_90a")
DEFINED = r"^#define (\w+)"
FATBIN = bytes.fromhex("50ed55ba")
LARGE = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
}


pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")


def artifacts(group: str) -> Iterator[Artifact]:
    if group == "families":
        yield from (compiled(family_spec(name), Geometry.of(partition=16)) for name in ALL_SPECS)
    elif "variants" in group:
        yield from (variant(name) for name in VARIANTS)
    else:
        affine = [format for format in WeightFormat if format.startswith("affine")]
        others = [format for format in WeightFormat if format not in affine]
        # Of bits x group sizes x types of scales every fourth: all bits, all pairs of the other two.
        for format in affine[::4] if group == "affine" else others:
            yield compiled(small_spec(**LARGE, weights={"default": str(format)}, activation_dtype="bf16"))


def in_namespace(source: str, number: int) -> str:
    """A kernel's text without the prelude, so that several can stand in one file."""
    own = source.removeprefix(prelude())
    names = {*re.findall(DEFINED, own, re.MULTILINE)} - {*re.findall(DEFINED, prelude(), re.MULTILINE)}
    undefined = "".join(f"#undef {name}\n" for name in sorted(names))
    return f"namespace kernel_{number} {{\n{own}}}\n{undefined}"


def with_new_lines(sources: dict[str, str]) -> dict[str, str]:
    """Those of the texts that have a line, but for names and numbers, which none before has."""
    seen: set[str] = set()
    chosen = {}
    for name, source in sources.items():
        text = re.sub(r"//.*|\b\d[\w.]*", "", source.removeprefix(prelude()).replace(name, ""))
        lines = {line.strip() for line in text.split("\n")}
        if not lines <= seen:
            chosen[name] = source
        seen |= lines
    return chosen


GROUPS = ["lines of variants", "variants", "families", "affine", "other-formats"]


@pytest.mark.parametrize("group", few(GROUPS, GROUPS[:1]))
def test_every_kernel_compiles(group: str) -> None:
    sources = {
        k.name: cuda_source(k, *artifact.kernel_sections(k.name))
        for artifact in artifacts(group)
        for k in artifact.plan.first.kernels
    }
    if group == "lines of variants":
        sources = with_new_lines(sources)
    assert len(sources) > 50
    texts = list(sources.values())
    for start in range(0, len(texts), 40):
        text = prelude() + "".join(in_namespace(one, i) for i, one in enumerate(texts[start : start + 40]))
        nvrtc.compile_cubin(group, text, FLAGS)


def test_a_mistake_is_told_with_the_kernel_and_what_the_compiler_said() -> None:
    artifact = compiled(small_spec())
    entry = artifact.kernel_entry("qkv")
    header, body = artifact.kernel_sections(entry.name)
    with pytest.raises(HostError, match=rf"kernel {entry.name} does not compile(.|\n)*simd_summ"):
        build_cubins({entry.name: cuda_source(entry, header, body.replace("simd_sum(", "simd_summ("))}, "sm_90a")


@pytest.mark.parametrize("name", ["rows-mma", "codes-stream"])
def test_every_kernel_waits_for_the_launch_before(name: str) -> None:
    """At its beginning, or where its text says so: all threads that go on come there."""
    artifact = variant(name)
    for kernel in artifact.plan.first.kernels:
        header, body = artifact.kernel_sections(kernel.name)
        own = cuda_source(kernel, header, body).removeprefix(prelude())
        lines = own[own.index("{\n", own.index(f" {kernel.name}(")) :].split("\n")
        assert (AWAIT in body) != (lines[2].strip() == AWAIT), kernel.name


def test_an_image_has_no_clusters_of_its_own() -> None:
    """MLX updates its graphs from kernel to kernel, and others would run in them: odd grids lost their last block."""
    artifact = variant("rows-stages")
    staged = [k for k in artifact.plan.first.kernels if k.cluster > 1]
    assert staged
    for kernel in staged:
        text = cuda_source(kernel, *artifact.kernel_sections(kernel.name))
        assert "MLXR_MEET_TO_READ()" in text and "cluster_dims" not in text


def test_a_kernel_says_how_many_of_its_threadgroups_run_at_once() -> None:
    artifact = variant("attention-mma")
    for label, resident in (("attend_crowd_mma", f", {RESIDENT}"), ("attend_many_mma", "")):
        entry = artifact.kernel_entry(label)
        text = cuda_source(entry, *artifact.kernel_sections(entry.name)).removeprefix(prelude())
        assert f"__launch_bounds__({entry.threads}{resident}) {entry.name}(" in text
        assert (f"#define {RESIDENT} 2\n" in text) == bool(resident)


# What macros of Hopper's instructions are, as texts that a compiler can look at.
_MACROS_ARE = """
#if !defined(MLXR_TILES) || MLXR_AHEAD(3) != 3
#error
#endif
#define SAYS(...) SAYS_(__VA_ARGS__)
#define SAYS_(...) #__VA_ARGS__
constexpr bool begins(const char *text, const char *word) {
    return !*word || (*text == *word && begins(text + 1, word + 1));
}
constexpr bool has(const char *text, const char *word) { return begins(text, word) || (*text && has(text + 1, word)); }
static_assert(has(SAYS(MLXR_WANT_RUN(p, 16)), "prefetch.L2"));
static_assert(has(SAYS(MLXR_LEAD()), "launch_dependents"));
static_assert(has(SAYS(MLXR_AWAIT_SENT()), "mlxr_await_bell"));
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
static_assert(!has(SAYS(MLXR_MEET_TO_READ()), "arrive.release"));
#endif
"""


def test_simdgroups_multiply_together_and_weights_come_early_where_instructions_do_so() -> None:
    artifact = variant("rows-wide")
    entry = artifact.kernel_entry("gate_up_mma64")
    text = cuda_source(entry, *artifact.kernel_sections(entry.name))
    assert nvrtc.compile_cubin(entry.name, text.replace(prelude(), prelude() + _MACROS_ARE), SM_90A)


def test_numbers_are_decoded_while_instructions_run() -> None:
    """NVIDIA's compiler tells where it makes them wait for each other, since registers are written too early."""
    artifact, there = variant("expert-wide"), "#ifndef MLXR_ADD_TO_PRODUCTS\n#error\n#endif\n"
    for label in ("experts_wide8", "experts_down_wide8"):
        entry = artifact.kernel_entry(label)
        text = cuda_source(entry, *artifact.kernel_sections(entry.name)).replace(prelude(), prelude() + there)
        _, told = nvrtc.compile_and_tell(entry.name, text, (*SM_90A, "--ptxas-options=-v"))
        assert "registers" in told and "serializ" not in told


def test_tiles_begin_where_instructions_find_them() -> None:
    """At a multiple of 1,024 bytes, also in memory that a launch asks for: they come first there."""
    spec, geometry, _ = VARIANTS["rows-wide"]
    artifact = compiled(spec, geometry.changed({"mma_wide_stages": 4}))
    entry = artifact.kernel_entry("gate_up_mma64")
    header, body = artifact.kernel_sections(entry.name)
    assert pool_bytes(entry) and "#define MLXR_POOL_ALIGNMENT 1024\n" in cuda_source(entry, header, body)
    assert "MLXR_THREADGROUP(" not in body[: body.index("MLXR_TILES(")]


def test_grids_are_whole_clusters() -> None:
    """The driver refuses others. One threadgroup for each tile would make no whole clusters of eight."""
    spec, geometry, _ = VARIANTS["rows-stages"]
    plan = compiled(spec, geometry.changed({"mma_together": 8})).plan.first
    clusters = {kernel.name: kernel.cluster for kernel in plan.kernels if kernel.cluster > 1}
    launches = [launch for launch in plan.phase("decode").launches if launch.kernel in clusters]
    assert launches
    for launch in launches:
        along = launch.kernel_call.threadgroups[0]
        assert along.dim is None and along.times % clusters[launch.kernel] == 0


def test_what_is_compiled_is_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    artifact = compiled(small_spec())
    entry = artifact.kernel_entry("embed")
    sources = {entry.name: cuda_source(entry, *artifact.kernel_sections(entry.name))}
    told: list[tuple[int, int]] = []
    cubin = build_cubins(sources, "sm_90a", lambda done, total: told.append((done, total)))[entry.name]
    assert cubin.startswith((b"\x7fELF", FATBIN)) and told == [(1, 1)]
    monkeypatch.setattr("mlxr.runtime.hosts.cuda.build.compile_cubin", None)
    assert build_cubins(sources, "sm_90a") == {entry.name: cubin}
    (kept,) = tmp_path.glob("cuda/*.cubin")
    kept.write_bytes(cubin[:-1])
    with pytest.raises(TypeError):
        build_cubins(sources, "sm_90a")


def test_images_are_packed_where_the_packer_is(monkeypatch) -> None:
    artifact = compiled(small_spec())
    entry = artifact.kernel_entry("attend")
    made = nvrtc.compile_cubin(entry.name, cuda_source(entry, *artifact.kernel_sections(entry.name)), SM_90A)
    packed = compressed(made, "sm_90a")
    assert packed[:4] == FATBIN and len(packed) < len(made) / 2
    monkeypatch.setattr("mlxr.runtime.hosts.cuda.fatbin.find_nvfatbin", lambda: None)
    assert compressed(made, "sm_90a") == made


def test_without_nvrtc_the_error_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "_SONAMES", ())
    monkeypatch.setattr(nvrtc, "roots", lambda: iter(()))
    for find in (nvrtc.find_nvrtc, nvrtc.find_headers):
        find.cache_clear()
        with pytest.raises(HostError, match="pip install nvidia-cuda-nvrtc"):
            find()
        find.cache_clear()
