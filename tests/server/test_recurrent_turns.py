"""A conversation with a model whose layers keep a state: each turn computes only what is new, and says so."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mlxr.loading.options import LoadOptions
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr_tests.running_server import CHATML, EXACT, RunningServer, running_server
from mlxr_tests.vocabularies import WORDS, byte_level, metadata_of

_HIDDEN, _MLP, _KEYS, _VALUES = 64, 96, 2 * 32, 4 * 32
_METADATA: dict[str, Any] = {
    **{"context_length": 2048, "embedding_length": _HIDDEN, "block_count": 3, "feed_forward_length": _MLP},
    **{"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 32},
    **{"attention.value_length": 32, "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 16},
    **{"rope.dimension_sections": [3, 3, 2, 0], "rope.freq_base": 1e6, "full_attention_interval": 3},
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4},
    "ssm.inner_size": _VALUES,
}
_MLPS = {"ffn_gate": (_MLP, _HIDDEN), "ffn_up": (_MLP, _HIDDEN), "ffn_down": (_HIDDEN, _MLP)}
_DELTA = {"attn_qkv": (2 * _KEYS + _VALUES, _HIDDEN), "attn_gate": (_VALUES, _HIDDEN), "ssm_alpha": (4, _HIDDEN)}
_DELTA |= {"ssm_beta": (4, _HIDDEN), "ssm_out": (_HIDDEN, _VALUES), "ssm_conv1d": (2 * _KEYS + _VALUES, 4)}
_DELTA |= {"ssm_norm": (32,)}
_ATTENTION = {"attn_q": (128, _HIDDEN), "attn_k": (32, _HIDDEN), "attn_v": (32, _HIDDEN), "attn_output": (_HIDDEN, 64)}
_ATTENTION |= {"attn_q_norm": (32,), "attn_k_norm": (32,)}


def write_qwen(path: Path) -> Path:
    """Random weights in the layout of Qwen 3.5: two gated delta nets and attention."""
    metadata = metadata_of(byte_level(WORDS["llama-bpe"]), "llama-bpe")
    num_tokens = len(metadata["tokenizer.ggml.tokens"])
    writer, random = gguf.GGUFWriter(path, "qwen35"), np.random.default_rng(0)
    for key, value in (dict(metadata) | {f"qwen35.{key}": value for key, value in _METADATA.items()}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    writer.add_chat_template(CHATML)

    def tensor(name: str, *shape: int) -> None:
        array = np.ones(shape) if len(shape) == 1 else random.normal(0, shape[-1] ** -0.5, shape)
        writer.add_tensor(name, array.astype(np.float32))

    tensor("token_embd.weight", num_tokens, _HIDDEN)
    tensor("output.weight", num_tokens, _HIDDEN)
    tensor("output_norm.weight", _HIDDEN)
    for layer in range(3):
        for name, shape in (_MLPS | (_ATTENTION if layer == 2 else _DELTA)).items():
            tensor(f"blk.{layer}.{name}.weight", *shape)
        for name in ("attn_norm", "post_attention_norm"):
            tensor(f"blk.{layer}.{name}.weight", _HIDDEN)
        if layer < 2:
            writer.add_tensor(f"blk.{layer}.ssm_a", -np.linspace(0.01, 8, 4, dtype=np.float32))
            writer.add_tensor(f"blk.{layer}.ssm_dt.bias", np.full(4, -3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def server(folder: Path) -> Iterator[RunningServer]:
    """With tiers in the folder, and the model that is there."""
    tiers = TierSizes(disk_bytes=1 << 28, folder=folder / "tiers")
    options = LoadOptions(host="cpu", threads=1, changes=EXACT, tiers=tiers)
    source = ModelSource("qwen", str(folder / "qwen.gguf"), options, max_sequences=2)
    with running_server(lambda: ModelPool([source])) as running:
        yield running


def test_each_turn_computes_only_what_is_new(tmp_path: Path) -> None:
    write_qwen(tmp_path / "qwen.gguf")
    messages, known = [], 0
    for questions in (("Tell me of the sea, " + "and of rivers " * 30, "And of lakes?"), ("And of rain?", "And snow?")):
        with server(tmp_path) as running:  # again, in another process's place
            restored = 0
            for question in questions:
                messages.append({"role": "user", "content": question})
                body = {"model": "qwen", "messages": messages, "max_tokens": 12, "temperature": 0}
                answer = running.http.post("/v1/chat/completions", json=body).json()
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                # What was known is a prompt and what followed; its answer, as text, may become other tokens.
                assert cached >= known - 3
                restored = restored or (cached if known else 0)
                known = usage["prompt_tokens"]
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            (told,) = re.findall(r"^mlxr:restored_tokens_total\{.*\} (.*)$", running.http.get("/metrics").text, re.M)
            assert float(told) == (restored if len(messages) > 4 else 0), "the first turn after a restart"
    assert known > 100
