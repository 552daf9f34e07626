"""Products that add the norm of a block's result to x first: one row and several, of one result and of two."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few, few_of
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

QKV = "layers.1.attention.qkv_projected"
GATED = "layers.0.mlp.gated"
LOGITS = "logits_of_all_tokens"
SANDWICH = {
    "model__tensor_names": "canonical",
    "model__norm": {"placement": "sandwich"},
    "model__layer_scale": True,
    "cache__max_sequences": 8,
}
WIDE = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
}
MMA = Geometry.of(matvec_mma=1, matvec_outputs=16, matvec_simdgroups=4, matvec_split=2, matvec_unroll=1)
CASES = {
    "f32": (SANDWICH, Geometry()),
    "post": (SANDWICH | {"model__norm": {"placement": "post"}, "model__residual_scale": 0.3}, Geometry()),
    "bf16": (SANDWICH | {"weights": {"default": "bf16"}, "activation_dtype": "bf16"}, Geometry()),
    "f16": (SANDWICH | {"weights": {"default": "f16", "norm": "f32"}, "activation_dtype": "f16"}, Geometry()),
    "q8_0": (SANDWICH | WIDE | {"weights": {"default": "q8_0"}}, Geometry.of(matvec_split=4, matvec_simdgroups=4)),
    "q4_k": (SANDWICH | WIDE | {"weights": {"default": "q4_k"}, "activation_dtype": "bf16"}, MMA),
    "q6_k": (SANDWICH | WIDE | {"weights": {"default": "q6_k"}}, MMA),
}


def run(bench: OpBench, op: str, sequences: int) -> None:
    ids = bench.sequences(*[0] * sequences)
    bench.run("decode", [op], bench.batch([(i, 1) for i in ids], "last"))
    bench.clear(ids)


def takes(artifact: Artifact) -> set[str]:
    """The labels of the kernels that add what a block adds."""
    kernels = artifact.plan.first.kernels
    return {kernel.label for kernel in kernels if any(port.name == "added" for port in kernel.inputs)}


@pytest.mark.parametrize(("op", "case"), few_of([QKV, GATED, LOGITS], CASES))
def test_one_row_and_several(kernel_host: str, op: str, case: str) -> None:
    changes, geometry = CASES[case]
    artifact = compiled(small_spec(**changes), geometry)
    wanted = {"qkv", "gate_up", "logits", "qkv_rows", "gate_up_rows", "logits_rows"}
    assert takes(artifact) == wanted
    bench = mma_bench(artifact, kernel_host) if geometry is MMA else OpBench(artifact)
    for sequences in (1, 3):
        run(bench, op, sequences)


@pytest.mark.parametrize("sequences", few([1, 2, 8], [2]))
def test_two_results_with_norms_of_their_own(sequences: int) -> None:
    bench = OpBench(compiled(family_spec("experts-own-norms", cache__max_sequences=8)))
    run(bench, QKV, sequences)
    run(bench, LOGITS, sequences)


def test_a_row_in_the_middle_of_the_batch() -> None:
    """Logits of the second sequence alone: what is added is that row's."""
    bench = OpBench(compiled(small_spec(**SANDWICH)))
    a, b = bench.sequences(4, 6)
    both = bench.batch([(a, 1), (b, 1)], "last")
    object.__setattr__(both, "logit_rows", both.logit_rows[1:])
    bench.run("decode", [LOGITS], both)


@pytest.mark.parametrize("family", few(["sandwich-norm", "experts-own-norms"], ["experts-own-norms"]))
def test_rows_that_threadgroup_memory_has_no_room_for(family: str) -> None:
    """Of one row there is room, of several there is none: launches of their own make the sums then."""
    changes = {"model__hidden_size": 3200, "model__vocab_size": 64, "cache__max_sequences": 8}
    artifact = compiled(family_spec(family, **changes))
    assert {"qkv", "logits"} <= takes(artifact) and not takes(artifact) & {"qkv_rows", "logits_rows"}
    bench = OpBench(artifact)
    for sequences in (1, 3):
        run(bench, QKV, sequences)


def test_rows_of_matrix_instructions_are_sums_first() -> None:
    """Kernels whose x is normalised before they run: one launch makes the sum and its norm."""
    changes = SANDWICH | WIDE | {"weights": {"default": "bf16"}, "activation_dtype": "bf16"}
    artifact = compiled(small_spec(**changes), Geometry.of(mma_min_rows=2, mma_max_rows=8, mma_simdgroups=4))
    bench = OpBench(artifact, sum_error=4e-3)
    for op in (QKV, GATED):
        run(bench, op, 5)
    assert set(bench.launches) == {"norm", "qkv_mma8", "gate_up_mma8"}


@pytest.mark.parametrize("dtype", few(["bf16", "f16"], ["bf16"]))
def test_sums_before_matrix_instructions(dtype: str) -> None:
    """Sums of two results, sums without a norm behind them, and sums alone."""
    changes = {"weights": {"default": dtype}, "activation_dtype": dtype, "cache__max_sequences": 8}
    changes |= {name: WIDE[name] for name in ("model__hidden_size", "model__attention")}
    sizes = {"mma_min_rows": 2, "mma_max_rows": 8, "mma_simdgroups": 4}
    for family, op in (("experts-own-norms", QKV), ("layer-vectors", "layers.0.vector.gated"), ("post-norm", GATED)):
        artifact = compiled(family_spec(family, **changes), Geometry.of(**sizes))
        bench = OpBench(artifact, sum_error=4e-3)
        for name in (op, LOGITS):
            run(bench, name, 3)


@pytest.mark.parametrize(
    ("op", "dtype", "split"),
    few_of(["gated", "summed"], ["f32", "bf16", "f16"], [1, 4]),
)
def test_experts_beside_a_network_with_a_norm_of_its_own(op: str, dtype: str, split: int) -> None:
    """The choice with its factors, and both networks' first and last products, each into a value of its own."""
    changes = {"weights": {"default": dtype, "norm": "f32"}, "activation_dtype": dtype, "cache__max_sequences": 4}
    geometry = Geometry.of(matvec_split=split, matvec_simdgroups=4, matvec_outputs=2)
    bench = OpBench(compiled(family_spec("experts-own-norms", **changes), geometry))
    run(bench, f"layers.0.mlp.experts.{op}", 1)
    assert set(bench.launches) == {"routed_experts_shared" if op == "gated" else "experts_down_shared"}
    run(bench, f"layers.0.mlp.experts.{op}", 3)
