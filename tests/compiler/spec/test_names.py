"""Weight-name maps agree with real files, and a new one needs no Python."""

import re
from pathlib import Path

import gguf
import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec import names as names_module
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.names import TensorNames, known_families, load_tensor_names

PER_LAYER = [
    *("attention.norm", "attention.q", "attention.k", "attention.v", "attention.o"),
    *("mlp.norm", "mlp.gate", "mlp.up", "mlp.down"),
    *("attention.q_bias", "attention.k_bias", "attention.v_bias", "attention.o_bias"),
    *("mlp.gate_bias", "mlp.up_bias", "mlp.down_bias"),
]


def test_canonical_names_of_the_llama_family() -> None:
    expected = {"embedding", "final_norm", "output", *(f"layers.{{i}}.{name}" for name in PER_LAYER)}
    assert set(load_tensor_names("llama").tensors) == expected


def test_resolve() -> None:
    llama = load_tensor_names("llama")
    q = ("model.layers.12.self_attn.q_proj.weight", "blk.12.attn_q.weight", "unpermute_rope")
    assert llama.resolve("layers.{i}.attention.q", 12) == q
    assert llama.resolve("layers.12.attention.q") == q
    assert llama.resolve("embedding") == ("model.embed_tokens.weight", "token_embd.weight", None)
    assert llama.resolve("layers.0.attention.o_bias").gguf == "blk.0.attn_output.bias"
    transformed = {name for name, value in llama.tensors.items() if value.gguf_transform}
    assert transformed == {f"layers.{{i}}.attention.{name}" for name in ("q", "k", "q_bias", "k_bias")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.attention.qq", 'no tensor "layers.{i}.attention.qq"; did you mean "layers.{i}.attention.q"'),
        ("layers.{i}.attention.q", "give its layer"),
        ("layers.x.attention.q", "no tensor"),
    ],
)
def test_resolve_refuses(name: str, expected: str) -> None:
    with pytest.raises(SpecError, match=re.escape(expected)):
        load_tensor_names("llama").resolve(name)


def test_gguf_names_are_those_of_llama_cpp() -> None:
    """llama.cpp's own map from Hugging Face names gives the same GGUF names."""
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    for canonical, value in load_tensor_names("llama").tensors.items():
        stem, _, suffix = value.safetensors.replace("{i}", "2").rpartition(".")
        assert f"{theirs.get_name(stem)}.{suffix}" == value.gguf.replace("{i}", "2"), canonical


def test_every_tensor_of_the_bundled_file_has_a_name() -> None:
    llama, path = load_tensor_names("llama"), find_spec("storyteller")
    layers = range(load_spec(path).model.num_layers)
    wanted = {llama.resolve(name, layer).gguf for name in llama.tensors for layer in layers if "bias" not in name}
    found = {tensor.name for tensor in gguf.GGUFReader(path.parent / "storyteller-q8_0.gguf").tensors}
    assert wanted - found == {"output.weight"}
    assert found - wanted == set()


def test_ignored_tensors_depend_on_the_model() -> None:
    llama = load_tensor_names("llama")

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
    with pytest.raises(
        SpecError, match=r'no weight-name map for family "lama"; there is .*llama.*did you mean "llama"'
    ):
        load_tensor_names("lama")
    for family in ("../families/llama", "", "llama.yaml"):
        with pytest.raises(SpecError, match="no weight-name map"):
            load_tensor_names(family)


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(names_module, "_folder", lambda: tmp_path)
    load_tensor_names.cache_clear()
    yield tmp_path
    load_tensor_names.cache_clear()


def test_a_new_family_is_a_new_file(families: Path) -> None:
    (families / "gpt.yaml").write_text("tensors:\n  layers.{i}.mlp.up: {safetensors: 'h.{i}.up', gguf: 'blk.{i}.up'}\n")
    assert known_families() == ("gpt",)
    found = load_tensor_names("gpt")
    assert isinstance(found, TensorNames)
    assert found.resolve("layers.4.mlp.up") == ("h.4.up", "blk.4.up", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensors: {embedding: {safetensors: a, guf: b}}", r'(?s):1:39: unknown key .*did you mean "gguf"'),
        ("tensors: {embedding: {safetensors: 'a.{i}', gguf: b}}", "must hold {i} exactly as it does"),
        ("tensors: {}\nignored: ['(']", ":2:10: .*is not a regular expression"),
        ("tensors: {e: {safetensors: a, gguf: b, gguf_transform: permute}}", '"permute"; expected unpermute_rope'),
    ],
)
def test_wrong_family_files_are_refused(families: Path, text: str, expected: str) -> None:
    (families / "bad.yaml").write_text(text)
    with pytest.raises(SpecError, match=expected):
        load_tensor_names("bad")
