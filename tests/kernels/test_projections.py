"""Embedding and projection kernels, each op alone: one row (matvec) and several rows (matmul)."""

import itertools
import re
from functools import partial

import pytest

from mlxr.compiler.artifact.typical_steps import decode_dims
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import covering, few, few_of
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

QKV = "layers.0.attention.qkv_projected"
OUT = "layers.0.attention.out"
GATED = "layers.0.mlp.gated"
DOWN = "layers.0.mlp.out"
LOGITS = "logits_of_all_tokens"
TOKENS = (1, 2, 7, 8, 9, 17)
BIASES = {"model__attention__qkv_bias": True, "model__attention__output_bias": True}


def types(weight, activation, norm="f32", hidden=48, intermediate=88, **changes):
    changes |= {"weights": {"default": weight, "norm": norm}, "activation_dtype": activation}
    return {"model__hidden_size": hidden, "model__mlp__intermediate_size": intermediate} | changes


# A lane reads 4 (f32) or 8 columns at a time, a simdgroup 128 or 256: 136, 264 and 296 end in a part of that.
ALL = (QKV, OUT, GATED, DOWN, LOGITS)
CASES = {
    "f32-f32": (types("f32", "f32"), ALL),
    "f32-f16": (types("f32", "f16", "f16", hidden=136, model__mlp__activation="gelu"), ALL),
    "f32-bf16": (types("f32", "bf16", "bf16", hidden=136, model__attention__qkv_bias=True), ALL),
    "f16-f32": (types("f16", "f32", "f16", intermediate=296, model__mlp__activation="gelu_tanh"), ALL),
    "f16-f16": (types("f16", "f16", hidden=264, model__tie_embeddings=True), ALL),
    "f16-bf16": (types("f16", "bf16", intermediate=264, model__attention__output_bias=True), ALL),
    "bf16-f32": (types("bf16", "f32", "bf16", hidden=264, model__mlp__activation="gelu"), ALL),
    "bf16-f16": (types("bf16", "f16", hidden=72, model__mlp__bias=True), ALL),
    "bf16-bf16": (types("bf16", "bf16", hidden=72, model__mlp__activation="gelu_tanh", model__mlp__bias=True), ALL),
    "biases": (types("f32", "f32", model__mlp__bias=True, **BIASES), (QKV, OUT, GATED, DOWN)),
    "large-eps": (types("f32", "f32", model__norm={"eps": 0.25}), (QKV,)),
    "fewer-outputs-than-a-simdgroup": (types("f32", "f32", hidden=8, model__vocab_size=3), (LOGITS,)),
    "one-more-than-a-simdgroup": (types("bf16", "f32", hidden=8, model__vocab_size=5), (LOGITS,)),
}

FORMATS = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
}


MMA_LABELS = ("qkv", "o", "gate_up", "down", "logits")
MMA_FORMATS = ("affine4_g32_bf16", "affine4_g64_f16", "affine4_g128_f32", "q4_0", "q4_k", "q5_k", "q6_k")
MMA = {
    "one-simdgroup": Geometry.of(matvec_mma=1, matvec_outputs=16, matvec_simdgroups=1, matvec_unroll=4),
    "shared-columns": Geometry.of(
        matvec_mma=1, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4, matvec_unroll=1
    ),
    "more-outputs": Geometry.of(matvec_mma=1, matvec_outputs=32, matvec_simdgroups=4, matvec_split=2, matvec_unroll=2),
}


def run_rows(bench, step, op, num_tokens, rows="last"):
    seq_ids = bench.sequences(0)
    bench.run(step, [op], bench.batch([(seq_ids[0], num_tokens)], rows))
    bench.clear(seq_ids)


