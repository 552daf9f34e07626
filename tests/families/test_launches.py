"""The launches of a decode layer of every family, on both targets: 5, 6 with experts, 4 at most of a lone block.

Norms of queries and keys are one more where they are of all heads together, layer norms, or after the rotation.
A shared expert has none of its own, and blocks beside each other have one less: their last products are one launch.
Both are so unless matrix instructions or MLX's matmul multiply the rows of several sequences. The first products of
attention and of a Mamba-2 block beside it are one, too, where their rows are multiples of 16 bytes together, and so is
what lies between them and the last ones.
A gate of heads is one more where the heads are no multiple of 8: its rows do not join those of Q, K and V then.
Latent attention has one more where queries have two products. A vector of a layer has two more, its gate and its
projection; one launch of both was slower (experiment 41 of benchmarks/NOTES-gpu.md).
"""

from pathlib import Path

import pytest

from mlxr.compiler.artifact import ModelSpec
from mlxr.compiler.artifact.typical_steps import decode_dims
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.model import LayerType, Ssm
from mlxr.loading.imported_model import import_model
from mlxr_tests.family_models import CONFIGS, build_model, config_of, save_folder
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec

MOST, MOST_WITH_EXPERTS = 5, 6
SHORT = [case for case in CONFIGS if "experts" in str(CONFIGS[case]) and "," not in case][::3]
SHORT += ["qwen3", "gemma3_text", "falcon_h1", "falcon_h1, joined", "mamba2", "gpt_neox"]


def _rows_of_input(layer: LayerType) -> int:
    """Rows of all matrices of attention and of a Mamba-2 block that read the norm."""
    attention, ssm = layer.own_attention, layer.recurrent
    assert isinstance(ssm, Ssm), "the only kind beside attention"
    heads = attention.num_heads + 2 * attention.num_kv_heads
    return heads * attention.head_dim + 2 * ssm.inner + 2 * ssm.shared_width + ssm.num_heads


def _norms_apart(spec: ModelSpec, layer: int) -> bool:
    """Whether norms of queries and keys may be a launch of their own."""
    attention = spec.model.layer(layer).attention
    norm = None if attention is None else attention.qk_norm
    if norm is None:
        return False
    return norm.scope == "all" or "layer" in (norm.kind or spec.model.norm.kind) or norm.after_rope


def _bounds(spec: ModelSpec, layer: int) -> tuple[int, int]:
    """The least and the most launches of a layer."""
    of = spec.model.layer(layer)
    if len(of.blocks) == 1:
        return (2, 3) if of.mlp is not None else (3, 4)
    if len(of.blocks) == 3:  # attention and a recurrent block, whose launches are three, and an MLP
        apart = _rows_of_input(of) % 8 != 0  # rows of the joined projection would not be multiples of 16 bytes
        return (7, 7) if of.recurrent.norm else (5 + apart, 5 + apart)
    if spec.model.parallel_blocks:
        norms = _norms_apart(spec, layer)
        return 4 + norms, 4 + norms
    most = MOST_WITH_EXPERTS if of.mlp is not None and of.mlp.experts else MOST
    most += 2 * (spec.model.layer_embeddings is not None)
    attention = of.attention
    if attention is None:
        return 5, most
    gate = attention.output_gate
    most += _norms_apart(spec, layer)
    most += gate is not None and gate.scope == "head" and attention.num_heads % 8 != 0
    return 5, most + (attention.latent is not None and attention.latent.q_rank is not None)


@pytest.mark.parametrize("case", few(list(CONFIGS), SHORT))
def test_launches_of_a_decode_layer(case: str, tmp_path: Path) -> None:
    config = config_of(case)
    spec, _ = import_model(save_folder(build_model(config), config, tmp_path / "model"), ImportOptions(max_sequences=3))
    plan = compile_spec(spec).artifact.plan
    for target, program in plan.programs.items():
        for layer in range(spec.model.num_layers):
            least, most = _bounds(spec, layer)
            for sequences in {1, min(3, spec.cache.max_sequences)}:
                dims = decode_dims(sequences, 20)
                launches = [la for la in program.phase("decode").launches if la.layer == layer]
                labels = [program.kernel(la.kernel).label for la in launches if la.runs(dims, library=False)]
                assert least <= len(labels) <= most, f"{target}, layer {layer}, {sequences} sequences: {labels}"


def test_launches_of_experts_on_an_nvidia_card() -> None:
    """Choices of several sequences are ordered and multiplied in tiles, which takes more launches and less time."""
    spec = small_spec(
        model__num_layers=1,
        model__hidden_size=1024,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
        model__mlp={"intermediate_size": 256, "experts": {"count": 16, "per_token": 4, "router": "softmax_topk"}},
        model__tensor_names="canonical",
        cache={"mode": "paged", "max_sequences": 16},
        activation_dtype="bf16",
        weights={"default": "q4_k"},
    )
    program = compile_spec(spec, targets=("metal",), chip=find_chip("h200")).artifact.plan.first
    launches, found = [la for la in program.phase("decode").launches if la.layer == 0], dict[int, list[str]]()
    for sequences in (1, 3, 4, 16):
        running = [la for la in launches if la.runs(decode_dims(sequences, 20), library=True)]
        found[sequences] = [program.kernel(la.kernel).label for la in running]
    most = {1: 6, 3: 8, 4: 10, 16: 10}
    assert {n: len(labels) for n, labels in found.items() if len(labels) > most[n]} == {}, found
    assert {n for n, labels in found.items() if "experts_codes8" in labels and "route_order" in labels} == {4, 16}
