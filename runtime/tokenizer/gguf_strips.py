"""Which tokens of a GGUF file's vocabulary leave out the white space beside them.

Files do not say it, their models' tokenizer.json does. Source: the models are those that llama.cpp knows
(llama-vocab.cpp), by the names that it asks for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.runtime.tokenizer.gguf_vocabulary import PREFIX

_KEEPS_WHITE_SPACE = ("<unk>", "<s>", "<|endoftext|>")


def stripping_names(metadata: Mapping[str, Any], names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Those of the special tokens' names before which, and those after which, white space is left out."""
    name = str(metadata.get("general.name", "")).lower()
    architecture, pre = metadata.get(file_keys.ARCHITECTURE), metadata.get(f"{PREFIX}pre", "")
    kind = metadata.get(f"{PREFIX}model")
    if pre in ("roberta-bpe", "jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        return frozenset({"<mask>"}.intersection(names)), frozenset()
    if kind == "llama" and (architecture == "phi3" or "phi-3" in name or "phi3" in name):
        return frozenset(), frozenset(names).difference(_KEEPS_WHITE_SPACE)
    if pre == "modern-bert" or "modern-bert" in name:
        return frozenset({"[MASK]"}.intersection(names)), frozenset()
    return frozenset(), frozenset()
