"""The bundled model as mlx-lm's server reads it: the bf16 folder has no tokenizer, without which that server ends."""

import json
from pathlib import Path

from mlxr.runtime.tokenizer.gguf_vocabulary import read_column, read_vocabulary
from mlxr.runtime.tokenizer.model_proto import Piece, write_model_proto
from mlxr.runtime.weights import gguf_metadata

_SPECIALS = ("<unk>", "<s>", "</s>")


def storyteller_folder(source: Path, folder: Path, place: Path) -> Path:
    """Writes a folder with the weights of another one, and the tokenizer of a GGUF file; no token of it ends an answer.

    mlx-lm's server has no option to ignore end tokens, so one that is never generated has their place.

    Args:
        source: the GGUF file.
        folder: with config.json and model.safetensors.
        place: the folder to write.
    """
    place.mkdir(parents=True, exist_ok=True)
    weights = place / "model.safetensors"
    weights.unlink(missing_ok=True)
    weights.symlink_to((folder / weights.name).resolve())
    metadata = gguf_metadata(source)
    vocabulary = read_vocabulary(metadata, str(source))
    scores = read_column(metadata, "scores", (int, float), str(source))
    proto = write_model_proto(
        [Piece(*row) for row in zip(vocabulary.spellings, scores, vocabulary.kinds, strict=True)],
        specials=_SPECIALS,
        byte_fallback=True,
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
    )
    (place / "tokenizer.model").write_bytes(proto)
    unknown, bos, _ = _SPECIALS
    tokenizer = {"tokenizer_class": "LlamaTokenizer", "unk_token": unknown, "bos_token": bos, "eos_token": unknown}
    (place / "tokenizer_config.json").write_text(json.dumps(tokenizer) + "\n", encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["eos_token_id"] = vocabulary.tokens.index(unknown)
    (place / "config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
    return place
