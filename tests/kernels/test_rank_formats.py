"""Every weight format over two ranks: the tokens are those of the reference of the whole, and each reads its half.

Ranks are threads here; see `thread_ranks`. Files have random blocks, and the packages that define the formats decode
them for the reference.
"""

from functools import partial
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact, TensorSource, WeightFormat
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.stored_planes import plane_names
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.cpu import host as cpu_host
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr_tests.family_oracle import logits_in_steps, prompts
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_planes
from mlxr_tests.specs import small_spec
from mlxr_tests.thread_ranks import ThreadRanks

PLAIN = ["f16", "bf16", *(str(format) for format in WeightFormat if format.is_quantised and not format.affine)]
AFFINE = [
    *("affine2_g32_f16", "affine3_g64_bf16", "affine4_g64_f32", "affine5_g32_bf16", "affine6_g64_f32"),
    *("affine8_g128_f16", "affine4_g128_f16", "affine2_g128_bf16", "affine8_g32_f32"),
]
SHORT = ["q6_k", "affine3_g64_bf16"]
STORED = {None: mx.uint32, "u8": mx.uint8, "f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
"""MLX's types of the planes of a format."""


def spec_of(format: str, **changes: Any) -> ModelSpec:
    """A model whose every matrix can be divided in two without dividing a block of 256."""
    return small_spec(
        **{
            "model__hidden_size": 256,
            "model__vocab_size": 128,
            "model__mlp": {"intermediate_size": 512},
            "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
            "model__tensor_names": "canonical",
            "weights": {"default": format},
            "compute": "exact",
        }
        | changes
    )


def split(spec: ModelSpec) -> Artifact:
    return compile_spec(spec.model_copy(update={"parallel": Parallel(tensor=2)}), targets=["cpu"]).artifact


def write(folder: Path, artifact: Artifact) -> Path:
    """A file of the whole model, as the formats' makers would write it: GGUF, or safetensors if there are planes."""
    rng = np.random.default_rng(4)
    parts = {part.name: part for weight in artifact.plan.weights for part in weight.parts}
    if not any(len(part.format.planes) > 1 for part in parts.values()):
        path = folder / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, part in parts.items():
            (rows,) = planes_of(rng, part)
            if len(part.shape) == 1:
                writer.add_tensor(name, rows.view(np.float32).reshape(-1))
            else:
                writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType[part.format.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path
    path, tensors = folder / "model.safetensors", {}
    for part in parts.values():
        for plane, name, rows in zip(part.format.planes, plane_names(part.name), planes_of(rng, part), strict=False):
            dtype = STORED[plane.dtype] if part.format.is_quantised else mx.float32
            array = mx.array(rows).view(dtype)
            tensors[name] = array.reshape(-1) if len(part.shape) == 1 else array
    mx.save_safetensors(str(path), tensors)
    return path


def planes_of(rng: np.random.Generator, part: TensorSource) -> list[Any]:
    if len(part.shape) == 1:
        assert part.format == "f32", "norms"
        return [rng.uniform(0.5, 1.5, (part.shape[0], 1)).astype(np.float32).view(np.uint8)]
    scale = 1.0 if part.name == "embedding" else part.shape[1] ** -0.5
    return random_planes(rng, part.format, (part.shape[0], part.shape[1]), scale)


def reference_logits(artifact: Artifact, file: WeightFile, tokens: list[list[int]]) -> list[Any]:
    plan = artifact.plan
    host = make_host("reference", artifact, file, Arena(plan.arena))
    pager = Pager.from_geometry(plan.arena)
    return logits_in_steps(lambda batch: np.array(host.read(host.step(batch))), pager, plan.query_tile, tokens)


@pytest.mark.parametrize("format", few([*PLAIN, *AFFINE], SHORT))
def test_tokens_and_bytes(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(format)
    whole = compile_spec(spec, targets=["cpu"]).artifact
    file = open_weights(write(tmp_path, whole))
    tokens = prompts(spec.model.vocab_size)
    expected = reference_logits(whole, file, tokens)
    mapped: list[MappedWeights] = []

    def read_from(file: WeightFile) -> Any:
        mapped.append(MappedWeights(file))
        return partial(open_tensor, mapped[-1])

    monkeypatch.setattr(cpu_host, "read_from", read_from)
    ranks = ThreadRanks(split(spec), file)
    got = logits_in_steps(ranks.step, ranks.pager, ranks.plan.query_tile, tokens)
    for logits, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(logits, wanted, atol=2e-5 * float(np.abs(wanted).max()), rtol=0)
        np.testing.assert_array_equal(logits.argmax(axis=1), wanted.argmax(axis=1))
    sizes = {name: tensor.size_bytes for name, tensor in file.tensors.items()}
    norms = sum(size for name, size in sizes.items() if name.endswith("norm"))
    half = sum(sizes.values()) / 2
    for rank in mapped:
        assert rank.read_bytes == half + norms / 2, "norms are copied, everything else is divided"
        assert abs(rank.read_bytes - half) < 0.02 * half


@pytest.mark.parametrize(
    ("format", "changes", "message"),
    [
        ("q4_k", {"model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}}, "2 KV heads cannot be"),
        ("iq4_xs", {"model__mlp": {"intermediate_size": 256}}, "layers.0.mlp.down of 256 columns cannot be divided"),
        ("affine4_g128_f16", {"model__mlp": {"intermediate_size": 128}}, "it is divided by 128 columns"),
    ],
)
def test_blocks_that_would_be_divided(format: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        split(spec_of(format, **changes))
