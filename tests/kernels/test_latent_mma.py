"""Attention to rows of latents with MMA: chunks anywhere in a context, many sequences, padding, and mistakes."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few_of
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

LABEL = "attend_latent_prefill_mma"
MMA = Geometry.of(prefill_mma=1)
CONTEXT = 96
CASES = {
    # heads, latent, key, type, mode; tiles of 8, 1, 2 and 4 tokens
    "5 heads": (5, 256, 32, "bf16", "paged"),
    "16 heads": (16, 256, 64, "f16", "contiguous"),
    "8 heads of 512": (8, 512, 64, "bf16", "paged"),
    "20 heads": (20, 256, 32, "f16", "paged"),
}
EXACTNESS = 4.0
"""Queries are rounded once, and weights are two numbers of 16 bits."""


def artifact_of(name: str, **changes) -> Artifact:
    heads, kv_rank, rope_dim, dtype, mode = CASES[name]
    latent = {"kv_rank": kv_rank, "q_rank": 32, "nope_dim": 16, "rope_dim": rope_dim, "v_dim": 16}
    sequences = {"max_sequences": 3} if mode == "paged" else {"max_sequences": 1}
    spec = small_spec(
        model__tensor_names="canonical",
        model__num_layers=1,
        model__attention={"num_heads": heads, "num_kv_heads": 1, "head_dim": 16 + rope_dim, "latent": latent},
        model__context=CONTEXT,
        prefill_chunk=64,
        activation_dtype=dtype,
        weights={"default": dtype},
        cache={"dtype": dtype, "mode": mode, "block_size": 8} | sequences,
        **changes,
    )
    return compiled(spec, MMA)


def attend(bench: OpBench, *parts: tuple[int, int]) -> None:
    """Some new tokens for sequences that have this many, (history, new)."""
    ops = [
        op.name for op in bench.artifact.graph("prefill").ops if op.kind in ("latent_norm_write", "latent_attention")
    ]
    seq_ids = bench.sequences(*(history for history, _ in parts))
    bench.launches.clear()
    bench.run("prefill", ops, bench.batch([(s, new) for s, (_, new) in zip(seq_ids, parts, strict=True)]))
    bench.clear(seq_ids)
    assert LABEL in bench.launches


CHUNKS = [(0, 1), (0, 17), (15, 1), (16, 33), (31, 8), (CONTEXT - 40, 40)]


@pytest.mark.parametrize(("name", "chunk"), few_of(CASES, CHUNKS), ids=str)
def test_chunks(kernel_host, name, chunk):
    attend(mma_bench(artifact_of(name), kernel_host, EXACTNESS), chunk)


def test_many_sequences(kernel_host):
    """Prompts beside a sequence that decodes, with a tile that two of them do not fill."""
    attend(mma_bench(artifact_of("5 heads"), kernel_host, EXACTNESS), (15, 1), (0, 30), (35, 7))


def test_what_does_not_suit_it_has_the_other_kernel():
    labels = {kernel.label for kernel in artifact_of("5 heads").plan.first.kernels}
    assert LABEL in labels
    spec = small_spec(
        model__tensor_names="canonical",
        model__attention={
            "num_heads": 5,
            "num_kv_heads": 1,
            "head_dim": 48,
            "latent": {"kv_rank": 96, "q_rank": 32, "nope_dim": 16, "rope_dim": 32, "v_dim": 16},
        },
        activation_dtype="bf16",
        weights={"default": "bf16"},
    )
    labels = {kernel.label for kernel in compiled(spec, MMA).plan.first.kernels}
    assert "attend_latent_prefill" in labels and LABEL not in labels


MISTAKES = [
    ("total = total * keep;", ""),
    ("key <= position[i / 2]", "key < position[i / 2]"),
    ("sums[i] = sums[i] * float4", "sums[i] = sums[0] * float4"),
    ("min(first_row + 8 * e + group, rows - 1)", "min(first_row + group, rows - 1)"),
    ("j / 2 * 8 + 2 * quad", "j / 2 * 8 + quad"),
    ("if (row < rows)", "if (true)"),
    ("simdgroup * 64u + quad * 16", "quad * 16"),
    ("    threadgroup_barrier(mem_flags::mem_threadgroup);\n    float4 score", "    float4 score"),
    ("    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }", "  }"),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel_host, old, new):
    artifact = artifact_of("5 heads")
    entry = artifact.kernel_entry(LABEL)
    text = artifact.kernel_text(entry.name)
    assert old in text
    mistaken = Artifact({**artifact.files, entry.file: text.replace(old, new)})
    with pytest.raises((Mismatch, KernelFault)):
        for chunk in ((0, 17), (16, 33)):
            attend(mma_bench(mistaken, kernel_host, EXACTNESS), chunk)
