"""Folders that become GGUF files: the bits of known files, the model's logits, llama.cpp's logits, tokens, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.errors import MlxrError, SpecError, TokenizerError
from mlxr.quantise.folder_source import folder_source
from mlxr.quantise.gguf_vocabulary import vocabulary_facts
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.weights.gguf_parts import read_gguf_model
from mlxr_tests.converted_models import CASES, PROMPT, RECORDED, convert, make_folder
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.few import few
from mlxr_tests.storyteller import BF16, Q4_K_M, Q8_0, TOKENIZER
from mlxr_tests.vocabularies import WORDS, byte_level, metaspace, random_texts, sentencepiece_model

EXACT = mlxr.Changes(activation_dtype="f32", cache_dtype="f32", compute="exact")


@pytest.fixture
def storyteller(tmp_path: Path) -> Path:
    folder = tmp_path / "storyteller"
    folder.mkdir()
    for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize(("format", "known"), few([("q8_0", Q8_0), ("q4_k_m", Q4_K_M)], [("q8_0", Q8_0)]))
def test_a_folder_becomes_its_known_file(format: str, known: Path, storyteller: Path, tmp_path: Path) -> None:
    """Rows in llama.cpp's order, all tensors to the bit, all metadata."""
    out = tmp_path / "out.gguf"
    assert main(["quantize", str(storyteller), "-o", str(out), "--format", format]) == 0
    ours, theirs = read_gguf_model(out), read_gguf_model(known)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in theirs.tensors.items():
        own = ours.tensors[name]
        assert (own.shape, own.type) == (tensor.shape, tensor.type)
        pairs = ((out, own), (known, tensor))
        read = [path.read_bytes()[each.offset : each.offset + each.size_bytes] for path, each in pairs]
        assert read[0] == read[1], name
    assert theirs.metadata.items() <= ours.metadata.items()


@pytest.mark.parametrize("case", few(CASES, ["gemma3_text, seven layers"]))
def test_logits(case: str, tmp_path: Path) -> None:
    """The file's logits are the folder's, and llama.cpp's (`record_converted.py`)."""
    folder = make_folder(case, tmp_path / "in")
    path = convert(folder, tmp_path / "out.gguf")
    logits = [mlxr.load(each, host="reference", changes=EXACT).logits(PROMPT)[-1] for each in (folder, path)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-6 * max(3, float(np.abs(logits[0]).max())))
    shares = np.exp(logits[0].astype(np.float64) / 4)
    shares /= shares.sum()
    recorded = json.loads(RECORDED.read_text())[case]
    assert len(recorded) == 12
    for token, share in recorded:
        # Of gelu, llama.cpp has a table of halves.
        assert shares[token] == pytest.approx(
            share, rel=3e-3 if case.startswith(("gemma", "gpt2", "phi", "starcoder2")) else 2e-5, abs=2e-9
        )


def test_matrices_that_are_not_quantised_are_f32(tmp_path: Path) -> None:
    """Routers of experts, as llama.cpp's converter has them."""
    path = convert(make_folder("qwen3_moe", tmp_path / "in"), tmp_path / "out.gguf", "q8_0")
    tensors = read_gguf_model(path).tensors
    assert tensors["blk.0.ffn_gate_inp.weight"].type == tensors["blk.0.attn_norm.weight"].type == "F32"
    assert tensors["blk.0.ffn_up_exps.weight"].shape == (5, 40, 96)


def test_families_and_properties_that_are_refused(tmp_path: Path) -> None:
    for case, message in (
        ("mamba2", "the family mamba2 cannot be converted to GGUF here; these can: exaone, exaone4"),
        ("qwen3_moe, a dense layer", "the keys that are written would say that model.mlp"),
        ("olmo2", "llama.cpp reads no olmo2 whose heads together are not as wide as hidden_size"),
    ):
        config = config_of(case)
        folder = save_folder(build_model(config), config, tmp_path / case.replace(",", ""))
        (folder / "tokenizer.json").write_text(byte_level(WORDS["qwen2"]).to_str())
        with pytest.raises(SpecError, match=message):
            folder_source(folder)


def check_tokens(folder: Path, size: int) -> dict[str, Any]:
    facts = {key: fact.value for key, fact in vocabulary_facts(folder, size).items()}
    assert len(facts["tokenizer.ggml.tokens"]) == size
    ours, theirs = tokenizer_from_gguf(facts, "x"), load_tokenizer(folder)
    for text in random_texts(40):
        assert ours.encode(text) == theirs.encode(text)
    return facts


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o"])
def test_byte_level_tokenizers(pre: str, tmp_path: Path) -> None:
    tokenizer = byte_level(WORDS[pre], ignore_merges=pre == "llama-bpe")
    if pre == "qwen2":
        from tokenizers import normalizers

        tokenizer.normalizer = normalizers.NFC()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    config = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "chat_template": "{{ x }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    facts = check_tokens(tmp_path, 1510)
    assert (facts["tokenizer.ggml.pre"], facts["tokenizer.ggml.model"]) == (pre, "gpt2")
    assert facts["tokenizer.ggml.tokens"][-1] == "[PAD1509]" and facts["tokenizer.ggml.token_type"][-1] == 5
    assert facts["tokenizer.ggml.eos_token_id"] == facts["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert facts["tokenizer.ggml.padding_token_id"] == 0 and facts["tokenizer.chat_template"] == "{{ x }}"


def test_sentencepiece(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    facts = check_tokens(tmp_path, 1200)
    assert facts["tokenizer.ggml.model"] == "llama" and facts["tokenizer.ggml.add_bos_token"]


def test_sentencepiece_in_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(metaspace().to_str())
    facts = check_tokens(tmp_path, 900)
    assert facts["tokenizer.ggml.model"] == "llama" and facts["tokenizer.ggml.add_space_prefix"]


def test_a_way_to_split_that_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level("a+|[^a]").to_str())
    with pytest.raises(TokenizerError, match="splits text in a way that GGUF has no name for"):
        vocabulary_facts(tmp_path, 1504)


def test_a_folder_without_a_tokenizer(storyteller: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copyfile(storyteller / name, bare / name)
    with pytest.raises(MlxrError, match=r"holds no tokenizer\.json"):
        folder_source(bare)
    shutil.copyfile(Q8_0, bare / "model.gguf")  # whose tokenizer is used otherwise
    with pytest.raises(TokenizerError, match=r"bare: it has no tokenizer\.json; BPE and tokenizer\.model"):
        folder_source(bare)
