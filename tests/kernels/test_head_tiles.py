"""Products of many tokens by matrices of heads, in tiles: both kernels, rotated columns behind them, and mistakes."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few_of
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

LATENT = {"kv_rank": 96, "q_rank": 64, "nope_dim": 32, "rope_dim": 16, "v_dim": 40}
BF16 = {"activation_dtype": "bf16", "weights": {"default": "bf16"}}
CASES = {
    "f32": ({}, {}, 0),
    "q8_0": ({"weights": {"default": "q8_0"}}, {"v_dim": 64}, 0),
    "bf16-mma": (BF16, {}, 1),
    "one-projection-mma": (BF16, {"q_rank": None}, 1),
    "q5_0-mma": ({"activation_dtype": "bf16", "weights": {"default": "q5_0"}}, {"v_dim": 64}, 1),
}


def artifact_of(name: str) -> Artifact:
    changes, latent, mma = CASES[name]
    attention = {"num_heads": 5, "num_kv_heads": 1, "head_dim": 48, "latent": LATENT | latent}
    spec = small_spec(
        model__tensor_names="canonical",
        model__hidden_size=64,
        model__attention=attention,
        model__mlp={"intermediate_size": 96},
        model__context=160,
        prefill_chunk=160,
        **changes,
    )
    return compiled(spec, Geometry.of(gemm_mma=mma))


def run_products(artifact: Artifact, tokens: int, sum_error: float) -> OpBench:
    bench = OpBench(artifact, sum_error=sum_error)
    ops = [op for op in artifact.graph("prefill").ops if op.layer == 0]
    batch = bench.batch([(bench.sequences(0)[0], tokens)])
    for kind in ("latent_queries", "head_product"):
        bench.run("prefill", [op.name for op in ops if op.kind == kind], batch)
    return bench


@pytest.mark.parametrize(("name", "tokens"), few_of(CASES, [17, 64, 130]))
def test_products(name, tokens):
    mma = name.endswith("mma")
    bench = run_products(artifact_of(name), tokens, 8e-3 if mma else 1e-5)
    kernel = "gemm_mma" if mma else "gemm"
    assert set(bench.launches) == {f"latent_queries_{kernel}", f"head_product_{kernel}"}


def test_few_tokens_have_no_tiles():
    assert set(run_products(artifact_of("f32"), 16, 1e-5).launches) == {"latent_queries", "head_product"}


MISTAKES = [
    ("head_row + min(first", "min(first"),
    ("+ head * 48u;", ";"),
    ("rotation(element, positions[row])", "rotation(element, 0)"),
    ("* 5u + head) * 112u + 96u + element", "* 5u + head) * 112u + element"),
    ("if (row < count) {\n        const device", "if (row + 1 < count) {\n        const device"),
    ("threadgroup_position_in_grid.y / 5u * 32u", "threadgroup_position_in_grid.y / 5u"),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(old, new):
    artifact = artifact_of("f32")
    entry = artifact.kernel_entry("latent_queries_gemm")
    text = artifact.kernel_text(entry.name)
    assert old in text or "head * 48u" in old
    old = old if old in text else "+ head * 48u + x_column"
    mistaken = Artifact({**artifact.files, entry.file: text.replace(old, new)})
    with pytest.raises((Mismatch, KernelFault)):
        run_products(mistaken, 40, 1e-5)
