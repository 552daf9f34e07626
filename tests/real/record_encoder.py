"""Records what sentence-transformers' steps make of texts: python record_encoder.py FOLDER, where torch is.

FOLDER is all-MiniLM-L6-v2: its encoder, the mean of all rows, and a length of 1, as its modules.json says.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from mlxr_tests.encoder_models import encoded

DATA = Path(__file__).with_name("data") / "all-minilm-l6-v2.json"
TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "Ein Café in Zürich, naïve façade — 東京タワー 2024!",
    "x",
    " ".join(["A long text that goes on about embeddings, rivers and the price of bread."] * 16),
]


def main(folder: str) -> None:
    """Writes the file that `test_encoder.py` reads."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder, dtype=torch.float32).eval(),
    )
    vectors = []
    for text in TEXTS:
        with torch.no_grad():
            rows = model(**tokenizer(text, return_tensors="pt", padding=False, truncation=False)).last_hidden_state[0]
        vectors.append(encoded(torch.nn.functional.normalize(rows.mean(0), dim=0).numpy()))
    DATA.write_text(json.dumps({"texts": TEXTS, "vectors": vectors}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
