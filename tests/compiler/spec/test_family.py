"""Families agree with real files, and a new one needs no Python."""

import re
from pathlib import Path

import gguf
import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec import family as family_module
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.family import Family, known_families, load_family
from mlxr.compiler.spec.family_tensors import FileTensor, Selection, evaluate_size
from mlxr.compiler.spec.load import load_spec

PER_LAYER = [
    *("attention.norm", "attention.q", "attention.k", "attention.v", "attention.o"),
    *("mlp.norm", "mlp.gate", "mlp.up", "mlp.down"),
    *("attention.q_bias", "attention.k_bias", "attention.v_bias", "attention.o_bias"),
    *("mlp.gate_bias", "mlp.up_bias", "mlp.down_bias"),
    *("mtp.token_norm", "mtp.hidden_norm", "mtp.join", "mtp.norm"),
]


def test_canonical_names_of_the_llama_family() -> None:
    expected = {"embedding", "final_norm", "output", *(f"layers.{{i}}.{name}" for name in PER_LAYER)}
    assert set(load_family("llama").tensors) == expected


def test_resolve() -> None:
    llama = load_family("llama")
    layer_12 = llama.resolve("layers.{i}.attention.q", 12)
    assert layer_12 == llama.resolve("layers.12.attention.q")
    assert [entry.tensor for entry in layer_12.safetensors] == ["model.layers.12.self_attn.q_proj.weight"]
    entry, joined = layer_12.gguf
    assert joined.tensor == "blk.12.attn_qkv.weight"
    assert entry.tensor == "blk.12.attn_q.weight"
    assert entry.rows == Selection(shape=("heads", 2, "half_head"), strides=("head_dim", 1, 2), rope_layout="half")
    assert llama.resolve("embedding").gguf[0] == FileTensor(tensor="token_embd.weight")
    permuted = {name for name, value in llama.tensors.items() if value and value.gguf[0].rows}
    assert permuted == {f"layers.{{i}}.attention.{name}" for name in ("q", "k", "q_bias", "k_bias")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.attention.qq", 'no tensor "layers.{i}.attention.qq"; did you mean "layers.{i}.attention.q"'),
        ("layers.{i}.attention.q", "give the layer"),
        ("layers.x.attention.q", "no tensor"),
    ],
)
def test_resolve_refuses(name: str, expected: str) -> None:
    with pytest.raises(SpecError, match=re.escape(expected)):
        load_family("llama").resolve(name)


NEWER = {"deepseek32", "laguna", "minimax-m3"}
"""Architectures of llama.cpp that the latest `gguf` package does not have yet."""
BY_EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.0\.weight")


@pytest.mark.parametrize("family", [name for name in known_families() if load_family(name).gguf.names])
def test_gguf_names_are_those_of_llama_cpp(family: str) -> None:
    """Architectures and tensors: a family may have some that its GGUF files lack, but none by a wrong name."""
    names = load_family(family)
    assert set(names.gguf.names) <= set(gguf.MODEL_ARCH_NAMES.values()) | NEWER
    known = {name.format(bid=2) for name in gguf.TENSOR_NAMES.values()}
    arrays = {gguf.Keys.xIELU.ALPHA_P, gguf.Keys.xIELU.ALPHA_N}
    for canonical, value in names.tensors.items():
        assert value is not None
        for entry in value.gguf:
            name = entry.tensor.replace("{i}", "2").replace("{e}", "0")
            assert {name, name.rpartition(".")[0]} & known or name in arrays or BY_EXPERT.fullmatch(name), canonical


@pytest.mark.parametrize("family", known_families())
def test_every_tensor_is_a_tensor_of_models(family: str) -> None:
    """Canonical names are those of the family `canonical`, which has all."""
    assert load_family(family).tensors.keys() <= load_family("canonical").tensors.keys()


def test_sizes_are_sums_of_products() -> None:
    dimensions = {"heads": 6, "kv_heads": 2, "head_dim": 32}
    assert evaluate_size("heads * head_dim + 2 * kv_heads * head_dim", dimensions) == 6 * 32 + 2 * 2 * 32
    assert evaluate_size(7, {}) == evaluate_size("7", {}) == 7


def test_every_tensor_of_the_bundled_file_has_a_name() -> None:
    llama, path = load_family("llama"), find_spec("storyteller")
    layers = range(load_spec(path).model.num_layers)
    roles = [name for name in llama.tensors if "bias" not in name and "mtp" not in name]
    expected = {entry.tensor for name in roles for layer in layers for entry in llama.resolve(name, layer).gguf[:1]}
    present = {tensor.name for tensor in gguf.GGUFReader(path.parent / "storyteller-q8_0.gguf").tensors}
    assert expected - present == {"output.weight"}
    assert present - expected == set()


