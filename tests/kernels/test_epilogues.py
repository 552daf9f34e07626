"""What projections do besides multiplying: norms with bias, activations, factors, caps and gates; and the experts'."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import covering, few, few_of
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

# Of this size, blocks of 32 and tiles of 32 columns fit.
BLOCKS = {
    "model__hidden_size": 64,
    "model__attention__head_dim": 32,
    "model__rope": {"theta": 900.0},
    "model__context": 80,
    "prefill_chunk": 64,
    "cache": {"dtype": "f32", "block_size": 4, "max_sequences": 3},
}
QKV, OUT = "layers.1.attention.qkv_projected", "layers.1.attention.out"
DOWN, LOGITS = "layers.1.mlp.out", "logits"
CASES = {
    "layer-norm": (QKV, LOGITS),
    "layer-norm-bias": (QKV, OUT, DOWN, LOGITS),
    "post-norm": (QKV,),
    "scales": ("embedded", OUT, DOWN, LOGITS),
    "soft-caps": (LOGITS,),
    "relu2": None,
    "relu": None,
    "gelu-tanh-bias": None,
    "swiglu-oai": None,
    "experts-shared-gate": (DOWN,),
}
WEIGHTS = {"f32": "f32", "q8_0": "q8_0", "mixed": {"default": "q4_0", "tensors": {"layers.1.attention.k": "f16"}}}


def large_spec(name, weights, **changes):
    """A family's spec whose columns are whole blocks, in a format or with several."""
    changes |= BLOCKS | {"model__mlp__intermediate_size": 96}
    shared = {"intermediate_size": 64, "gate": name == "experts-shared-gate"}
    if family_spec(name).model.mlp.experts and family_spec(name).model.mlp.experts.shared:
        changes["model__mlp__experts__shared"] = shared
    return family_spec(name, weights=weights if isinstance(weights, dict) else {"default": weights}, **changes)


def op_named(artifact, step, name):
    """An op's name: itself, or that of the op that makes the logits."""
    graph = artifact.graph(step)
    return graph.producer(graph.outputs[0]).name if name == LOGITS else name


def projections(artifact, layer="layers.1.mlp"):
    """Names of the projections of a layer's MLP."""
    return [op.name for op in artifact.graph("prefill").ops if op.kind == "projection" and op.name.startswith(layer)]


OF_CASES = list(itertools.product(CASES, WEIGHTS))
WITHIN_OTHERS = ("layer-norm", "relu")
"""Cases that are a part of another."""
SHORT = [case for case in covering(OF_CASES, lambda case: case) if case[0] not in WITHIN_OTHERS]


@pytest.mark.parametrize(("name", "weights"), few(OF_CASES, SHORT))
def test_projections(name, weights):
    bench = OpBench(compiled(large_spec(name, WEIGHTS[weights])))
    for op in CASES[name] or projections(bench.artifact):
        for step, counts in (("decode", (1,)), ("prefill", (1, 7, 9, 40))):
            for count in counts:
                seq_ids = bench.sequences(0)
                bench.run(step, [op_named(bench.artifact, step, op)], bench.batch([(seq_ids[0], count)], "all"))
                bench.clear(seq_ids)


EXPERTS = [
    "experts-normalised",
    "experts-topk-softmax-bias",
    "experts-not-gated",
    "experts-layer-norm-bias",
    "experts-scaled-residual",
]


FIRST = {"decode": "routed_projection", "prefill": "expert_projection"}


def expert_ops(artifact, phase):
    """The experts' projections of the last layer."""
    kinds = (FIRST[phase], "expert_combine")
    ops = [op for op in artifact.graph(phase).ops if op.kind in kinds and op.name.startswith("layers.1")]
    assert [op.kind for op in ops] == [*kinds]
    return [op.name for op in ops]


@pytest.mark.parametrize(("name", "weights"), few_of(EXPERTS, ["f32", "q8_0", "affine4_g32_f16", "bf16"]))
def test_experts(name, weights):
    bench = OpBench(compiled(large_spec(name, weights)))
    for step, count in (("decode", 1), ("prefill", 1), ("prefill", 11)):
        seq_ids = bench.sequences(0)
        bench.run(step, expert_ops(bench.artifact, step), bench.batch([(seq_ids[0], count)]))
        bench.clear(seq_ids)


ROUTED = [
    "experts-shared",
    "experts-shared-gate",
    "experts-groups",
    "experts-sigmoid",
    "experts-one",
    "experts-topk-softmax-bias",
    "experts-selection-bias",
    "experts-weighed-inputs",
    "experts-weighed-inputs-bias",
    "experts-scaled-residual",
]
OF_ROUTED = list(itertools.product(ROUTED, ["f32", "q8_0", "bf16", "q4_0"]))


