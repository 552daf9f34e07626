"""Small files to be quantised, and digests of what llama-quantize made of them (record_llama_quantize.py)."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mlxr.quantise.importance import write_importance
from mlxr.quantise.requantise import GgufSource
from mlxr_tests.storyteller import GOLDEN

RECORDED = Path(__file__).parents[2] / "data/llama_quantize.json"
ROWS = 3
"""Of each matrix, so many rows are compared: every row is quantised by itself."""
IMPORTANT = (
    *("q2_k", "q2_k_s", "q3_k_s", "q3_k_m", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_s", "q5_k_m", "q6_k", "q8_0"),
    *("iq4_nl", "iq4_xs"),
)
"""Mixtures that are recorded with importance matrices; with them, q4_0 and q5_0 have other formats in some tensors."""
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"layers": 20, "heads": 8, "kv_heads": 2},
    "llama, one query to a key": {"layers": 9, "heads": 4, "kv_heads": 4, "output": False},
    "llama, 70B": {"layers": 80, "heads": 16, "kv_heads": 2},
    "llama, 8 experts": {"layers": 18, "heads": 8, "kv_heads": 2, "experts": 8},
    "qwen3moe": {"layers": 12, "heads": 8, "kv_heads": 4, "experts": 16},
    "falcon": {"layers": 33, "heads": 8, "kv_heads": 1, "joined": True},
    "qwen2, rows of 288": {"layers": 3, "heads": 8, "kv_heads": 2, "columns": 288},
    "llama, rows of 40": {"layers": 3, "heads": 8, "kv_heads": 2, "columns": 40},
}
"""Models by their shape alone: the first word is GGUF's architecture."""


def write_shape(name: str, path: Path) -> Path:
    """Writes a model of a shape; its matrices have two rows."""
    facts = SHAPES[name]
    columns, experts = facts.get("columns", 256), facts.get("experts", 0)
    writer = gguf.GGUFWriter(path, name.split(",", maxsplit=1)[0])
    writer.add_block_count(facts["layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(columns)
    writer.add_feed_forward_length(columns)
    writer.add_head_count(facts["heads"])
    writer.add_head_count_kv(facts["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(columns)
    for tensor, shape in _tensors(facts, columns, experts).items():
        writer.add_tensor(tensor, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(facts: dict[str, Any], columns: int, experts: int) -> dict[str, tuple[int, ...]]:
    matrix, stack = (2, columns), (experts, 2, columns)
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": matrix, "output_norm.weight": (columns,)}
    if facts.get("output", True):
        found["output.weight"] = matrix
    for layer in range(facts["layers"]):
        attention = ("attn_qkv",) if facts.get("joined") else ("attn_q", "attn_k", "attn_v")
        found |= {f"blk.{layer}.{name}.weight": matrix for name in (*attention, "attn_output")}
        found |= {f"blk.{layer}.attn_norm.weight": (columns,), f"blk.{layer}.attn_output.bias": (columns,)}
        ends = ("_exps", stack) if experts else ("", matrix)
        found |= {f"blk.{layer}.ffn_{name}{ends[0]}.weight": ends[1] for name in ("gate", "up", "down")}
        if experts:
            found[f"blk.{layer}.ffn_gate_inp.weight"] = (experts, columns)
    return found


def write_importances(folder: Path) -> list[Path]:
    """Importance matrices of the tiny model with the same weights, in both forms."""
    random, sums = np.random.default_rng(3), {}
    for tensor in gguf.GGUFReader(GOLDEN / "tiny-f32.gguf").tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk"):
            # Numbers of few bits, whose quotients are the same in both forms and on all machines.
            squares = random.integers(1, 200, (1, int(tensor.shape[0]))).astype(np.float32)
            sums[tensor.name] = squares * 512, [512]
    write_importance(folder / "importance.gguf", sums, "a text", 1, 512)
    parts = [struct.pack("<i", len(sums))]
    for name, (squares, _) in sums.items():
        parts.append(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, squares.size))
        parts.append((squares / 512).astype("<f4").tobytes())
    (folder / "importance.dat").write_bytes(b"".join([*parts, struct.pack("<ii", 1, 6), b"a text"]))
    return [folder / "importance.gguf", folder / "importance.dat"]


def cut(source: GgufSource) -> GgufSource:
    """A model with the first rows of each tensor alone."""
    few = {
        name: replace(tensor, shape=(min(ROWS, tensor.shape[0]), *tensor.shape[1:]), copied=None)
        for name, tensor in source.tensors.items()
        if len(tensor.shape) > 1
    }
    return replace(source, tensors=few)


def rows_digest(path: Path) -> str:
    """A digest of names, types and the first rows of a file's matrices."""
    sha = hashlib.sha256()
    for tensor in gguf.GGUFReader(path).tensors:
        if len(tensor.shape) > 1:
            sha.update(f"{tensor.name} {tensor.tensor_type.name}".encode())
            sha.update(np.ascontiguousarray(tensor.data[:ROWS]).tobytes())
    return sha.hexdigest()[:32]


def formats_digest(path: Path) -> str:
    """A digest of names and types of a file's tensors."""
    listed = [f"{tensor.name} {tensor.tensor_type.name}" for tensor in gguf.GGUFReader(path).tensors]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32]