def test_the_output_and_its_bias_are_ignored_where_nothing_reads_them() -> None:
    patterns = load_family("phi").ignored_for(load_spec(find_spec("llama-3.1-8b")).model, output=False)
    for name in ("lm_head.weight", "lm_head.scales", "lm_head.bias", "output.bias"):
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_ignored_tensors_depend_on_the_model() -> None:
    llama = load_family("llama")

    def ignored(name: str, tensor: str) -> bool:
        return any(re.fullmatch(pattern, tensor) for pattern in llama.ignored_for(load_spec(find_spec(name)).model))

    for name in ("storyteller", "llama-3.1-8b"):
        assert ignored(name, "model.layers.11.self_attn.rotary_emb.inv_freq")
        assert not ignored(name, "model.layers.11.self_attn.q_norm.weight")
    assert [ignored(n, "lm_head.weight") for n in ("storyteller", "llama-3.2-1b", "llama-3.1-8b")] == [
        True,
        True,
        False,
    ]
    assert [ignored(n, "output.weight") for n in ("storyteller", "mistral-7b")] == [True, False]
    assert not ignored("storyteller", "blk.0.attn_output.weight")
    assert [ignored(n, "rope_freqs.weight") for n in ("storyteller", "llama-3.1-8b")] == [False, True]


def test_unknown_family() -> None:
    with pytest.raises(SpecError, match=r'no family "lama"; families are .*llama.*did you mean "llama"'):
        load_family("lama")
    for family in ("../families/llama", "", "llama.yaml"):
        with pytest.raises(SpecError, match="no family"):
            load_family(family)


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(family_module, "_folder", lambda: tmp_path)
    load_family.cache_clear()
    yield tmp_path
    load_family.cache_clear()


def test_a_new_family_is_a_new_file(families: Path) -> None:
    (families / "gpt.yaml").write_text("tensors:\n  layers.{i}.mlp.up: {safetensors: 'h.{i}.up', gguf: 'blk.{i}.up'}\n")
    assert known_families() == ("gpt",)
    family = load_family("gpt")
    assert isinstance(family, Family)
    up = family.resolve("layers.4.mlp.up")
    assert (up.safetensors[0].tensor, up.gguf[0].tensor) == ("h.4.up", "blk.4.up")
    (families / "gpt2.yaml").write_text(
        "extends: gpt\n"
        "tensors: {'layers.{i}.mlp.up': null, embedding: {gguf: e, safetensors: [a, {tensor: b, add: 1.0}]}}\n"
    )
    assert [entry.add for entry in load_family("gpt2").resolve("embedding").safetensors] == [0.0, 1.0]
    with pytest.raises(SpecError, match="no tensor"):
        load_family("gpt2").resolve("layers.4.mlp.up")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensors: {embedding: {safetensors: a, guf: b}}", r'(?s):1:39: unknown key .*did you mean "gguf"'),
        ("tensors: {embedding: {safetensors: 'a.{i}', gguf: b}}", "must hold {i} exactly as it does"),
        ("tensors: {}\nignored: ['(']", ":2:10: .*is not a regular expression"),
        (
            "tensors: {e: {gguf: {tensor: b, rows: {shape: [heads], strides: [1, 2]}}}}",
            "1 sizes in shape and 2 in strides",
        ),
        ("tensors: {e: {gguf: {tensor: b, rows: {shape: [hoods], strides: [1]}}}}", '"hoods" is not a dimension'),
        ("tensors: {e: {gguf: {tensor: b, rows: {shape: [heads - 1], strides: [1]}}}}", "is not a dimension"),
        ("config: {set: {num_layers: {key: n, defolt: 1}}}", "is not an expression"),
        ("config: {set: {num_layers: {call: exec, of: [x]}}}", '"exec" is not a function; functions are divide, '),
        ("config: {set: {num_layers: {call: sqrt, of: [x, y]}}}", "sqrt takes from 1 to 1 values"),
        ("config: {harmless: ['(']}", "is not a regular expression"),
    ],
)
def test_wrong_family_files_are_refused(families: Path, text: str, expected: str) -> None:
    (families / "bad.yaml").write_text(text)
    with pytest.raises(SpecError, match=expected):
        load_family("bad")
