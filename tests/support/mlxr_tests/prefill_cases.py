"""Cases of prefill attention by matrix instructions."""

from typing import Any

from mlxr_tests.attention_cases import Case
from mlxr_tests.op_bench import OpBench

OPS = ["layers.1.attention.cache_write", "layers.1.attention.attended"]
CASES = [
    Case(8, 1, 64, "bf16", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 128, "bf16", "bf16", "layer", "contiguous", 16, None, "llama3"),
    Case(16, 2, 64, "f16", "f16", "block", "paged", 32, None, "interleaved"),
    Case(4, 4, 128, "f16", "f16", "block", "paged", 4, 20, "half"),
    Case(14, 2, 64, "bf16", "bf16", "block", "contiguous", 16, None, "half-of-it"),
    Case(20, 1, 64, "bf16", "bf16", "layer", "paged", 16, 70, "half"),
    Case(12, 2, 64, "bf16", "bf16", "layer", "paged", 16, 16, "none", extras="softcap"),
    Case(6, 2, 64, "bf16", "bf16", "block", "paged", 16, None, "none", extras="alibi-sinks"),
    Case(8, 2, 64, "f16", "f16", "layer", "paged", 16, None, "none", extras="sinks"),
    Case(8, 2, 128, "bf16", "bf16", "block", "paged", 16, 40, "half", extras="chunks"),
    Case(8, 2, 64, "f16", "f16", "layer", "paged", 16, None, "half", extras="element-gate"),
    Case(6, 2, 128, "bf16", "bf16", "block", "paged", 8, 40, "yarn-half-of-it", extras="everything"),
]
PAGED = [case for case in CASES if case.mode == "paged"]


EXACTNESS = 2.0
"""Two numbers of bf16 are 16 bits of one of f32."""


def prefill(bench: OpBench, *parts: tuple[int, int]) -> set[Any]:
    """Some new tokens for sequences that have this many, (history, new); the attention kernels that ran."""
    seq_ids = bench.sequences(*(history for history, _ in parts))
    bench.launches.clear()
    bench.run("prefill", OPS, bench.batch([(s, new) for s, (_, new) in zip(seq_ids, parts, strict=True)]))
    bench.clear(seq_ids)
    return set(bench.launches) - {"rope_cache_write"}
