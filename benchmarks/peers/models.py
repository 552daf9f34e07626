"""The models that engines are compared on, written once into a cache folder.

storyteller is the bundled one. The others have random weights (normal, 0.02): speed does not depend on them. One set of
bf16 numbers is written as a Hugging Face folder and as F16 and BF16 GGUF files, from which llama.cpp's own quantiser
makes the rest, so that every engine reads the same model in the form it prefers.
"""

import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("f16", "bf16", "q8_0", "q4_0", "q4_k_m")
"""The formats of a run that names none."""
MORE_FORMATS = ("q4_1", "q5_0", "q5_1", "q2_k", "q3_k_m", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs", "affine4")
"""The other formats that a run may name: GGUF files by llama.cpp's names, and MLX's 4 bits in groups of 64."""
_SPECIAL = ("<unk>", "<s>", "</s>")
_WIDTHS = {"BF16": 2, "U32": 4}


@dataclass(frozen=True)
class Shape:
    """A Llama's dimensions."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    def matrices(self) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
        """Each tensor: its name in safetensors and in GGUF, its shape, and its heads if GGUF permutes its rows."""
        kv = self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", "token_embd.weight", (self.vocab, self.hidden), 0
        for i in range(self.layers):
            here, there = f"model.layers.{i}", f"blk.{i}"
            yield f"{here}.input_layernorm.weight", f"{there}.attn_norm.weight", (self.hidden,), 0
            yield f"{here}.self_attn.q_proj.weight", f"{there}.attn_q.weight", (self.hidden, self.hidden), self.heads
            yield f"{here}.self_attn.k_proj.weight", f"{there}.attn_k.weight", (kv, self.hidden), self.kv_heads
            yield f"{here}.self_attn.v_proj.weight", f"{there}.attn_v.weight", (kv, self.hidden), 0
            yield f"{here}.self_attn.o_proj.weight", f"{there}.attn_output.weight", (self.hidden, self.hidden), 0
            yield f"{here}.post_attention_layernorm.weight", f"{there}.ffn_norm.weight", (self.hidden,), 0
            yield f"{here}.mlp.gate_proj.weight", f"{there}.ffn_gate.weight", (self.intermediate, self.hidden), 0
            yield f"{here}.mlp.up_proj.weight", f"{there}.ffn_up.weight", (self.intermediate, self.hidden), 0
            yield f"{here}.mlp.down_proj.weight", f"{there}.ffn_down.weight", (self.hidden, self.intermediate), 0
        yield "model.norm.weight", "output_norm.weight", (self.hidden,), 0
        yield "lm_head.weight", "output.weight", (self.vocab, self.hidden), 0


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("100m", 768, 12, 12, 4, 2048, 32000, 2304),
        Shape("tinyllama", 2048, 22, 32, 4, 5632, 32000, 2304),
    )
}
"""Random models by name; the context holds 2000 tokens and what is decoded after them."""


@dataclass(frozen=True)
class Files:
    """One model in one format, as each engine reads it."""

    model: str
    format: str
    source: Path
    """What MLXR and llama.cpp read: a GGUF file; for `affine4` a folder, which llama.cpp cannot read."""
    folder: Path
    """The bf16 Hugging Face folder."""


def prepare(
    model: str, format_name: str, cache: Path, say: Callable[[str], None], programs: Path | None = None
) -> Files:
    """The files of a model in a format; written if they are not there.

    Args:
        model: `storyteller` (Q8_0 only) or one of SHAPES.
        format_name: one of FORMATS or MORE_FORMATS.
        cache: where random models are kept.
        say: called with what is being written.
        programs: the folder of llama.cpp's programs; None: llama-cpp-python quantises.
    """
    if model == "storyteller":
        gguf = ROOT / "models/storyteller/storyteller-q8_0.gguf"
        return Files(model, format_name, gguf, ROOT / "tests/data/storyteller")
    shape = SHAPES[model]
    folder = cache / model
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / f"{model}-{format_name}.gguf"
    if not (folder / "config.json").is_file():
        say(f"writing {folder}")
        write_folder(shape, folder)
    if format_name == "affine4":
        target = folder / format_name
        if not target.is_dir():
            say(f"writing {target}")
            _quantise_folder(folder, target)
        return Files(model, format_name, target, folder)
    if not gguf.is_file():
        say(f"writing {gguf}")
        staging = gguf.with_suffix(".part")
        if format_name in ("f16", "bf16"):
            _write_gguf(shape, format_name, staging)
        else:
            _quantise(prepare(model, "bf16", cache, say).source, staging, format_name, programs)
        staging.replace(gguf)
    return Files(model, format_name, gguf, folder)


def _tensor(name: str, shape: tuple[int, ...]) -> Array:
    """A tensor's bf16 numbers as their 16 bits; they follow from its name."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    numbers *= np.float32(0.02)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def write_folder(
    shape: Shape, folder: Path, make: Callable[[str, tuple[int, ...]], Array] = _tensor, theta: float = 1e4
) -> None:
    """Writes a bf16 model as a Hugging Face folder, without a tokenizer.

    Args:
        shape: its dimensions.
        folder: an existing folder.
        make: gives a tensor's bf16 numbers as their 16 bits, by its name and shape.
        theta: base of RoPE.
    """
    tensors = {name: ("BF16", dims, partial(make, name, dims)) for name, _, dims, _ in shape.matrices()}
    write_safetensors(folder / "model.safetensors", tensors)
    write_config(shape, folder, theta)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], Callable[[], Array]]]) -> None:
    """Writes a safetensors file.

    Args:
        path: the file.
        tensors: by name: the type, by the format's own name; the shape; and a function that gives the numbers when it
            is their turn, as an array of the same bytes.
    """
    header, position = {}, 0
    for name, (dtype, dims, _) in tensors.items():
        end = position + _WIDTHS[dtype] * int(np.prod(dims))
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    staging = path.with_suffix(".part")
    with staging.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, _, make in tensors.values():
            make().tofile(stream)
    staging.replace(path)


