"""Weight formats of a spec: classes, exceptions by name, and shapes that a format cannot hold."""

import gguf
import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr_tests.specs import small_spec

GGUF = [fmt for fmt in WeightFormat if fmt.is_quantised and fmt.gguf]
AFFINE = [fmt for fmt in WeightFormat if fmt.affine]
TEXT = """\
name: formats
model:
  vocab_size: 64
  hidden_size: 256
  num_layers: 3
  context: 32
  attention: {num_heads: 4, num_kv_heads: 2}
  mlp: {intermediate_size: 512}
weights:
  default: q4_k
  norm: f16
  output: q8_0
  tensors:
    "layers.[02].attention.v": q6_k
    "layers.*.mlp.down": q5_k
    "layers.2.*": bf16
"""


@pytest.mark.parametrize("fmt", GGUF)
def test_blocks_are_those_of_gguf(fmt: WeightFormat) -> None:
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[str(fmt.gguf)]]
    assert (fmt.block_elements, fmt.block_bytes) == sizes
    assert [(plane.name, plane.block_bytes) for plane in fmt.planes] == [("", sizes[1])]
    assert fmt.dtype == "f32" and fmt.row_bytes(512) == 512 // sizes[0] * sizes[1]


@pytest.mark.parametrize("fmt", AFFINE)
def test_blocks_of_affine_formats_are_those_of_their_name(fmt: WeightFormat) -> None:
    planes = {plane.name: plane.block_bytes for plane in fmt.planes}
    bits, elements = int(fmt[6]), int(fmt.split("_")[1][1:])
    scale = {"f16": 2, "bf16": 2, "f32": 4}[fmt.split("_")[2]]
    assert planes == {"weight": elements * bits // 8, "scales": scale, "biases": scale}
    assert fmt.block_elements == elements


@pytest.mark.parametrize("fmt", [fmt for fmt in WeightFormat if len(fmt.planes) > 1])
def test_a_block_is_all_its_planes(fmt: WeightFormat) -> None:
    assert [plane.name for plane in fmt.planes] == ["weight", "scales", "biases"][: len(fmt.planes)]
    assert fmt.block_bytes == sum(plane.block_bytes for plane in fmt.planes)
    assert fmt.dtype == "f32" and fmt.row_bytes(512) == 512 // fmt.block_elements * fmt.block_bytes


@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16"])
def test_float_formats_are_their_own_type(fmt: str) -> None:
    weight_format = WeightFormat(fmt)
    assert (
        weight_format.dtype == fmt
        and not weight_format.is_quantised
        and weight_format.row_bytes(3) == 3 * weight_format.dtype.size_bytes
    )


def test_the_first_pattern_that_matches_counts() -> None:
    weights = parse_spec(TEXT, "spec.yaml").weights
    expected = {
        "embedding": "q4_k",
        "output": "q8_0",
        "layers.0.attention.q": "q4_k",
        "layers.0.attention.v": "q6_k",
        "layers.1.attention.v": "q4_k",
        "layers.2.attention.v": "q6_k",
        "layers.1.mlp.down": "q5_k",
        "layers.2.mlp.down": "q5_k",
        "layers.2.mlp.up": "bf16",
    }
    assert {name: weights.of_tensor(name) for name in expected} == expected


def test_vectors_are_never_quantised() -> None:
    weights = parse_spec(TEXT, "spec.yaml").weights
    assert weights.of_vector("layers.0.attention.norm") == "f16"
    assert weights.of_vector("layers.0.attention.q_bias") == "f32"


def test_formats_survive_a_round_trip() -> None:
    spec = parse_spec(TEXT, "spec.yaml")
    assert parse_spec(dump_spec(spec), "dump.yaml") == spec


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match=r'(?s)"layers.9.mlp.down" matches no matrix of the model.*layers.0.mlp.down'):
        parse_spec(TEXT.replace("layers.*.mlp.down", "layers.9.mlp.down"), "spec.yaml")


@pytest.mark.parametrize(("fmt", "block"), [("q8_0", 32), ("q4_k", 256)])
def test_rows_that_blocks_do_not_fill_are_refused(fmt: str, block: int) -> None:
    with pytest.raises(ValueError, match=f"has rows of 48 elements, which {fmt} cannot hold: its blocks have {block}"):
        small_spec(weights={"default": fmt})


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r'weights.default is "q4_x"; expected one of f32, f16, bf16, .*q4_k'):
        parse_spec(TEXT.replace("default: q4_k", "default: q4_x"), "spec.yaml")
