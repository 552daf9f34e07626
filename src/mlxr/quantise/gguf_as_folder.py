"""A GGUF model as a folder's content: config.json, tensors by the names of Hugging Face, and the tokenizer.

config.json is made of the spec and read again: what comes back must be the model, else it is refused by name; and the
tokenizer must give the same ids for some texts.
"""

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlxr.compiler.artifact import Recipe, file_keys
from mlxr.compiler.errors import SpecError, TokenizerError, WeightsError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import Model, ModelSpec
from mlxr.compiler.spec.rope import Llama3Scaling
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.loading.compare_spec import differences
from mlxr.loading.imported_model import import_model
from mlxr.quantise.block_quantiser import Floats
from mlxr.quantise.gguf_vocabulary import SAMPLES
from mlxr.quantise.mixtures import FLOATS
from mlxr.quantise.mlx_folder import FolderContent
from mlxr.quantise.source_tensor import SourceTensor
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.template_files import gguf_templates
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.gguf_parts import gguf_metadata
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import TensorRows

KINDS = {
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3_text": ("gemma3_text", "Gemma3ForCausalLM"),
}
"""`model_type` and class of the families that can be converted."""
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}


def gguf_as_folder(path: Path, *, requantise: bool = False, accepted_keys: tuple[str, ...] = ()) -> FolderContent:
    """The model of a GGUF file.

    Args:
        path: one of its files.
        requantise: whether it may be quantised already.
        accepted_keys: keys of its metadata that change nothing according to the user.

    Raises:
        MlxrError: it cannot be read, or not be said in a folder.
    """
    spec, weights = import_model(path, ImportOptions(accepted_keys=accepted_keys))
    config = _config(spec, str(path))
    tensors = _tensors(spec, weights, requantise)
    stored = {tensor.name: TensorFact(tensor.shape, tensor.format.upper()) for tensor in tensors}
    floats = {tensor.format for tensor in tensors if len(tensor.shape) > 1}
    config |= {"torch_dtype": "float16" if floats == {"f16"} else "bfloat16"}
    tokenizer = load_tokenizer(path)
    config |= {"bos_token_id": tokenizer.bos_id, "eos_token_id": sorted(tokenizer.eos_ids)}
    back = spec_from_config(config, stored, spec.name, str(path), ImportOptions(spec.model.context, force_context=True))
    if unlike := list(differences(spec.model, back.model)):
        raise SpecError(f"{path}: cannot be a folder, whose config.json would say that {'; '.join(unlike)}")
    return FolderContent(config, tensors, _tokenizer_files(path, tokenizer))


def _tensors(spec: ModelSpec, weights: Path, requantise: bool) -> list[SourceTensor]:
    mapped = MappedWeights(open_weights(weights))
    found = []
    for part in {part.name: part for weight in source_weights(spec).weights for part in weight.parts}.values():
        plain = [each for each in part.safetensors if each == Recipe(each.tensor, add=each.add)]
        if not plain:
            raise SpecError(f"{spec.name}: how {part.name} is written to a folder is not known here")
        rows = open_tensor(mapped, part)
        if rows.format not in FLOATS and not requantise:
            raise WeightsError(
                f"{weights}: {part.name} is {rows.format} already, and quantising it again loses more than quantising "
                "the original does; --allow-requantize does it all the same"
            )
        format = rows.format if rows.format in FLOATS else "f32"
        found.append(SourceTensor(plain[0].tensor, part.shape, format, partial(_rows, rows, plain[0].add)))
    return found


def _rows(rows: TensorRows, add: float, first: int, last: int) -> Floats:
    vector = len(rows.shape) == 1
    numbers = rows.numbers(0, rows.num_rows).reshape(1, -1) if vector else rows.numbers(first, last)
    return numbers - np.float32(add) if add else numbers


def _config(spec: ModelSpec, where: str) -> dict[str, Any]:
    model, family = spec.model, spec.model.tensor_names
    if family not in KINDS:
        raise SpecError(
            f"{where}: a GGUF model of the family {family} cannot be written as a folder here; these can: "
            f"{', '.join(sorted(KINDS))}. Name a FILE.gguf"
        )
    kind, class_name = KINDS[family]
    full = next((each for each in model.layers if each.own_attention.sliding_window is None), model.layers[0])
    attention, mlp, rope = full.own_attention, full.mlp, full.rope
    if mlp is None or rope is None or mlp.activation not in _ACTIVATIONS:
        raise SpecError(f"{where}: a model of the family {family} without what folders of this family have")
    scaling: Mapping[str, Any] | None = None
    if isinstance(rope.scaling, Llama3Scaling):
        own = rope.scaling
        scaling = {
            "rope_type": "llama3",
            "factor": own.factor,
            "low_freq_factor": own.low_freq_factor,
            "high_freq_factor": own.high_freq_factor,
            "original_max_position_embeddings": own.original_context,
        }
    elif rope.scaling.kind == "linear":
        scaling = {"rope_type": "linear", "factor": rope.scaling.factor}
    return {
        "architectures": [class_name],
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "intermediate_size": mlp.intermediate_size,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm.eps,
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "hidden_act": _ACTIVATIONS[mlp.activation],
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": attention.qkv_bias if kind != "qwen2" else None,
    } | _special(kind, model)


def _special(kind: str, model: Model) -> dict[str, Any]:
    """What single families say."""
    if not kind.startswith("gemma"):
        return {}
    said: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh"}
    attention = model.layers[0].own_attention
    windows = [each.own_attention.sliding_window for each in model.layers]
    if kind != "gemma":
        scale = attention.scale or attention.head_dim**-0.5
        said |= {"query_pre_attn_scalar": round(scale**-2), "sliding_window": next(filter(None, windows), None)}
        said |= {"attn_logit_softcapping": attention.softcap, "final_logit_softcapping": model.logit_softcap}
    if kind == "gemma3_text":
        said["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
        first = next((index for index, window in enumerate(windows) if not window), len(windows))
        said["sliding_window_pattern"] = first + 1
        local = next((each.rope for each in model.layers if each.own_attention.sliding_window and each.rope), None)
        said["rope_local_base_freq"] = local.theta if local is not None else 10000.0
    return said


def _tokenizer_files(path: Path, tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer's files, which mean the same one."""
    metadata = gguf_metadata(path)
    named: dict[str, Any] = {"add_bos_token": tokenizer.adds_bos}
    for name, token_id in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id)):
        if token_id is not None:
            named[name] = tokenizer.token_text(token_id)
    if (templates := gguf_templates(metadata, path)) is not None:
        named["chat_template"] = templates.text
    files: dict[str, bytes] = {}
    if isinstance(tokenizer, LibraryTokenizer):
        named["tokenizer_class"] = "PreTrainedTokenizerFast"
        files["tokenizer.json"] = tokenizer.as_json_file().encode()
    elif isinstance(tokenizer, SentencepieceTokenizer):
        prefix = bool(metadata.get(f"{file_keys.TOKENIZER}add_space_prefix", True))
        named |= {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_prefix_space": prefix}
        files["tokenizer.model"] = tokenizer.as_model_file()
    else:
        raise TokenizerError(f"{path}: its tokenizer has no files of its own that a folder could have")
    files["tokenizer_config.json"] = json.dumps(named, indent=1, ensure_ascii=False).encode()
    with tempfile.TemporaryDirectory(prefix="mlxr-tokenizer-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        back = load_tokenizer(folder)
        for text in SAMPLES:
            if back.encode(text) != tokenizer.encode(text):
                raise TokenizerError(f"{path}: its tokenizer cannot be files of a folder: {text[:40]!r} has other ids")
    return files