def write_config(shape: Shape, folder: Path, theta: float = 1e4, **more: Any) -> None:
    """Writes a folder's config.json.

    Args:
        shape: the model's dimensions.
        folder: where to.
        theta: base of RoPE.
        more: further keys.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
    }
    (folder / "config.json").write_text(json.dumps(config | more, indent=1) + "\n", encoding="utf-8")


def gguf_writer(shape: Shape, path: Path, file_type: str, theta: float = 1e4) -> Any:
    """A gguf-py writer with all of a model except its tensors.

    Args:
        shape: the model's dimensions.
        path: the file.
        file_type: by gguf-py's name for it, `MOSTLY_BF16` say.
        theta: base of RoPE.
    """
    from gguf import GGUFWriter, LlamaFileType

    writer = GGUFWriter(path, "llama")
    writer.add_name(shape.name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(getattr(LlamaFileType, file_type))
    add_tokenizer(writer, shape.vocab)
    return writer


def finish_gguf(writer: Any) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(rows: Array, heads: int) -> Array:
    """A matrix's rows in llama.cpp's order, which has the two halves of each rotary pair side by side.

    Args:
        rows: in Hugging Face's order, [rows, anything].
        heads: how many heads the matrix has; 0: it is not permuted.
    """
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape) if heads else rows


def _write_gguf(shape: Shape, format_name: str, path: Path) -> None:
    from gguf import GGMLQuantizationType

    writer = gguf_writer(shape, path, f"MOSTLY_{format_name.upper()}")
    for name, gguf_name, dims, heads in shape.matrices():
        bits = permuted(_tensor(name, dims), heads)
        if format_name == "bf16" and len(dims) > 1:
            writer.add_tensor(gguf_name, bits.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
        else:
            numbers = (bits.astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(gguf_name, numbers.astype(np.float16) if len(dims) > 1 else numbers)
    finish_gguf(writer)


def vocabulary(size: int) -> list[str]:
    """A small vocabulary like sentencepiece's, which every engine takes: bytes, letters, and numbered words."""
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(33, 127))]
    return tokens + [f"\u2581w{number}" for number in range(size - len(tokens))]


def add_tokenizer(writer: Any, vocab: int) -> None:
    """Adds a small vocabulary of so many tokens to a gguf-py writer."""
    from gguf import TokenType

    bytes_and_specials = len(_SPECIAL) + 256
    tokens, words = vocabulary(vocab)[:bytes_and_specials], vocabulary(vocab)[bytes_and_specials:]
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *words])
    writer.add_token_scores([0.0] * len(tokens) + [-float(rank) for rank in range(len(words))])
    writer.add_token_types([*types, *[TokenType.NORMAL] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def _quantise_folder(source: Path, target: Path) -> None:
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source)
    model, config = quantize_model(model, config, group_size=64, bits=4)
    staging = target.with_suffix(".part")
    staging.mkdir(exist_ok=True)
    save_model(staging, model)
    save_config(config, staging / "config.json")
    staging.replace(target)


def _quantise(source: Path, target: Path, format_name: str, programs: Path | None) -> None:
    if programs:
        command = [programs / "llama-quantize", source, target, format_name.upper()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed: {done.stderr[-500:]}")
        return
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{format_name.upper()}")
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), options)
    if failed:
        raise SystemExit(f"llama.cpp could not quantise {source} to {format_name}: code {failed}")
