"""Which part of a file a tensor belongs to."""

import pytest

from mlxr.compiler.formats.tensor_parts import FileKind, guessing_layers, part_beside, text_name


@pytest.mark.parametrize(
    ("name", "of_text"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.weight", "blk.0.attn_q.weight"),
    ],
)
def test_names_of_the_text_model(name: str, of_text: str) -> None:
    assert text_name(name) == of_text


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [
        ("safetensors", "model.visual.blocks.0.attn.qkv.weight", "images"),
        ("safetensors", "vision_tower.ln_pre.weight", "images"),
        ("safetensors", "audio_tower.layers.0.fc1.weight", "sound"),
        ("safetensors", "mtp.layers.0.mlp.up_proj.weight", "guesses"),
        ("safetensors", "model.mtp_layers.0.mlp.up_proj.weight", "guesses"),
        ("safetensors", "model.mtp_emb_norm.0.weight", "guesses"),
        ("safetensors", "model.layers.0.self_attn.indexer.k_norm.bias", "indexers"),
        ("safetensors", "model.layers.2.mlp.up_proj.weight", "guesses"),
        ("safetensors", "model.layers.1.mlp.up_proj.weight", None),
        ("safetensors", "model.layers.21.mlp.up_proj.weight", None),
        ("safetensors", "v.blk.0.attn_q.weight", None),
        ("gguf", "v.blk.0.attn_q.weight", "images"),
        ("gguf", "mm.0.bias", "images"),
        ("gguf", "a.conv1d.0.weight", "sound"),
        ("gguf", "a.weight", None),
        ("gguf", "blk.3.indexer.k_norm.bias", "indexers"),
        ("gguf", "vision_tower.ln_pre.weight", None),
    ],
)
def test_parts(kind: FileKind, name: str, part: str | None) -> None:
    guessing = guessing_layers(["model.layers.2.eh_proj.weight", "model.layers.3.mlp.down_proj.weight"])
    assert part_beside(name, kind, guessing) == part


def test_gguf_has_them_under_nextn() -> None:
    assert guessing_layers(["blk.7.nextn.eh_proj.weight"]) == ("blk.7.",)
