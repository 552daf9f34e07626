"""Records the rows that transformers gives for tiny encoders: PYTHONPATH=tests/support python record_encoders.py.

It needs torch and transformers, and no MLX.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BertTokenizerFast

from mlxr_tests.encoder_models import CONFIGS, DATA, DOCUMENTS, QUERY, RANKERS, TEXTS, WORDS, encoded, weight


def main() -> None:
    """Writes `tests/data/encoders.json`."""
    cases = {}
    for name, config in CONFIGS.items():
        model, shapes = _filled(AutoModel, config)
        with torch.no_grad():
            rows = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy() for ids in TEXTS]
        cases[name] = {"config": config, "tensors": shapes, "rows": [encoded(each) for each in rows]}
    rankers = {name: _ranker(config) for name, config in RANKERS.items()}
    DATA.write_text(json.dumps({"encoders": cases, "rankers": rankers}) + "\n", encoding="utf-8")


def _filled(kind: Any, config: dict[str, Any]) -> tuple[Any, dict[str, list[int]]]:
    model = kind.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
    shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: torch.from_numpy(weight(key, tuple(shape))) for key, shape in shapes.items()})
    return model, shapes


def _ranker(config: dict[str, Any]) -> dict[str, Any]:
    model, shapes = _filled(AutoModelForSequenceClassification, config)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        tokenizer = BertTokenizerFast(str(Path(folder) / "vocab.txt"), model_max_length=40)
    logits, ids = [], []
    for document in DOCUMENTS:
        pair = tokenizer(QUERY, document, return_tensors="pt", truncation="only_second")
        if config["type_vocab_size"] == 1:
            del pair["token_type_ids"]
        with torch.no_grad():
            logits.append(float(model(**pair).logits[0, 0]))
        ids.append(pair["input_ids"][0].tolist())
    return {"config": config, "tensors": shapes, "ids": ids, "logits": logits}


if __name__ == "__main__":
    main()