GEOMETRIES = [
    Geometry.of(matvec_outputs=1, matvec_simdgroups=4, matvec_unroll=2),
    Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matvec_split=4, matvec_unroll=8),
    Geometry.of(matvec_outputs=4, matvec_simdgroups=6, matvec_split=3),
    Geometry.of(matvec_outputs=8, matvec_simdgroups=8, matvec_split=2),
    Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matvec_split=2, matvec_threadgroups=3),
    Geometry.of(matvec_outputs=4, matvec_simdgroups=1, matvec_threadgroups=1),
]


OF_ONE_ROW = list(
    itertools.product(["f32-f32", "f16-bf16", "bf16-bf16", "biases", "one-more-than-a-simdgroup"], GEOMETRIES)
)


@pytest.mark.parametrize(("case", "geometry"), few(OF_ONE_ROW, covering(OF_ONE_ROW, lambda pair: pair)[1::2]), ids=str)
def test_geometries_of_one_row(case, geometry):
    """Any number of outputs a simdgroup, columns shared by simdgroups or not, with and without outputs to spare."""
    changes, ops = CASES[case]
    bench = OpBench(compiled(small_spec(**changes), geometry))
    for op in ops:
        run_rows(bench, "decode", op, 1)


def test_simdgroups_that_share_columns_add_up_the_squares_of_all():
    """Few threadgroups, and more columns than one simdgroup has."""
    bench = OpBench(compiled(small_spec(**types("f32", "f32", hidden=264)), GEOMETRIES[4]))
    run_rows(bench, "decode", QKV, 1)


@pytest.mark.parametrize(
    "format", few(["q8_0", "q4_k", "q6_k", "affine4_g64_bf16", "affine3_g32_f16"], ["affine3_g32_f16"])
)
def test_geometries_of_formats(format):
    for geometry in (GEOMETRIES[1], GEOMETRIES[4]):
        bench = OpBench(compiled(small_spec(**FORMATS, weights={"default": format}), geometry))
        for op in ALL:
            run_rows(bench, "decode", op, 1)


@pytest.mark.parametrize("case", few(CASES, ["f32-f16", "fewer-outputs-than-a-simdgroup"]))
def test_projections(case):
    changes, ops = CASES[case]
    bench = OpBench(compiled(small_spec(**changes)))
    for op in ops:
        run_rows(bench, "decode", op, 1)
        for num_tokens in TOKENS:
            run_rows(bench, "prefill", op, num_tokens, "all")


def test_projections_without_bias_have_none_and_with_one_use_it():
    plain, biased = (compiled(small_spec(**c)).plan for c in ({}, {**BIASES, "model__mlp__bias": True}))
    for plan, expected in ((plain, set()), (biased, {"qkv", "o", "gate_up", "down"})):
        assert {k.label for k in plan.first.kernels if any(p.name == "bias" for p in k.inputs)} == (
            expected | {f"{label}_rows" for label in expected}
        )


def test_logits_of_some_rows():
    """Rows of several sequences, in the middle of a batch, some sequences without any."""
    bench = OpBench(compiled(small_spec(cache__max_sequences=4)))
    a, b, c, d = bench.sequences(0, 5, 3, 1)
    parts = [(a, 3), (b, 1), (c, 6), (d, 9)]
    batch = bench.batch(parts, "last")
    assert batch.logit_rows.tolist() == [2, 3, 9, 18], "not the first rows"
    bench.run("prefill", [LOGITS], batch)


def test_one_row_in_the_middle_of_a_decode_batch():
    """The one-row kernel looks its row up."""
    bench = OpBench(compiled(small_spec()))
    a, b = bench.sequences(4, 6)
    first, second = bench.batch([(a, 1)], "none"), bench.batch([(b, 1)], "last")
    assert first.num_rows == 0 and second.logit_rows.tolist() == [0]
    both = bench.batch([(a, 1), (b, 1)], "last")
    object.__setattr__(both, "logit_rows", both.logit_rows[1:])
    bench.run("decode", [LOGITS], both)


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matmul_outputs=8, matmul_tile=4, matmul_simdgroups=1),
        Geometry.of(matvec_outputs=8, matvec_simdgroups=1, matmul_outputs=2, matmul_tile=16, matmul_simdgroups=3),
    ],
    ids=["wide", "tall"],
)
def test_other_geometries(geometry):
    bench = OpBench(compiled(small_spec(), geometry))
    for op in (GATED, LOGITS):
        run_rows(bench, "decode", op, 1)
        for num_tokens in (1, 3, 5, 17):
            run_rows(bench, "prefill", op, num_tokens, "all")


