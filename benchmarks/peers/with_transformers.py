"""Makes vectors as sentence-transformers does, for `embeddings.py`: reads lists of texts, writes seconds.

It runs in a Python that has torch, and imports nothing of ours. Without sentence-transformers it does the same steps.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

import torch

_BATCH = 32
Encode = Callable[[Sequence[str]], object]


def main(folder: str, threads: int) -> None:
    """Answers until the input ends."""
    if threads:
        torch.set_num_threads(threads)
    encode = _encoder(folder)
    for line in sys.stdin:
        texts = json.loads(line)
        begin = time.perf_counter(), time.process_time()
        encode(texts)
        print(time.perf_counter() - begin[0], time.process_time() - begin[1], flush=True)


def _encoder(folder: str) -> Encode:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return _by_hand(folder)
    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(list(texts), batch_size=_BATCH, normalize_embeddings=True)


def _by_hand(folder: str) -> Encode:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder, dtype=torch.float32).eval(),
    )

    def encode(texts: Sequence[str]) -> object:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        vectors = [torch.empty(0)] * len(texts)
        with torch.inference_mode():
            for first in range(0, len(order), _BATCH):
                chosen = order[first : first + _BATCH]
                batch = tokenizer(
                    [texts[i] for i in chosen], padding=True, truncation=True, max_length=512, return_tensors="pt"
                )
                rows = model(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(-1).float()
                pooled = torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1), dim=1)
                for i, vector in zip(chosen, pooled, strict=True):
                    vectors[i] = vector
        return torch.stack(vectors).numpy()

    return encode


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
