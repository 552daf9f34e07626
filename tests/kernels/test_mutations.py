"""The other kernel tests can fail: each kernel made empty, and each of these small mistakes, is noticed.

Every mistake is planted in the text of one kernel; the same comparison that passes with the true text must fail.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.emptied import emptied
from mlxr_tests.family_specs import family_spec
from mlxr_tests.host_pair import HostPair
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import SUM_ERROR, Mismatch

SPLIT = Geometry.of(partition=16)
LABELS = (
    *("embed", "qkv", "qkv_rows", "rope_cache_write", "attend", "attend_partition", "attend_reduce", "attend_prefill"),
    *("o", "o_rows", "gate_up", "gate_up_rows", "down", "down_rows", "logits", "logits_rows", "copy_blocks"),
)
"""The kernels of the small model, which is not compiled where tests are collected alone."""
pytestmark = pytest.mark.long
NOTICED = (Mismatch, KernelFault)  # not AssertionError: the harness's own faults notice nothing


def with_text(artifact, label, text):
    entry = artifact.kernel_entry(label)
    return Artifact({**artifact.files, entry.file: text})


def every_kernel(artifact):
    """A few steps that launch all kernels."""
    pair = HostPair(artifact)
    a = pair.add()
    pair.step([(a, [3, 1, 4, 1, 5, 9, 2, 6, 5])])
    pair.step([(a, [3])])
    b = pair.fork(a)
    pair.step([(b, [5]), (a, [8])])
    pair.step([(a, [9, 7, 9, 3, 2, 3, 8])])
    pair.step([(a, [4]), (b, [6])])
    return pair


def assert_emptiness_is_noticed(artifact, label):
    """The artifact passes, and with none of its kernels of this label empty."""
    every_kernel(artifact)
    entries = [kernel for kernel in artifact.plan.first.kernels if kernel.label == label]
    assert entries, f"there is no kernel {label}"
    for entry in entries:
        with pytest.raises(NOTICED):
            every_kernel(emptied(artifact, entry))


@pytest.fixture(scope="module")
def small():
    return compiled(small_spec(cache__dtype="f32"), SPLIT)


def test_unharmed(small):
    pair = every_kernel(small)
    kernels = small.plan.first.kernels
    assert set(pair.host.launches) == {k.name for k in kernels}
    assert sorted(k.label for k in kernels) == sorted(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_empty_kernel_is_noticed(small, label):
    with pytest.raises(NOTICED):
        every_kernel(emptied(small, small.kernel_entry(label)))


# Kernels that only some families have: a spec, and those of its kernels.
OF_FAMILIES = {
    "olmo-like": ("norm", "qk_norm"),
    "parallel": ("down_sum",),
    "experts-shared-gate": ("route", "experts", "experts_down"),
}


@pytest.mark.parametrize(("name", "label"), [(name, label) for name in OF_FAMILIES for label in OF_FAMILIES[name]])
def test_empty_kernel_of_a_family_is_noticed(name, label):
    artifact = compiled(family_spec(name, cache__dtype="f32"), SPLIT)
    assert_emptiness_is_noticed(artifact, label)


LARGER = {
    "model__hidden_size": 128,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 96},
    "model__vocab_size": 80,
}
FOR_MMA = {
    "weights": {"default": "bf16"},
    "activation_dtype": "bf16",
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
    "cache": {"dtype": "bf16", "block_size": 16, "max_sequences": 4},
}
# Kernels that only some geometries have: weights and geometry, and those of its kernels.
OF_GEOMETRIES = {
    "codes-mma": (
        {"weights": {"default": "affine4_g32_f16"}},
        Geometry.of(matvec_mma=1, matvec_outputs=16, matvec_simdgroups=2, matvec_split=2),
        ("qkv", "o", "gate_up", "down", "logits"),
    ),
    "rows-mma": (
        {"weights": {"default": "bf16"}, "activation_dtype": "bf16"},
        Geometry.of(mma_min_rows=2, mma_simdgroups=2),
        ("normalise", "qkv_mma8", "o_mma8", "gate_up_mma8", "down_mma8", "logits_mma8", "qkv_mma16", "down_mma16"),
    ),
    "many-sequences": ({}, Geometry.of(attend_many=2), ("attend_many",)),
    "attention-mma": (
        FOR_MMA,
        Geometry.of(attend_mma=1, attend_many=2, attend_many_mma=1),
        ("attend_mma", "attend_many_mma"),
    ),
    "prefill-mma": (FOR_MMA, Geometry.of(prefill_mma=1), ("attend_prefill_mma",)),
    "partitions-mma": (FOR_MMA, Geometry.of(partition_mma=1, partition=4), ("attend_partition_mma",)),
}


@pytest.mark.parametrize(
    ("name", "label"), [(name, label) for name, (_, _, labels) in OF_GEOMETRIES.items() for label in labels]
)
def test_empty_kernel_of_a_geometry_is_noticed(name, label):
    changes, geometry, _ = OF_GEOMETRIES[name]
    artifact = compiled(small_spec(**LARGER | changes), geometry)
    assert_emptiness_is_noticed(artifact, label)


@dataclass(frozen=True)
class Mistake:
    """In the kernel `label`, `old` became `new`."""

    label: str
    old: str
    new: str
    ops: tuple[str, ...]
    spec: dict[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[int, int], ...] = ((0, 1),)
    """(history, new tokens) of each sequence."""
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.label}: {self.old} -> {self.new}"


QKV, OUT = ("layers.1.attention.qkv_projected",), ("layers.1.attention.out",)
GATED, LOGITS = ("layers.1.mlp.gated",), ("logits_of_all_tokens",)
ATTEND = ("layers.1.attention.attended",)
PREFILL = ("layers.1.attention.cache_write", *ATTEND)
WIDE = {"model__hidden_size": 136}
BIAS = {"model__attention__qkv_bias": True}
WINDOW = {"model__attention__sliding_window": 5}
SINKS = {"model__tensor_names": "canonical", "model__attention__sinks": True}
CAPPED = {"model__attention__softcap": 1.5}
WARM = {"model__attention__temperature": {"beta": 0.4, "original_context": 4}}
UNTURNED = {"model__rope": None}
YARN = {"model__rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 64, "attention_factor": 1.3}}}
Q8 = {"cache__dtype": "q8"}
Q4 = {"cache__dtype": "q4", "model__attention__head_dim": 64}
THREE = ((13, 1), (6, 1), (0, 1))
CHUNKS = ((7, 12), (0, 5), (3, 1))

MISTAKES = [
    Mistake("embed", "token_ids[token]", "token_ids[0]", ("embedded",), parts=((0, 9),)),
    Mistake("embed", "piece < 12u", "piece < 10u", ("embedded",), parts=((0, 9),)),
    Mistake("qkv", "piece < 34u", "piece < 32u", QKV, WIDE),
    Mistake("qkv", "piece += 32", "piece += 64", QKV, WIDE),
    Mistake("qkv", "v[j] *= n[j];", "", QKV),
    Mistake("qkv", "+ 9.99999975e-06f", "+ 1e-4f", QKV),
    Mistake("qkv", "y += (float)bias[o];", "", QKV, BIAS),
    Mistake("qkv_rows", "y += (float)bias[o];", "y += (float)bias[first];", QKV, BIAS, ((0, 9),)),
    Mistake("o", "y += (float)residual[place];", "", OUT),
    Mistake("o_rows", "residual[place]", "residual[o]", OUT, parts=((0, 2),)),
    Mistake("gate_up", "activate(y) * up", "y * activate(up)", GATED),
    Mistake("gate_up", "up *= scale;", "", GATED),
    Mistake("gate_up_rows", "(row + 88u)", "(row + 87u)", GATED, parts=((0, 3),)),
    Mistake("logits", "rows[0]", "0u", LOGITS, parts=((0, 1), (0, 1))),
    Mistake("logits_rows", "rows[row]", "row", LOGITS, parts=((0, 3), (0, 2))),
    Mistake("logits_rows", "min(first + r, end - 1)", "(first + r)", LOGITS, parts=((0, 3), (0, 2))),
    Mistake("logits_rows", "row < count && ", "", LOGITS, parts=((0, 3), (0, 2))),
    Mistake("logits_rows", " && o < end", "", LOGITS, parts=((0, 3), (0, 2))),
    Mistake("attend", "first ? -sine : sine", "first ? sine : -sine", ATTEND, parts=THREE),
    Mistake("attend", "const uint end = position;", "const uint end = position + 1;", ATTEND, parts=THREE),
    Mistake("attend", "const uint end = position;", "const uint end = max(position, 1u) - 1;", ATTEND, parts=THREE),
    Mistake("attend", "k_out[row + element] = new_k;", "", ATTEND, parts=THREE),
    Mistake("attend", "values[g][i][j] = key_in_group == 0 ? (float)new_v : 0.0f;", "", ATTEND, parts=THREE),
    Mistake("attend", "valid[u] ? exp2(score[u] - largest) : 0.0f", "exp2(score[u] - largest)", ATTEND, parts=THREE),
    Mistake("attend", "position + 1 - 5u", "position - 5u", ATTEND, WINDOW, THREE),
    Mistake("attend", "position + 1 - 5u", "position + 2 - 5u", ATTEND, WINDOW, THREE),
    Mistake("attend", "(ulong)(sequence) * (uint)block_tables[0]", "0", ATTEND, parts=THREE),
    Mistake("attend", "slot % 4u", "0u", ATTEND, parts=THREE),
    Mistake("attend", "total[g] *= keep;", "", ATTEND, parts=THREE),
    Mistake("attend", "token[thread_index_in_threadgroup] + 1", "token[thread_index_in_threadgroup]", ATTEND),
    Mistake("attend_partition", "position - begin < length", "true", ATTEND, parts=((20, 1), (3, 1))),
    Mistake(
        "attend_partition", "start + partition * length", "start + partition * (length - 1)", ATTEND, parts=((20, 1),)
    ),
    Mistake("attend_reduce", "first + lane < count ?", "first + lane + 1 < count ?", ATTEND, parts=((20, 1), (3, 1))),
    Mistake("attend_reduce", "exp2(s[4 * p] - largest)", "1.0f", ATTEND, parts=((20, 1), (3, 1))),
    Mistake(
        "attend_reduce",
        "(position - start) / length + 1",
        "(position - start) / length",
        ATTEND,
        parts=((20, 1), (3, 1)),
    ),
    Mistake("attend_reduce", "exp2(s[4 * p] - largest)", "exp2(s[4 * p])", ATTEND, parts=((20, 1),), scale=200.0),
    Mistake("rope_cache_write", "layer[0]", "0u", PREFILL, parts=CHUNKS),
    Mistake("rope_cache_write", "positions[t]", "(int)t", PREFILL, parts=CHUNKS),
    Mistake("rope_cache_write", "slot % 4u", "slot % 2u", PREFILL, parts=CHUNKS),
    Mistake("attend_prefill", "key_position <= query_position", "key_position < query_position", PREFILL, parts=CHUNKS),
    Mistake("attend_prefill", "key_position <= query_position", "true", PREFILL, parts=CHUNKS),
    Mistake(
        "attend_prefill",
        "key_position + 5u > query_position",
        "key_position + 5u >= query_position",
        PREFILL,
        WINDOW,
        CHUNKS,
    ),
    Mistake("attend_prefill", "values[r][d] *= keep;", "", PREFILL, parts=((30, 10),)),
    Mistake("attend_prefill", "(first_position + t)", "(first_position)", PREFILL, parts=CHUNKS),
    Mistake("attend_prefill", "simdgroup_barrier(mem_flags::mem_threadgroup);", "", PREFILL, parts=CHUNKS),
    Mistake("attend_prefill", "threadgroup_barrier(mem_flags::mem_threadgroup);", "", PREFILL, parts=CHUNKS),
    Mistake("attend_prefill", "element >= 40u ? 0.0f : (float)", "(float)", PREFILL, parts=CHUNKS),
    Mistake("attend", "float sum = exp2(sink - largest);", "float sum = 0.0f;", ATTEND, SINKS, THREE),
    Mistake("attend", "sinks[first_head + 0u + g]", "sinks[g]", ATTEND, SINKS, THREE),
    Mistake("attend_reduce", " + exp2(sink - largest)", "", ATTEND, SINKS, ((20, 1),)),
    Mistake("attend_prefill", "total[r] = lane == 0 ? 1.0f : 0.0f", "total[r] = 0.0f", PREFILL, SINKS, CHUNKS),
    Mistake("attend_prefill", "total[r] = lane == 0 ? 1.0f : 0.0f", "total[r] = 1.0f", PREFILL, SINKS, CHUNKS),
    Mistake("attend_prefill", "(simd_gid * 4u + r) % 3u", "r % 3u", PREFILL, SINKS, CHUNKS),
    Mistake("attend", "metal::precise::tanh(score[u])", "score[u]", ATTEND, CAPPED, THREE),
    Mistake("attend", "metal::precise::tanh(score[g])", "score[g]", ATTEND, CAPPED, ((0, 1), (1, 1))),
    Mistake("attend_partition", "metal::precise::tanh(score[u])", "score[u]", ATTEND, CAPPED, ((30, 1),)),
    Mistake("attend_prefill", "metal::precise::tanh(scores[r])", "scores[r]", PREFILL, CAPPED, CHUNKS),
    Mistake("attend", "position / 4u", "position / 5u", ATTEND, WARM, THREE),
    Mistake("attend_prefill", "(first_position + t) / 4u", "first_position / 4u", PREFILL, WARM, CHUNKS),
    Mistake("attend", "(angle) * 1.29999995f", "(angle)", ATTEND, YARN, THREE),
    Mistake("rope_cache_write", "(angle) * 1.29999995f", "(angle)", PREFILL, YARN, CHUNKS),
    Mistake("rope_cache_write", "(key + (i - element))[element]", "key[element]", PREFILL, UNTURNED, CHUNKS),
    Mistake("attend", "score[u] *= k_scale[u];", "", ATTEND, Q8, THREE),
    Mistake("attend", "(p * v_scale[u])", "p", ATTEND, Q8, THREE),
    Mistake("attend", "score[g] *= k_scale;", "", ATTEND, Q8, ((0, 1), (1, 1))),
    Mistake("attend", "(float)new_v * v_scale", "(float)new_v", ATTEND, Q8, THREE),
    Mistake("attend", "*(device float*)(v_out + row + 40) = v_scale;", "", ATTEND, Q8, THREE),
    Mistake("attend_prefill", "scores[r] *= k_scale;", "", PREFILL, Q8, CHUNKS),
    Mistake("attend_prefill", "p * v_scale", "p", PREFILL, Q8, CHUNKS),
    Mistake("attend", "q[g][i] = q4_mix(q[g][i], lane) * 0.25f;", "", ATTEND, Q4, THREE),
    Mistake("attend", "values[g][i] = q4_mix(values[g][i], lane) * 0.25f;", "", ATTEND, Q4, THREE),
    Mistake("attend", "row + dim / 4u * 3u + element / 32u * 2u", "row + dim / 4u * 3u", ATTEND, Q4, THREE),
    Mistake("attend", "four | upper << 4", "four", ATTEND, Q4, THREE),
    Mistake("attend", "8u * j + lane % 8u / 2u * 2u", "8u * j", ATTEND, Q4, THREE),
    Mistake("attend", ">> (element % 32u / 8u * 2u);", ";", ATTEND, Q4, THREE),
    Mistake("attend", "-extremes.x) / 127.0f", "-extremes.x) / 64.0f", ATTEND, Q4, THREE),
    Mistake("attend_prefill", "q4_mix_group((threadgroup float*)q + 32u * i);", "", PREFILL, Q4, CHUNKS),
    Mistake("attend_prefill", "4u - lane / 16u * 4u", "4u", PREFILL, Q4, CHUNKS),
    Mistake("attend_prefill", "8u * d + lane % 8u", "8u * d", PREFILL, Q4, CHUNKS),
    Mistake("attend_prefill", "offset < 32; offset *= 2", "offset < 16; offset *= 2", PREFILL, Q4, CHUNKS),
    Mistake("rope_cache_write", "x = q4_mix(v, lane) * 0.125f;", "x = v;", PREFILL, Q4, CHUNKS),
    Mistake("rope_cache_write", "extreme * -0.0078125f", "extreme * -0.015625f", PREFILL, Q4, CHUNKS),
    Mistake("rope_cache_write", "q8_scale(simd_max(largest))", "q8_scale(largest)", PREFILL, Q8, CHUNKS),
    Mistake("rope_cache_write", "r % 2u * 44u", "r % 2u * 40u", PREFILL, Q8, CHUNKS),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistake_is_noticed(mistake):
    true = compiled(small_spec(**{"cache__dtype": "f32"} | mistake.spec), SPLIT)
    text = true.kernel_text(true.kernel_entry(mistake.label).name)
    assert mistake.old in text, "the mistake must be possible"
    run(true, mistake)
    with pytest.raises(NOTICED):
        run(with_text(true, mistake.label, text.replace(mistake.old, mistake.new)), mistake)


def run(artifact, mistake):
    bench = OpBench(artifact, scale=mistake.scale, sum_error=SUM_ERROR if mistake.scale == 1.0 else 2e-3)
    seq_ids = bench.sequences(*(history for history, _ in mistake.parts))
    batch = bench.batch([(s, new) for s, (_, new) in zip(seq_ids, mistake.parts, strict=True)])
    if mistake.label == "logits":  # the one-row kernel, asked for the second sequence's row
        object.__setattr__(batch, "logit_rows", batch.logit_rows[1:])
    decode = mistake.label.removesuffix("_partition").removesuffix("_reduce") in ONE_ROW
    bench.run("decode" if decode else "prefill", mistake.ops, batch)


ONE_ROW = ("embed", "qkv", "o", "gate_up", "down", "logits", "attend")
