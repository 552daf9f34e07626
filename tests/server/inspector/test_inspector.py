"""Ops and kernels of an artifact, compared with its plan, its sources, and sums done by hand."""

import html
import json
import re

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError, RequestError
from mlxr.server.inspector.inspector import Inspector
from mlxr_tests.specs import small_spec

QKV = "layers.1.attention.qkv_projected"
CHIP = "m4-max"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_spec(small_spec(), chip=find_chip(CHIP)).artifact


@pytest.fixture(scope="module")
def inspector(artifact: Artifact) -> Inspector:
    return Inspector(artifact, context=20)


def test_launches_of_an_op_are_those_of_the_plan(artifact: Artifact, inspector: Inspector) -> None:
    for phase in ("decode", "prefill"):
        for op in artifact.graph(phase).ops:
            shown = inspector.op(phase, op.name)
            for target, program in artifact.plan.programs.items():
                launches = [launch for launch in program.phase(phase).launches if launch.op == op.name]
                kernels = [launch.kernel for launch in launches if hasattr(launch.body, "kernel")]
                assert [launch.kernel for launch in shown.launches if launch.target == target] == kernels
            assert shown.layers == (() if op.layer is None else (0, 1)) and shown.launches
            assert shown.parts and all(part in artifact.graph("source")._ops for part in shown.parts)


def test_bytes_flops_and_time(inspector: Inspector) -> None:
    op = inspector.op("decode", QKV)
    metal = next(launch for launch in op.launches if launch.target == "metal" and launch.prediction)
    width = (6 + 2 * 2) * 40
    assert metal.weight_bytes == 4 * (width * 48 + 48) and not metal.per_token
    prediction, figures = metal.prediction, find_chip(CHIP).figures
    assert prediction and figures
    assert metal.flops == 2 * width * 48
    assert metal.size_bytes == metal.weight_bytes + 4 * (48 + width)
    assert prediction.memory_us == pytest.approx(metal.size_bytes / figures.bandwidth_gb_per_s.value / 1e3)
    assert prediction.predicted_us == pytest.approx(prediction.limit_us + figures.launch_us.value)
    assert (prediction.chip, prediction.batch, op.batch) == ("Apple M4 Max", *["1 sequence of 20 tokens"] * 2)
    assert all(launch.measured == () and launch.launched is None for launch in op.launches), "nobody has measured"
    cpu = next(launch for launch in op.launches if launch.target == "cpu")
    assert cpu.prediction is None and cpu.weight_bytes == metal.weight_bytes
    assert (cpu.flops, cpu.size_bytes) == (metal.flops, metal.size_bytes)


def test_bytes_and_flops_need_no_chip(artifact: Artifact, inspector: Inspector) -> None:
    unknown = Inspector(artifact, find_chip(CHIP).model_copy(update={"figures": None}), context=20)
    launches = [launch for launch in unknown.op("decode", QKV).launches if launch.target == "metal"]
    expected = [(launch.size_bytes, launch.flops) for launch in inspector.op("decode", QKV).launches[: len(launches)]]
    assert [(launch.size_bytes, launch.flops) for launch in launches] == expected and launches[0].prediction is None


def test_geometry_has_the_chips_reasons(artifact: Artifact, inspector: Inspector) -> None:
    reasons = {}
    for phase in ("decode", "prefill"):
        for op in artifact.graph(phase).ops:
            for launch in inspector.op(phase, op.name).launches:
                reasons |= {(launch.kernel, size.name): size.because for size in launch.sizes}
                if launch.target == "metal":
                    assert all(count > 0 for count in launch.threadgroups) and launch.threads > 0
    expected = {
        (kernel.name, name): kernel.chosen.why.get(name, "")
        for kernel in artifact.plan.first.kernels
        if kernel.chosen and kernel.label != "copy_blocks"
        for name in kernel.chosen.sizes
    }
    assert reasons == expected and any(reasons.values())


def test_sources_are_the_artifacts_own(artifact: Artifact, inspector: Inspector) -> None:
    for target, language in (("metal", "metal"), ("cpu", "c")):
        for entry in artifact.plan.program(target).kernels:
            kernel = inspector.kernel(target, entry.name)
            assert (kernel.language, kernel.threads, kernel.file) == (language, entry.threads, entry.file)
            assert kernel.source in artifact.files[entry.file] and entry.label in kernel.source
            text = html.unescape(re.sub(r"<[^>]*>", "", kernel.html))
            assert text.rstrip("\n") == kernel.source.rstrip("\n")
            assert f'<span class="kt">{"float" if target == "metal" else "void"}</span>' in kernel.html
            assert kernel.num_lines == kernel.source.count("\n") and "style=" not in kernel.html


def test_counts_of_launches_are_those_of_the_target_that_runs(inspector: Inspector) -> None:
    kernel = inspector.op("decode", QKV).launches[0].kernel
    launches = inspector.op("decode", QKV, {"metal": {kernel: 7}}).launches
    assert launches[0].launched == 7
    assert {launch.launched for launch in launches if launch.kernel != kernel and launch.target == "metal"} <= {0}
    assert [launch.launched for launch in launches if launch.target == "cpu"] == [None]


def test_measured_times_are_those_that_tuning_left(artifact: Artifact) -> None:
    kernel = next(kernel for kernel in artifact.plan.first.kernels if kernel.label == "qkv")
    assert kernel.chosen
    right, wrong = dict(kernel.chosen.sizes), {name: value + 1 for name, value in kernel.chosen.sizes.items()}
    trials = [{"sizes": sizes, "time_us": time, "error": None} for sizes, time in ((wrong, 1.0), (right, 2.5))]
    site = {"scenario": "1 sequence", "site": kernel.chosen.site, "rounds": [trials]}
    tuning = {"device": "Test GPU", "host": "metal", "sites": [site, site | {"site": "another"}]}
    tuned = Inspector(Artifact({**artifact.files, "tuning.json": json.dumps(tuning)}))
    (measured,) = tuned.op("decode", QKV).launches[0].measured
    assert (measured.time_us, measured.scenario, measured.device) == (2.5, "1 sequence", "Test GPU")
    assert tuned.op("decode", "embedded").launches[0].measured == ()


def test_an_op_of_the_source_graph_says_what_computes_it(inspector: Inspector) -> None:
    op = inspector.op("source", "layers.1.attention.k_rotated")
    assert op.computed_by == {"decode": "layers.1.attention.attended", "prefill": "layers.1.attention.cache_write"}
    assert op.launches == () and op.layer == 1 and op.batch == ""


def test_errors(artifact: Artifact, inspector: Inspector) -> None:
    with pytest.raises(ArtifactError, match="graph 'fused'; graphs are source, decode, prefill"):
        inspector.op("fused", QKV)
    with pytest.raises(ArtifactError, match=r"graph decode has no op 'layers\.2\.attention"):
        inspector.op("decode", "layers.2.attention.attended")
    with pytest.raises(ArtifactError, match="no kernel named 'nothing'"):
        inspector.kernel("metal", "nothing")
    with pytest.raises(ArtifactError, match="no target cuda"):
        inspector.kernel("cuda", "qkv")
    with pytest.raises(RequestError, match="context is 41; the artifact holds 1 to 40"):
        Inspector(artifact, context=41)
