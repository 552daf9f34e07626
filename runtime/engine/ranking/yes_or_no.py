"""Decoders that were trained to say yes or no: Qwen3-Reranker. The score is the share of yes among the two.

Source: the model card of Qwen/Qwen3-Reranker-0.6B, for the text around query and document.
"""

import numpy as np

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.pool import Vector
from mlxr.runtime.engine.ranking.ranker import Array, Ranker, sigmoid
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.element_types import decode
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.weight_file import WeightFile

FAMILIES = ("qwen3",)
"""Families of which there are such models."""
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_ANSWERS = "cls.output.weight"
"""The rows of yes and of no, where a GGUF file of a reranker has them alone."""
_OUTPUTS = ("lm_head.weight", "output.weight")
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")


class YesOrNo(Ranker):
    """Ranks by the logits of two answers after the last token of a prompt."""

    pooling = "last"

    def __init__(self, file: WeightFile, tokenizer: Tokenizer, context: int) -> None:
        """Reads the two rows of the output projection.

        Raises:
            RequestError: they cannot be read, or the vocabulary lacks a word.
        """
        super().__init__(context)
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(_BEFORE, add_special=False, parse_special=True)
        self._after = tokenizer.encode(_AFTER, add_special=False, parse_special=True)
        ids = [tokenizer.encode(word, add_special=False) for word in ("yes", "no")]
        if any(len(each) != 1 for each in ids):
            raise RequestError("yes and no are not one token each in this vocabulary: the model is not a reranker")
        yes, no = _rows(file, [each[0] for each in ids])
        self._difference = yes - no

    def _parts(self, query: str, document: str) -> tuple[list[int], list[int], list[int], int | None]:
        asked = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>:"
        before = [*self._before, *self._tokenizer.encode(asked, add_special=False)]
        return before, self._tokenizer.encode(f" {document}", add_special=False), self._after, None

    def score(self, vector: Vector) -> float:
        """See `Ranker.score`: of two logits the softmax is the sigmoid of their difference."""
        return sigmoid(float(vector.astype(np.float64) @ self._difference))


def _rows(file: WeightFile, ids: list[int]) -> Array:
    if _ANSWERS in file.tensors:
        return np.asarray(file.read(_ANSWERS), np.float32)
    name = next((name for name in (*_OUTPUTS, *_EMBEDDINGS) if name in file.tensors), None)
    if name is None or file.tensors[name].scales is not None:
        raise RequestError(
            f"{file.path}: the output projection cannot be read by rows: rank with the model's floats, or its GGUF file"
        )
    tensor = file.tensors[name]
    rows = MappedWeights(file).rows(tensor)
    return np.concatenate([np.asarray(decode(rows[i : i + 1], tensor.element_type), np.float32) for i in ids])