@pytest.mark.parametrize(("table", "activation"), few_of(["f32", "f16", "bf16"], ["f32", "f16", "bf16"]))
def test_embedding(table, activation):
    bench = OpBench(compiled(small_spec(**types(table, activation, hidden=72))))
    for num_tokens in (1, 9):
        run_rows(bench, "prefill", "embedded", num_tokens)


def test_embedding_wider_than_a_threadgroup():
    spec = small_spec(**types("bf16", "f32", hidden=2056, intermediate=8, model__vocab_size=11))
    run_rows(OpBench(compiled(spec)), "prefill", "embedded", 3)


@pytest.mark.parametrize(("op", "format", "geometry"), few_of(ALL, MMA_FORMATS, MMA))
def test_matrix_instructions(kernel_host, op, format, geometry):
    """Columns that end in a part of a block of 512, and a whole number of blocks."""
    changes = FORMATS | {"model__mlp": {"intermediate_size": 1280}, "weights": {"default": format}}
    artifact = compiled(small_spec(**changes), MMA[geometry])
    run_rows(mma_bench(artifact, kernel_host), "decode", op, 1)
    assert all("mma_f16(" in artifact.kernel_text(k.name) for k in artifact.plan.first.kernels if k.label in MMA_LABELS)


IN_16_BITS = list(itertools.product(MMA_FORMATS, ["f16", "bf16"]))


@pytest.mark.parametrize(("format", "activation"), few(IN_16_BITS, IN_16_BITS[1:-1:5]))
def test_matrix_instructions_on_16_bits(kernel_host, format, activation):
    """Without a norm, a number of x is one f16 number but for its scale; columns of very different sizes."""
    changes = FORMATS | types(format, activation, hidden=256, intermediate=1280)
    bench = mma_bench(compiled(small_spec(**changes), MMA["more-outputs"]), kernel_host)
    for op in (QKV, OUT, DOWN):
        run_rows(bench, "decode", op, 1)


STREAM = partial(Geometry.of, matvec_mma=1)
STREAMS = {
    "ahead": STREAM(
        matvec_outputs=16, matvec_simdgroups=1, matvec_stages=3, matvec_wanted_kib=7, matvec_threadgroups=3
    ),
    "shared-columns": STREAM(
        matvec_outputs=16,
        matvec_simdgroups=2,
        matvec_split=2,
        matvec_stages=1,
        matvec_wanted_kib=4,
        matvec_threadgroups=5,
    ),
    "several-tiles": STREAM(matvec_outputs=16, matvec_simdgroups=2, matvec_stages=1),
    "more-outputs": STREAM(matvec_outputs=32, matvec_simdgroups=1, matvec_stages=1),
}