@pytest.mark.parametrize(("name", "weights"), few(OF_ROUTED, covering(OF_ROUTED, lambda case: case)[::4]))
def test_experts_and_a_shared_one_of_several_sequences(name, weights):
    bench = OpBench(compiled(large_spec(name, weights, cache__max_sequences=3)))
    seq_ids = bench.sequences(0, 4, 9)
    for op in expert_ops(bench.artifact, "decode"):
        bench.run("decode", [op], bench.batch([(seq_id, 1) for seq_id in seq_ids]))


MATMULS = [{"matmul_tile": 2}, {"mma_min_rows": 2, "mma_outputs": 16}]


@pytest.mark.parametrize("matmul", few(MATMULS, MATMULS[:1]), ids=str)
def test_tiles_of_sequences_share_reads_of_a_shared_expert(matmul):
    """More sequences than a tile, whose last is not full; where matrix instructions multiply them, apart."""
    spec = large_spec("experts-shared-gate", "q8_0", activation_dtype="bf16")
    bench = OpBench(compiled(spec, Geometry.of(**matmul)), sum_error=4e-3)
    router = "layers.1.mlp.router_projected"  # what it normalises the shared expert reads, too
    bench.run("decode", [router, *expert_ops(bench.artifact, "decode")], _one_token_each(bench, 0, 4, 9))
    assert bench.launches["normalise"] == ("mma_min_rows" in matmul)
    together = {"routed_experts_shared_rows", "experts_down_shared_rows"}
    assert together & set(bench.launches) == (together if "matmul_tile" in matmul else set())
    assert {"routed_experts", "experts_down"} & set(bench.launches) == (set() if "matmul_tile" in matmul else APART)


APART = {"routed_experts", "experts_down"}


@pytest.mark.parametrize("outputs", few([1, 2, 8, 32], [8]))
@pytest.mark.parametrize(("weights", "hidden"), few([("f32", 40), ("q8_0", 64)], [("f32", 40)]))
def test_tokens_of_a_threadgroup_share_reads_of_a_shared_expert(weights, hidden, outputs):
    """Fewer tokens than it takes, and more; outputs that are multiplied at once, and one after the other."""
    shared = {"intermediate_size": 160, "gate": True}
    changes = BLOCKS | {"model__hidden_size": hidden, "model__mlp__experts__shared": shared}
    changes |= {"cache__max_sequences": 7, "model__mlp__intermediate_size": 96}
    spec = family_spec("experts-shared-gate", weights={"default": weights}, **changes)
    bench = OpBench(compiled(spec, Geometry.of(matvec_outputs=outputs)))
    for lengths in ((3, 0), (0, 4, 9, 1, 2)):
        bench.run("decode", expert_ops(bench.artifact, "decode"), _one_token_each(bench, *lengths))
    assert bench.launches["experts_down_shared_rows"] == 2
    (kernel,) = [one for one in bench.artifact.plan.first.kernels if one.label == "experts_down_shared_rows"]
    sizes = kernel.chosen.sizes
    assert (sizes["matvec_outputs"], 32 * sizes["matvec_simdgroups"]) == (min(outputs, 8), kernel.threads)


def _one_token_each(bench, *lengths):
    return bench.batch([(seq_id, 1) for seq_id in bench.sequences(*lengths)])


TAKEN = list(itertools.product(ROUTED, ["f32", "q8_0", "bf16"], [(2, 2, 2, 3), (4, 4, 2, 4), (2, 1, 1, 9)]))


@pytest.mark.parametrize(("name", "weights", "sizes"), few(TAKEN, covering(TAKEN, lambda case: case[1:])))
def test_few_threadgroups_take_all_tiles_of_experts(name, weights, sizes):
    """Lanes keep their columns of x, of all chosen experts in the last projection."""
    outputs, simdgroups, split, threadgroups = sizes
    geometry = Geometry.of(
        matvec_outputs=outputs,
        matvec_simdgroups=simdgroups,
        matvec_split=split,
        matvec_threadgroups=threadgroups,
    )
    bench = OpBench(compiled(large_spec(name, weights), geometry))
    bench.run("decode", expert_ops(bench.artifact, "decode"), bench.batch([(bench.sequences(0)[0], 1)]))
    passes = [text for file, text in bench.artifact.files.items() if file.endswith(".metal") and "of_x" in text]
    assert any("slot_of" in text for text in passes) and any("expert_of_slot" in text for text in passes)


