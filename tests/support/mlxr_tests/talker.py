"""A small model of random weights that can chat and take tools, has a long context, and soon ends what it says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mlxr_tests.running_server import HERMES
from mlxr_tests.vocabularies import WORDS, byte_level, metadata_of

CONTEXT = 131072
_WIDTH, _LAYERS, _HIDDEN = 64, 2, 128
_END = 2.5
"""So great that about each tenth token ends the answer."""


def write_talker(path: Path, template: str = HERMES) -> Path:
    """Writes it as a GGUF file.

    Args:
        path: of the file.
        template: its chat template.
    """
    metadata = metadata_of(byte_level(WORDS["llama-bpe"]), "llama-bpe")
    end = metadata["tokenizer.ggml.eos_token_id"]
    return write_model(path, template, metadata, context=CONTEXT, likely={end: _END})


def write_model(
    path: Path, template: str, metadata: Mapping[str, Any], *, context: int, likely: Mapping[int, float]
) -> Path:
    """Writes a model of random weights as a GGUF file.

    Args:
        path: of the file.
        template: its chat template.
        metadata: of its tokenizer.
        context: tokens that it may have.
        likely: how much likelier than others some tokens are; 0 is as the others, below it is less.
    """
    num_tokens = len(metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = {int: writer.add_uint32, str: writer.add_string}.get(type(value), writer.add_array)
        add(key, value)
    writer.add_chat_template(template)
    writer.add_context_length(context)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(num_tokens)
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int, spread: float = 0.02) -> np.ndarray:
        return random.normal(0, spread, (rows, columns)).astype(np.float16)

    embedding, output = matrix(num_tokens, _WIDTH, 0.3), matrix(num_tokens, _WIDTH, 0.4)
    embedding[:, 0], output[:, 0] = 1, 0  # the first column says nothing but how likely tokens are
    for token, much in likely.items():
        output[token], output[token, 0] = 0, much
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    shapes = {
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (_WIDTH // 2, _WIDTH),
        "attn_v": (_WIDTH // 2, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_gate": (_HIDDEN, _WIDTH),
        "ffn_up": (_HIDDEN, _WIDTH),
        "ffn_down": (_WIDTH, _HIDDEN),
    }
    for layer in range(_LAYERS):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(*shape))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(_WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
