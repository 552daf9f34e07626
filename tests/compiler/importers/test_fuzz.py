"""Metadata by strangers: whatever it says, there is a spec or a SpecError, soon."""

from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.gguf import spec_from_gguf
from mlxr.compiler.importers.rules import architectures
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr_tests.hostile_files import CASES

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "llama.embedding_length": 256,
    "llama.block_count": 2,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 640,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
EXTRA = [
    "llama.attention.key_length",
    "llama.attention.scale",
    "llama.rope.dimension_count",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.attention.sliding_window",
    "llama.vocab_size",
    "general.name",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "rms_norm_eps",
    "head_dim",
    "sliding_window",
    "sliding_window_pattern",
    "layer_types",
    "no_rope_layers",
    "quantization",
    "quantization_config",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "decoder_sparse_step",
    "logits_scaling",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.attention.sliding_window_pattern",
    "tie_word_embeddings",
    "architectures",
    "",
    "\x00",
]
NAMES = [
    "token_embd.weight",
    "output.weight",
    "blk.0.attn_q.weight",
    "blk.0.attn_q.bias",
    "blk.00.attn_q.weight",
    "blk.999999999999.ffn_up.weight",
    "model.embed_tokens.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.1.self_attn.o_proj.bias",
    "../../x",
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=0, max_value=1024),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["linear", "llama3", "none", "default", 10**30, -(2**63), 2**31]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=4), st.dictionaries(st.sampled_from(EXTRA), scalars, max_size=4))
keys = st.one_of(st.sampled_from([*GGUF, *CONFIG, *EXTRA]), st.text(max_size=20))
changes = st.dictionaries(keys, values, max_size=5)
shapes = st.lists(st.integers(min_value=0, max_value=2**59), max_size=4).map(tuple)
facts = st.builds(TensorFact, shapes, st.sampled_from(["F32", "BF16", "Q4_K", "Q5_1", "I32", "", "F8_E4M3"]))
tensors = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=16)), facts, max_size=6)


def kinds_of(kind: Literal["gguf", "config"]) -> st.SearchStrategy[str]:
    """Names of every architecture, so that every family's rules are met, which are read when the test runs."""
    return st.deferred(lambda: st.sampled_from(sorted({architecture.name for architecture in architectures(kind)})))


TABLE = {"token_embd.weight": TensorFact((640, 256), "F16"), "model.embed_tokens.weight": TensorFact((640, 256), "F16")}


@settings(max_examples=CASES * 3 // 10, deadline=2000)
@given(changes=changes, more=tensors, name=st.text(max_size=30), whole=st.booleans(), kind=kinds_of("gguf"))
def test_gguf(changes: dict[str, Any], more: dict[str, TensorFact], name: str, whole: bool, kind: str) -> None:
    changes = {key.replace("llama.", f"{kind}.", 1): value for key, value in (GGUF | changes).items()}
    changes["general.architecture"] = kind
    all_tensors = (TABLE if whole else {}) | more
    try:
        spec = spec_from_gguf(changes, all_tensors, name, "x.gguf")
    except SpecError as error:
        assert str(error).startswith("x.gguf: ")
        assert len(str(error)) < 20_000
    else:
        assert isinstance(spec, ModelSpec)


@settings(max_examples=CASES * 3 // 10, deadline=2000)
@given(changes=changes, more=tensors, name=st.text(max_size=30), whole=st.booleans(), kind=kinds_of("config"))
def test_config(changes: dict[str, Any], more: dict[str, TensorFact], name: str, whole: bool, kind: str) -> None:
    try:
        spec = spec_from_config(
            CONFIG | {"model_type": kind} | changes, (TABLE if whole else {}) | more, name, "config.json"
        )
    except SpecError as error:
        assert str(error).startswith("config.json: ")
        assert len(str(error)) < 20_000
    else:
        assert isinstance(spec, ModelSpec)


@given(
    factors=st.lists(st.floats(), min_size=32, max_size=32),
    original=st.integers(),
    names=st.sets(st.sampled_from(["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])),
)
def test_rope_factors(factors: list[float], original: int, names: set[str]) -> None:
    metadata = GGUF | {"llama.rope.scaling.original_context_length": original}
    try:
        spec_from_gguf(metadata, TABLE, "x", "x.gguf", factors={tensor: factors for tensor in names})
    except SpecError as error:
        assert str(error).startswith("x.gguf: ")
