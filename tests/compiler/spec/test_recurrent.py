"""Layers with recurrent blocks: what a spec may say, and what it means for stores and ranks."""

from typing import Any

import pytest
from pydantic import ValidationError

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.stores import StoreRow
from mlxr.compiler.parallel.divide_model import divide_model
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.heads_text import heads_of
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec, Ssm
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec

CONV = {"kind": "conv", "channels": 64, "taps": 4}
DELTA = {"kind": "delta", "num_heads": 4, "num_key_heads": 4, "key_dim": 24, "value_dim": 40, "taps": 3}
TYPES = {"conv": {"blocks": ["recurrent", "mlp"]}, "full": {}}


def hybrid(**changes: Any) -> ModelSpec:
    """Layers of convolution, attention and convolution."""
    given: dict[str, Any] = {"model__recurrent": CONV, "model__layer_types": TYPES, "model__num_layers": 3}
    return small_spec(**{**given, "model__layer_pattern": ["conv", "full"], **changes})


def rows_of(spec: ModelSpec) -> dict[str, tuple[tuple[int, ...] | None, ...]]:
    stores = arena_geometry(spec, GeometryTable()).stores
    return {s.name: tuple(r.shape if isinstance(r, StoreRow) else None for r in s.rows) for s in stores}


def test_layers_have_what_their_blocks_name() -> None:
    model = hybrid().model
    conv, full, _ = model.layers
    assert conv.attention is None and conv.rope is None and conv.recurrent == model.recurrent and conv.mlp == model.mlp
    assert full.attention == model.attention and full.recurrent is None
    assert model.attentions == (model.attention,) and conv.rotary_dim == 0


def test_a_spec_reads_back() -> None:
    for spec in (hybrid(), small_spec(model__recurrent=CONV, model__blocks=["recurrent"])):
        assert parse_spec(dump_spec(spec)) == spec
    plain = dump_spec(small_spec())
    assert "recurrent:" not in plain and " blocks:" not in plain


def test_a_model_without_attention_needs_none() -> None:
    spec = small_spec(model__recurrent=CONV, model__blocks=["recurrent"], model__tensor_names="canonical")
    data = spec.model_dump()
    del data["model"]["attention"], data["model"]["mlp"]
    bare = ModelSpec.model_validate(data)
    assert bare.model.attention is None and bare.model.attentions == ()
    assert rows_of(bare) == {"conv_states": ((64, 3), (64, 3))}
    assert set(bare.matrix_shapes()) == {"embedding", "output"} | {
        f"layers.{layer}.recurrent.{role}" for layer in range(2) for role in "bcxo"
    }


def test_stores_have_rows_where_layers_have_states() -> None:
    rows = rows_of(hybrid())
    assert rows["k_arena"] == rows["v_arena"] == (None, (2, 40), None)
    assert rows["conv_states"] == ((64, 3), None, (64, 3))


def test_ranks_have_their_channels() -> None:
    spec = hybrid(parallel={"tensor": 2}, model__tensor_names="canonical")
    arena = arena_geometry(spec, GeometryTable())
    parts = divide_model(spec, source_graph(spec), arena)
    assert [part.share.units for part in parts] == [{64: (0, 32)}, {64: (32, 64)}]
    for part, channels in zip(parts, ((0, 32), (32, 64)), strict=True):
        states = next(store for store in part.arena.stores if store.name == "conv_states")
        assert states.row(0) == StoreRow((32, 3), states.row(0).dtype)
        assert part.slices["layers.0.recurrent.o"].columns == part.slices["layers.0.recurrent.b"].rows == channels
        assert part.slices["layers.0.recurrent.conv"].rows == (4 * channels[0], 4 * channels[1])


def test_heads_are_divided_where_one_group_has_all() -> None:
    """A norm of all heads together is shared by ranks, unless the gate comes after it."""
    sizes = {"kind": "ssm", "num_heads": 6, "head_dim": 24, "state_dim": 20}
    assert Ssm(**sizes).units == 6 and Ssm(**sizes).conv_whole == 40
    assert Ssm(**sizes, num_groups=3).units == 3
    assert Ssm(**sizes, norm_before_gate=True).units == 1


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no section": ({"model__layer_types": TYPES, "model__recurrent": None}, "nothing says what it is"),
    "no block": ({"model__layer_types": {"conv": {}, "full": {}}}, "no layer has it: no blocks name it"),
    "twice": ({"model__blocks": ["mlp", "mlp"]}, "mlp is named twice"),
    "mlp first": (
        {"model__layer_types": {**TYPES, "full": {"blocks": ["mlp", "attention"]}}},
        "mlp is what a layer ends with",
    ),
    "attention unnamed": (
        {"model__layer_types": {"full": {}, "conv": {"blocks": ["recurrent"], "attention": {"num_heads": 2}}}},
        "the layers do not have it",
    ),
    "different": (
        {"model__layer_types": {**TYPES, "full": {"blocks": ["recurrent"], "recurrent": {"taps": 3}}}},
        "states of all have one shape",
    ),
    "parallel blocks": ({"model__parallel_blocks": True}, "parallel blocks are attention and mlp"),
    "rank": ({"model__recurrent": DELTA | {"rank": 20}}, "rank 20 is not a multiple of 8"),
    "channels": ({"model__recurrent": {**CONV, "channels": 60}}, "channels 60 is not a multiple of 8"),
    "vectors": (
        {
            "model__layer_embeddings": {"width": 8},
            "model__norm": {"placement": "sandwich"},
            "model__layer_types": {**TYPES, "full": {"blocks": ["attention"]}},
        },
        "gates of vectors have the activation of mlp",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str) -> None:
    changes, message = MISTAKES[mistake]
    with pytest.raises((ValidationError, SpecError), match=message):
        hybrid(**changes)


def test_a_block_without_a_section_is_missing() -> None:
    text = dump_spec(small_spec()).replace("  attention:", "  blocks: [recurrent]\n  attention:")
    with pytest.raises(SpecError, match=r"model\.recurrent is missing; expected a section"):
        parse_spec(text)


def test_heads_and_blocks_in_words() -> None:
    alone = small_spec(model__recurrent=CONV, model__blocks=["recurrent"], model__tensor_names="canonical")
    assert heads_of(hybrid().model) == "6 heads on 2 KV heads, short convolutions of 64 channels"
    assert heads_of(alone.model) == "short convolutions of 64 channels"
