"""What H100 and H200 run for shapes that were measured there: a rule that meets them no longer changes a plan here."""

import pytest

from mlxr.compiler.artifact.typical_steps import chunk_dims, decode_dims
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec

LLAMA_8B = {
    "model__hidden_size": 4096,
    "model__attention": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "model__mlp": {"intermediate_size": 14336},
}
TINYLLAMA = {
    "model__hidden_size": 2048,
    "model__attention": {"num_heads": 32, "num_kv_heads": 4, "head_dim": 64},
    "model__mlp": {"intermediate_size": 5632},
}
QWEN3_MOE = {
    "model__hidden_size": 2048,
    "model__attention": {"num_heads": 32, "num_kv_heads": 4, "head_dim": 128},
    "model__mlp": {
        "intermediate_size": 768,
        "experts": {"count": 128, "per_token": 8, "router": "softmax_topk"},
    },
    "model__tensor_names": "canonical",
}
# By sequences, or 0 for a prompt, each kernel and what its text must have: tiles that matrix instructions read where
# they lie, weights that are asked for before x is there, or are to come to the cache, experts that are known before the
# launch before has ended, rows that threadgroups take one after the other, or a next launch that is let in early.
TILES, AHEAD, WANTED, EARLY = "MLXR_TILES(", "MLXR_AHEAD(", "MLXR_WANT_RUN(weight", "volatile"
PASSES, LEADS = "pass + 1 <", "MLXR_LEADS"
PLANS = {
    "8b-bf16": (
        LLAMA_8B,
        {"default": "bf16"},
        {
            0: {"attend_prefill_tiles_mma": "MLXR_ADD_ROWS_PRODUCTS(bf16, 16,"},
            16: {"attend_many_mma": "", "o_mma16": TILES, "down_mma16": TILES},
            64: dict.fromkeys(("qkv_mma64", "o_mma64", "gate_up_mma64", "down_mma64"), TILES)
            | {"attend_crowd_mma": ""},
        },
    ),
    "8b-q4_k": (
        LLAMA_8B,
        {"default": "q4_k"},
        {1: dict.fromkeys(("qkv", "o"), AHEAD) | dict.fromkeys(("gate_up", "down"), WANTED)},
    ),
    "8b-q4_k_m": (
        LLAMA_8B,
        {"default": "q4_k", "tensors": {"*.v": "q6_k", "*.down": "q6_k"}},
        {1: {"qkv": "mma_u8(", "o": "of_residual", "down": AHEAD}},
    ),
    "tinyllama-bf16": (
        TINYLLAMA,
        {"default": "bf16"},
        {
            1: dict.fromkeys(("qkv", "gate_up"), PASSES) | {"o": "sums[8]", "down": "sums[4]"},
            64: dict.fromkeys(("qkv_mma64", "o_mma64", "down_mma64"), TILES),
            0: {"attend_prefill_tiles_mma": "MLXR_ADD_ROWS_PRODUCTS(bf16, 8,"},
        },
    ),
    "tinyllama-q4_k": (TINYLLAMA, {"default": "q4_k"}, {1: dict.fromkeys(("qkv", "gate_up"), AHEAD) | {"o": LEADS}}),
    "tinyllama-q8_0": (TINYLLAMA, {"default": "q8_0"}, {1: {"qkv": ""}}),
    "qwen3-30b-a3b-q4_k": (
        QWEN3_MOE,
        {"default": "q4_k", "tensors": {"layers.*.mlp.router": "f32"}},
        {
            1: {"routed_experts": "", "experts_down": EARLY, "attend_mma": "which += 8u", "qkv": AHEAD, "o": LEADS},
            16: {"router_shared": "", "experts_codes8": "", "experts_down_codes8": EARLY},
            0: {"experts_wide40": "step < 8u;", "experts_down_wide40": "step < 6u;"},
        },
    ),
    "qwen3-30b-a3b-q6_k": (
        QWEN3_MOE,
        {"default": "q6_k", "tensors": {"layers.*.mlp.router": "f32"}},
        {0: {"experts_wide40": "step < 8u;", "experts_down_wide40": "step < 6u;"}},
    ),
}


@pytest.mark.parametrize("chip", few(["h100", "h200"], ["h200"]))
@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str, chip: str) -> None:
    changes, weights, expected = PLANS[name]
    cache = {"mode": "paged", "max_sequences": 64}
    shape = {"model__num_layers": 1, "model__vocab_size": 1000, **changes}
    spec = small_spec(**shape, cache=cache, activation_dtype="bf16", weights=weights)
    artifact = compile_spec(spec, targets=("metal",), chip=find_chip(chip)).artifact
    program = artifact.plan.first
    assert not program.step_kernels, "launches that overlap are faster"
    for sequences, kernels in expected.items():
        dims = decode_dims(sequences, 20) if sequences else chunk_dims(artifact.plan)
        launches = program.phase("decode" if sequences else "prefill").launches
        running = [program.kernel(la.kernel) for la in launches if la.runs(dims, library=False)]
        found = {kernel.label: "".join(artifact.kernel_sections(kernel.name)) for kernel in running}
        assert kernels.keys() <= found.keys(), f"{sequences} sequences: {sorted(found)}"
        assert [label for label, text in kernels.items() if text not in found[label]] == []