@pytest.mark.parametrize("name", few(["experts-shared-gate", "experts-topk-softmax-bias"], ["experts-shared-gate"]))
@pytest.mark.parametrize("sizes", few([(4, 4, 2), (4, 2, 1)], [(4, 4, 2)], whole=True))
def test_simdgroups_that_share_the_columns_of_experts(name, sizes):
    simdgroups, split, unroll = sizes
    geometry = Geometry.of(matvec_simdgroups=simdgroups, matvec_split=split, matvec_unroll=unroll, matvec_outputs=2)
    bench = OpBench(compiled(large_spec(name, "q8_0"), geometry))
    for step, count in (("decode", 1), ("prefill", 5)):
        bench.run(step, expert_ops(bench.artifact, step), bench.batch([(bench.sequences(0)[0], count)]))


@pytest.mark.parametrize("formats", [("q4_0", "q8_0", "f32"), ("q8_0", "bf16", "f16")])
def test_a_shared_expert_of_other_formats(formats):
    tensors = {f"layers.1.mlp.shared.{name}": formats[0] for name in ("gate", "up")}
    tensors |= {"layers.1.mlp.shared.down": formats[1], "layers.1.mlp.shared.router": formats[2]}
    bench = OpBench(compiled(large_spec("experts-shared-gate", {"default": "q5_0", "tensors": tensors})))
    bench.run("decode", expert_ops(bench.artifact, "decode"), bench.batch([(bench.sequences(0)[0], 1)]))


@pytest.mark.parametrize("gate_up", [("q4_0", "q8_0"), ("f16", "q8_0")])
def test_experts_of_several_formats(gate_up):
    tensors = {"layers.1.mlp.experts.gate": gate_up[0], "layers.1.mlp.experts.up": gate_up[1]}
    bench = OpBench(compiled(large_spec("experts-normalised", {"default": "q5_0", "tensors": tensors})))
    bench.run("prefill", expert_ops(bench.artifact, "prefill"), bench.batch([(bench.sequences(0)[0], 5)]))


def test_only_the_chosen_experts_are_read():
    """The other experts' numbers are NaN, and nothing that is computed is."""
    bench = OpBench(compiled(large_spec("experts-normalised", "f32")))
    ops = {op.name: op for op in bench.artifact.graph("prefill").ops}
    name, combine = expert_ops(bench.artifact, "prefill")
    chosen, num_experts = [3, 1], ops[name].attrs.num_experts
    make = bench._input

    def poisoned(value, batch, dims):
        array = make(value, batch, dims)
        if value.name not in (ops[name].inputs["weight"], ops[combine].inputs["weight"]):
            return array
        numbers = np.array(array)
        halves = 2 if "gate_up" in value.name else 1
        experts = numbers.reshape(halves, num_experts, -1, numbers.shape[1])
        experts[:, [e for e in range(num_experts) if e not in chosen]] = np.nan
        return mx.array(numbers)

    bench._input = poisoned
    bench._choices = lambda op, dims: mx.array(np.array([chosen], dtype=np.int32))
    values = bench.run("prefill", [name, combine], bench.batch([(bench.sequences(0)[0], 1)]))
    assert all(np.isfinite(value).all() for value in values.values())


MISTAKES = [
    ("layer-norm-bias", "qkv", "+ b[j]", "", QKV, 1),
    ("layer-norm-bias", "qkv_rows", "statistics[t].x", "0.0f", QKV, 5),
    ("layer-norm-bias", "qkv", "+ 9.99999975e-06f", "+ 0.5f", QKV, 1),
    ("scales", "o", "+ 0.219999999f * y", "+ y", OUT, 1),
    ("scales", "logits", "y *= 0.125f;", "", LOGITS, 1),
    ("soft-caps", "logits_rows", "metal::precise::tanh(", "(", LOGITS, 3),
    ("swiglu-oai", "gate_up", "(up + 1.0f)", "up", "layers.1.mlp.gated", 1),
    ("experts-shared-gate", "down_rows", "gate[row]", "gate[0]", DOWN, 7),
    ("experts-normalised", "experts", "(uint)experts[chosen]", "(uint)experts[0]", "layers.1.mlp.experts.gated", 4),
    ("experts-normalised", "experts", "chosen / 2u", "chosen", "layers.1.mlp.experts.gated", 4),
    ("experts-normalised", "experts_down", "* weights[chosen]", "", DOWN, 1),
    ("experts-topk-softmax-bias", "experts_down", "y += weights[chosen] *", "y +=", DOWN, 1),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("name", "label", "old", "new", "op", "count"), MISTAKES, ids=lambda v: str(v)[:30])
def test_mistake_is_noticed(name, label, old, new, op, count):
    true = compiled(family_spec(name))
    entry = true.kernel_entry(label)
    text = true.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"

    def run(artifact):
        bench, step = OpBench(artifact), "decode" if count == 1 else "prefill"
        bench.run(step, [op_named(artifact, step, op)], bench.batch([(bench.sequences(0)[0], count)], "all"))

    run(true)
    with pytest.raises((Mismatch, KernelFault)):
        run(Artifact({**true.files, entry.file: text.replace(old, new)}))
