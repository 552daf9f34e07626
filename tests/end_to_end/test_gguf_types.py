"""A tiny model in every type that llama.cpp's quantiser wrote it in, read as it is by Metal kernels."""

from pathlib import Path

import gguf
import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr_tests.family_oracle import logits_of, prompts
from mlxr_tests.few import few
from mlxr_tests.storyteller import GOLDEN


@pytest.fixture(autouse=True)
def _compiled_as_for_users() -> None:
    """Not as for users, unlike elsewhere in this folder: a kernel is compiled for a few tokens."""


TYPES = [path.stem.removeprefix("tiny-") for path in sorted(GOLDEN.glob("tiny-*.gguf"))]


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def load(kind: str, host: str) -> tuple[mlxr.Model, list[int]]:
    """The model in f32 but for its weights, and the tokens of the recorded logits."""
    path = GOLDEN / f"tiny-{kind}.gguf"
    spec, _ = import_model(path, ImportOptions())
    cache = spec.cache.model_copy(update={"dtype": "f32"})
    spec = spec.model_copy(update={"activation_dtype": "f32", "cache": cache})
    artifact = compile_spec(spec, targets=("metal",)).artifact
    return mlxr.load(artifact, path, host=host), np.load(GOLDEN / "tiny-llamacpp.npz")["tokens"].tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_llama_cpps(kind: str) -> None:
    """Within what its 8-bit activations cost."""
    model, tokens = load(kind, "reference")
    assert relative_error(model.logits(tokens), np.load(GOLDEN / "tiny-llamacpp.npz")[f"logits_{kind}"]) < 0.05


@pytest.mark.long  # the kernels of formats are compared one by one, whole models by test_storyteller.py
@pytest.mark.parametrize("kind", TYPES)
def test_kernels_give_the_references_logits(kind: str) -> None:
    """Those of the exact numbers to fp32 rounding."""
    prompts, answers = [], []
    for host in ("sim", "reference"):
        model, tokens = load(kind, host)
        prompts.append(model.logits(tokens))
        answers.append(model.start([tokens[:20]], max_tokens=3, ignore_eos=True).finish()[0].token_ids)
    assert relative_error(*prompts) < 2e-5
    assert answers[0] == answers[1]


DECODED = {
    "IQ1_S": 0,
    "IQ2_XXS": 0,
    "IQ2_XS": 0,
    "IQ2_S": 0,
    "IQ3_XXS": 0,
    "IQ3_S": 0,
    "TQ1_0": 52,
    "TQ2_0": 64,
    "NVFP4": 0,
}
"""Where blocks have their scale, as f16; those of NVFP4 are four bytes."""


def written(path: Path, kind: str | None, numbers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Writes the tiny model in f32, but for its feed-forward networks, and gives the numbers of these.

    Args:
        path: the file.
        kind: the type of the networks' matrices, of blocks at random; None: bf16.
        numbers: in bf16, these numbers.
    """
    reader, chance = gguf.GGUFReader(GOLDEN / "tiny-f32.gguf"), np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if array else None)
    for tensor in reader.tensors:
        if "ffn_" not in tensor.name or "norm" in tensor.name:
            writer.add_tensor(tensor.name, tensor.data)
        elif kind is None:
            bits = numbers[tensor.name].astype(np.float32).view(np.uint32)
            rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
            writer.add_tensor(tensor.name, rounded.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            type_, (rows, columns) = gguf.GGMLQuantizationType[kind], tensor.data.shape
            block, size = gguf.GGML_QUANT_SIZES[type_]
            raw = chance.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
            if kind == "NVFP4":
                raw[..., :4] = chance.integers(0, 40, (rows, columns // block, 4))
            else:
                scales = chance.uniform(0.001, 0.01, (rows, columns // block, 1)).astype(np.float16)
                raw[..., DECODED[kind] : DECODED[kind] + 2] = scales.view(np.uint8)
            raw = raw.reshape(rows, -1)
            writer.add_tensor(tensor.name, raw, raw_dtype=type_)
            numbers[tensor.name] = gguf.quants.dequantize(raw, type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


@pytest.mark.parametrize("kind", few(list(DECODED), ["IQ3_S", "NVFP4"]))
def test_types_that_no_kernel_reads_are_read_as_bf16(kind: str, tmp_path: Path) -> None:
    numbers = written(tmp_path / "blocks.gguf", kind, {})
    written(tmp_path / "bf16.gguf", None, numbers)
    tokens = prompts(640)
    blocks, plain = (logits_of(tmp_path / f"{name}.gguf", tokens, "reference")[0] for name in ("blocks", "bf16"))
    assert np.isfinite(plain).all() and np.array_equal(blocks, plain)