def stream_bench(kernel_host, stream, format, activation):
    changes = types(format, activation, hidden=1024, intermediate=1536)
    changes |= {"model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "qkv_bias": True}}
    changes |= {"weights": {"default": format, "tensors": {"*.v": "q4_k" if format == "q6_k" else "q6_k"}}}
    artifact = compiled(small_spec(**changes, model__tensor_names="canonical", model__vocab_size=128), STREAMS[stream])
    streamed = {k.label for k in artifact.plan.first.kernels if "MLXR_COPY_AHEAD(to" in artifact.kernel_text(k.name)}
    assert streamed == set(MMA_LABELS)
    return mma_bench(artifact, kernel_host)


def test_a_weight_through_threadgroup_memory(kernel_host):
    run_rows(stream_bench(kernel_host, "ahead", "q4_k", "bf16"), "decode", ALL[0], 1)


@pytest.mark.long
@pytest.mark.parametrize(("stream", "format", "activation"), few_of(STREAMS, ["q4_k", "q5_k", "q6_k"], ["f32", "bf16"]))
def test_weights_through_threadgroup_memory(kernel_host, stream, format, activation):
    """More columns than a simdgroup asks for at once, more tiles than threadgroups, and a span of another format."""
    bench = stream_bench(kernel_host, stream, format, activation)
    for op in ALL:
        run_rows(bench, "decode", op, 1)


def test_matrix_instructions_need_codes():
    with pytest.raises(PlanError, match=r"matvec_mma is 1 for qkv 384x256 q8_0, .* q6_k and affine4_\*; set it to 0"):
        compiled(small_spec(**FORMATS, weights={"default": "q8_0"}), MMA["one-simdgroup"])
    with pytest.raises(PlanError, match="expected 0, or 1 with 16 or 32 outputs"):
        Geometry.of(matvec_mma=1, matvec_outputs=8)


SEVERAL = {"mma_min_rows": 2, "mma_max_rows": 90, "mma_simdgroups": 4}
MMA_ROWS = Geometry.of(**SEVERAL)
STAGES = {"mma_outputs": 32, "mma_simdgroups": 2, "mma_stages": 2, "mma_together": 2}
MATRIX_CASES = {
    "bf16": {"weights": {"default": "bf16", "norm": "f32"}, "activation_dtype": "bf16", **BIASES},
    "f16": {"weights": {"default": "f16", "norm": "f16"}, "activation_dtype": "f16", "model__mlp__activation": "gelu"},
    "tied": {"weights": {"default": "bf16"}, "activation_dtype": "bf16", "model__tie_embeddings": True},
}


@pytest.mark.parametrize(
    ("op", "case", "rows", "stages"), few_of(ALL, MATRIX_CASES, [2, 9, 16, 27, 64, 65, 90], ["registers", "stages"])
)
def test_several_rows_with_mma(op, case, rows, stages):
    """Outputs and rows that are no whole number of tiles. After a norm, x is rounded to 16 bits."""
    changes = FORMATS | {"model__vocab_size": 131, "model__context": 128, "prefill_chunk": 128} | MATRIX_CASES[case]
    artifact = compiled(small_spec(**changes), Geometry.of(**SEVERAL | (STAGES if stages == "stages" else {})))
    labels = {k.label for k in artifact.plan.first.kernels}
    layer = ("qkv", "o", "gate_up", "down")
    assert {f"{label}_mma{tile}" for label in layer for tile in (8, 16, 32, 64)} | {"normalise"} <= labels
    takes_norm = {k.label for k in artifact.plan.first.kernels if any(port.name == "norm" for port in k.inputs)}
    # Numbers before a norm may be too large for f16.
    assert ({"qkv_mma8", "gate_up_mma16"} <= takes_norm) == (stages == "stages" and case != "f16")
    assert not takes_norm & {"qkv_mma32", "gate_up_mma64"}
    if op in (OUT, DOWN):
        run_rows(OpBench(artifact), "prefill", op, rows)
    else:
        run_rows(OpBench(artifact, sum_error=4e-3), "prefill", op, rows, "all")


def test_more_rows_of_x_have_sizes_of_their_own(kernel_host):
    changes = FORMATS | {"model__context": 128, "prefill_chunk": 128} | MATRIX_CASES["bf16"]
    wide = {"mma_wide_outputs": 32, "mma_wide_simdgroups": 2, "mma_wide_together": 1}
    sizes = SEVERAL | STAGES | {"mma_outputs": 16, "mma_simdgroups": 4, "mma_stages": 3, "mma_stage_kib": 30} | wide
    artifact = compiled(small_spec(**changes), Geometry.of(**sizes))
    few, many = (artifact.kernel_entry(f"gate_up_mma{tile}") for tile in (16, 64))
    assert [(k.threads, k.cluster) for k in (few, many)] == [(4 * 32, 2), (2 * 32, 1)]
    stages = [int(re.search(r"asks for them (\d+) steps", artifact.kernel_text(k.name))[1]) + 1 for k in (few, many)]
    assert stages == [3, 2] and many.threadgroup_bytes == 24 << 10
    run_rows(OpBench(artifact, sum_error=4e-3), "prefill", ALL[1], 65, "all")


WIDE = {
    "alone": {"mma_wide_outputs": 96, "mma_wide_simdgroups": 4, "mma_wide_stages": 3, "mma_wide_rows": 16},
    "together": {"mma_wide_outputs": 64, "mma_wide_simdgroups": 8, "mma_wide_stages": 2, "mma_wide_rows": 32}
    | {"mma_wide_together": 2},
    "few": {"mma_wide_outputs": 32, "mma_wide_simdgroups": 4, "mma_wide_stages": 2, "mma_wide_rows": 16}
    | {"mma_wide_pieces": 2},
}


@pytest.mark.parametrize(("op", "case", "rows", "sizes"), few_of(ALL, MATRIX_CASES, [15, 30, 33, 64, 90], WIDE))
def test_rows_of_four_simdgroups_together(op, case, rows, sizes):
    """Both factors where they lie in threadgroup memory; outputs and rows that are no whole number of tiles."""
    changes = FORMATS | {"model__vocab_size": 131, "model__context": 128, "prefill_chunk": 128} | MATRIX_CASES[case]
    artifact = compiled(small_spec(**changes), Geometry.of(**SEVERAL | WIDE[sizes]))
    wide = {k.label for k in artifact.plan.first.kernels if "MLXR_TILES(staged" in artifact.kernel_text(k.name)}
    tiles = [tile for tile in (16, 32, 64) if tile >= WIDE[sizes]["mma_wide_rows"]]
    assert wide >= {f"{label}_mma{tile}" for label in ("qkv", "o", "gate_up", "down") for tile in tiles}
    bench = OpBench(artifact) if op in (OUT, DOWN) else OpBench(artifact, sum_error=4e-3)
    run_rows(bench, "prefill", op, rows, *([] if op in (OUT, DOWN) else ["all"]))


@pytest.mark.parametrize(("simdgroups", "staged"), [(1, False), (2, True), (3, False)])
def test_stages_have_an_even_number_of_shares(simdgroups, staged):
    """Vectors of odd rows change places with those of the share beside them."""
    changes = FORMATS | MATRIX_CASES["bf16"] | {"model__num_layers": 1, "model__hidden_size": 384}
    sizes = SEVERAL | STAGES | {"mma_simdgroups": simdgroups}
    texts = compiled(small_spec(**changes), Geometry.of(**sizes)).files.values()
    assert any("MLXR_COPY_AHEAD" in text for text in texts) == staged


@pytest.mark.parametrize(("two_norms", "launches"), [(False, 1), (True, 2)])
def test_products_of_one_norm_share_the_launch_that_normalises(two_norms, launches):
    changes = FORMATS | {"model__num_layers": 1, "model__parallel_blocks": True, "model__parallel_norms": two_norms}
    changes |= MATRIX_CASES["bf16"] | {"model__tensor_names": "canonical", "cache__max_sequences": 4}
    program = compiled(small_spec(**changes), MMA_ROWS).plan.first
    running = [
        la for la in program.phase("decode").launches if la.layer == 0 and la.runs(decode_dims(4, 5), library=False)
    ]
    assert sum(program.kernel(la.kernel).label == "normalise" for la in running) == launches


QUANTISED = {
    "affine": {"weights": {"default": "affine4_g32_bf16"}, "activation_dtype": "bf16", **BIASES},
    "f16": {"weights": {"default": "affine8_g64_f16"}, "activation_dtype": "f16", "model__mlp__activation": "gelu"},
    "mixed": {
        "weights": {
            "default": "q4_k",
            "tensors": {"layers.*.attention.v": "q6_k", "layers.*.attention.o": "q5_k", "layers.*.mlp.down": "q6_k"},
        },
        "activation_dtype": "bf16",
    },
    "blocks of 32": {"weights": {"default": "q5_0"}, "activation_dtype": "bf16"},
}


@pytest.mark.parametrize(("op", "case", "rows"), few_of(ALL, QUANTISED, [2, 9, 30, 65]))
def test_several_rows_of_quantised_weights_with_mma(op, case, rows):
    """The weight is rounded to 16 bits, as where it is unpacked for MLX."""
    changes = FORMATS | {"model__vocab_size": 131, "model__context": 128, "prefill_chunk": 128} | QUANTISED[case]
    outputs = 64 if case == "affine" else 16
    geometry = Geometry.of(mma_min_rows=2, mma_max_rows=90, mma_simdgroups=3, mma_outputs=outputs)
    bench = OpBench(compiled(small_spec(**changes), geometry), sum_error=4e-3)
    labels = {k.label for k in bench.plan.first.kernels}
    assert {f"{label}_mma{tile}" for label in ("qkv", "o", "gate_up", "down", "logits") for tile in (8, 64)} <= labels
    run_rows(bench, "prefill", op, rows, "all" if op == LOGITS else "last")


STREAMED = {
    "alone": {"mma_simdgroups": 2, "mma_outputs": 32, "mma_stages": 2, "mma_threadgroups": 5},
    "together": {"mma_simdgroups": 2, "mma_outputs": 64, "mma_stages": 3, "mma_together": 2, "mma_threadgroups": 4},
}
BLOCKS = {
    "q4_k": {"weights": {"default": "q4_k", "tensors": {"*.v": "q6_k"}}, "activation_dtype": "bf16", **BIASES},
    "q5_k": {"weights": {"default": "q5_k", "tensors": {"*.o": "q4_k"}}, "activation_dtype": "f16"},
    "q6_k": {"weights": {"default": "q6_k", "tensors": {"*.up": "q5_k"}}, "activation_dtype": "bf16"},
    "q8_0": {"weights": {"default": "q8_0"}, "activation_dtype": "bf16"},
    "affine": {
        "weights": {
            "default": "affine4_g64_bf16",
            "tensors": {"*.o": "affine4_g32_f16", "*.down": "affine4_g128_bf16"},
        },
        "activation_dtype": "bf16",
    },
}


@pytest.mark.parametrize(("op", "case", "rows", "sizes"), few_of(ALL, BLOCKS, [2, 9, 16, 30, 50], STREAMED))
def test_blocks_through_threadgroup_memory(op, case, rows, sizes):
    """Ends of tiles, columns that simdgroups share unevenly, and rows that begin anywhere in a vector."""
    changes = FORMATS | {"model__hidden_size": 768, "model__mlp": {"intermediate_size": 768}, "model__num_layers": 1}
    changes |= {"model__vocab_size": 160, "model__context": 64, "prefill_chunk": 64, "model__tensor_names": "canonical"}
    changes |= {"model__attention": {"num_heads": 12, "num_kv_heads": 2, "head_dim": 64}} | BLOCKS[case]
    geometry = Geometry.of(mma_min_rows=2, mma_max_rows=64, **STREAMED[sizes])
    artifact = compiled(small_spec(**changes), geometry)
    streamed = {k.label for k in artifact.plan.first.kernels if "MLXR_COPY_AHEAD(to" in artifact.kernel_text(k.name)}
    assert {f"{label}_mma{tile}" for label in ("qkv", "o", "down", "logits") for tile in (8, 64)} <= streamed
    bench = OpBench(artifact, sum_error=1e-3 if op in (OUT, DOWN) else 4e-3)
    run_rows(bench, "prefill", op, rows, "all" if op == LOGITS else "last")


def test_blocks_for_rows_that_were_chosen_before(kernel_host):
    """A step has more tokens than rows, which are those of x too."""
    changes = FORMATS | {"model__num_layers": 1, "weights": {"default": "q4_k"}, "activation_dtype": "bf16"}
    sizes = STREAMED["alone"] | {"mma_simdgroups": 1, "chunk_last_rows": 1}
    artifact = compiled(small_spec(**changes), Geometry.of(mma_min_rows=2, mma_max_rows=64, **sizes))
    bench = OpBench(artifact, sum_error=1e-3)
    bench.run("prefill", [OUT], bench.batch([(each, 5) for each in bench.sequences(0, 0)]))
    assert bench.launches == {"last_o_mma16": 1}


def test_gates_and_ups_of_two_formats_are_not_multiplied_with_mma():
    weights = {"default": "q4_k", "tensors": {"layers.*.mlp.gate": "q6_k"}}
    changes = FORMATS | {"weights": weights, "activation_dtype": "bf16"}
    plan = compiled(small_spec(**changes), Geometry.of(mma_min_rows=2, mma_max_rows=90)).plan
    labels = {kernel.label for kernel in plan.first.kernels}
    assert "gate_up_rows" in labels and "gate_up_mma8" not in labels and "down_mma8" in labels


@pytest.mark.parametrize("rows", few([3, 30], [30]))
def test_more_simdgroups_than_columns_for_them(rows):
    changes = FORMATS | types("bf16", "bf16", hidden=64, intermediate=96)
    bench = OpBench(compiled(small_spec(**changes), Geometry.of(mma_min_rows=2, mma_simdgroups=12)), sum_error=4e-3)
    assert {"o_mma8", "down_mma32"} <= {kernel.label for kernel in bench.plan.first.kernels}
    for op in (QKV, OUT, GATED, DOWN):
        run_rows(bench, "prefill", op, rows)


def test_matrix_instructions_take_only_their_rows():
    plan = compiled(small_spec(**FORMATS | MATRIX_CASES["bf16"]), Geometry.of(mma_min_rows=4, mma_max_rows=6)).plan
    taken = {
        rows: [
            plan.first.kernel(one.kernel).label
            for one in plan.first.phase("prefill").launches
            if one.op == DOWN and (one.when is None or one.when.holds({"tokens": rows}))
        ]
        for rows in (3, 4, 6, 7)
    }
    assert taken == {3: ["down_rows"], 4: ["down_mma8"], 6: ["down_mma8"], 7: ["down_rows"]}


MIXED = {
    "default": "q4_k",
    "tensors": {
        "*.k": "affine4_g32_f16",
        "*.v": "q6_k",
        "*.up": "q6_k",
        "*.o": "affine4_g64_bf16",
        "*.down": "q5_k",
    },
}
MIXED_CASES = {
    "f32": {},
    "layer-norm": {"activation_dtype": "bf16", "model__norm": {"kind": "layer"}, "model__mlp__bias": True},
    "soft-cap": {"activation_dtype": "f16", "model__logit_softcap": 5.0},
}


@pytest.mark.parametrize(("op", "case", "geometry"), few_of(ALL, MIXED_CASES, MMA))
def test_formats_side_by_side_with_mma(kernel_host, op, case, geometry):
    """Several formats in one launch: of outputs, and of gates and ups."""
    attention = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 40, "qkv_bias": True}
    changes = {"model__hidden_size": 256, "model__attention": attention, "model__mlp": {"intermediate_size": 768}}
    spec = small_spec(**changes | {"model__vocab_size": 131, "weights": MIXED} | MIXED_CASES[case])
    artifact = compiled(spec, MMA[geometry])
    bench, step = mma_bench(artifact, kernel_host), artifact.plan.first.phase("decode")
    if op == LOGITS:
        op = next(one.op for one in step.launches if artifact.plan.first.kernel(one.kernel).label == "logits")
    run_rows(bench, "decode", op, 1)
