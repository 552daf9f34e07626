"""Which part of a file a tensor belongs to: the text model, or something beside it.

Folders of models that also take images have the text model's tensors under a prefix, which depends on the program that
wrote them; GGUF files of Ollama have all parts in one file. Layers that guess further tokens lie beside the model's
own, with numbers that follow theirs. Indexers choose which tokens are read of a context longer than those that MLXR
offers for such models.
"""

import re
from collections.abc import Iterable
from typing import Literal

FileKind = Literal["safetensors", "gguf"]

_PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""))
"""transformers' own, that of published folders and mlx-lm, and that of the output projection beside these."""
_BESIDE = {
    "safetensors": re.compile(
        r"(?:model\.)?(?:(?P<images>vision_tower|vision_model|visual|multi_modal_projector|mm_projector|embed_vision"
        r"|patch_merge_mlp|vit_large_projector)|(?P<sound>audio_tower|audio_model|embed_audio)|(?P<guesses>mtp(?:_\w+)?)"
        r"|(?P<indexers>layers\.\d+\.self_attn\.(?:indexer|index_[qk]_(?:proj|norm))))\."
    ),
    "gguf": re.compile(r"(?P<images>v|mm)\.|(?P<sound>a)\..+\.|(?P<indexers>blk\.\d+\.indexer)\."),
}
"""How names of tensors of each part begin."""
_GUESSING_LAYER = re.compile(r"((?:model\.layers|blk)\.\d+\.)(?:nextn\..+|(?:eh_proj|enorm|hnorm)\..+)")
"""What only such layers have, in the way of DeepSeek's files: the join of a row and an embedding, and their norms."""
_ONLY_THERE = ("nextn", "eh_proj", "enorm", "hnorm")


def text_name(name: str) -> str:
    """A tensor's or module's name in a folder that has the text model alone."""
    if "language_model." in name:  # few files have it, and some have very many names
        for prefix, new in _PREFIXES:
            if name.startswith(prefix):
                return new + name.removeprefix(prefix)
    return name


def guessing_layers(names: Iterable[str]) -> tuple[str, ...]:
    """How the names of the tensors in layers that guess further tokens begin."""
    likely = (name for name in names if any(word in name for word in _ONLY_THERE))  # files may have very many names
    return tuple(dict.fromkeys(match[1] for name in likely if (match := _GUESSING_LAYER.fullmatch(name))))


def part_beside(name: str, kind: FileKind, guessing: tuple[str, ...]) -> str | None:
    """What a tensor is for, if not for the text model: `images`, `sound`, `guesses` or `indexers`.

    Args:
        name: the tensor's, by `text_name`.
        kind: of the file.
        guessing: the result of `guessing_layers` of the whole file.
    """
    if guessing and name.startswith(guessing):
        return "guesses"
    match = _BESIDE[kind].match(name)
    return None if match is None else match.lastgroup
