"""Encoders that read a query and a document together, with a head that gives one number for the first token's row."""

from dataclasses import dataclass

import numpy as np

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.pool import Vector
from mlxr.runtime.engine.ranking.ranker import Array, Ranker, sigmoid
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.weight_file import WeightFile

_DENSE = ("bert.pooler.dense", "nomic_bert.pooler.dense", "pooler.dense", "classifier.dense", "cls")
_OUTPUTS = ("classifier.out_proj", "classifier", "cls.output")
"""What files call the two products of the head: as transformers has them for BERT and for RoBERTa, and llama.cpp."""


@dataclass(frozen=True)
class _Linear:
    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        return np.asarray(self.weight @ x + self.bias, np.float32)


class CrossEncoder(Ranker):
    """Ranks by an encoder's head: out(tanh(dense(row of the first token))), and the sigmoid of that."""

    pooling = "cls"

    def __init__(self, file: WeightFile, tokenizer: Tokenizer, context: int, *, has_types: bool) -> None:
        """Reads the head.

        Args:
            file: has it.
            tokenizer: of the model.
            context: most tokens of a prompt.
            has_types: whether the model tells tokens of the second text apart.

        Raises:
            RequestError: the file has none, half of one, or one of several numbers.
        """
        super().__init__(context)
        self._tokenizer, self._form = tokenizer, tokenizer.pair_form()
        self._has_types = has_types and self._form.has_types
        dense, out = _find(file, _DENSE), _find(file, _OUTPUTS)
        if out is None:
            raise RequestError(
                f"{file.path}: this encoder has no head that ranks (classifier): ask for embeddings, or name a reranker"
            )
        if out.weight.shape[0] != 1:
            raise RequestError(
                f"{file.path}: the encoder's head gives {out.weight.shape[0]} numbers of a text, as classifiers do; "
                "one that ranks gives one"
            )
        if dense is None:
            raise RequestError(
                f"{file.path}: lacks the first of the two products of its head (pooler), which llama.cpp's converter "
                "leaves out of BERT: its scores would not be the model's; rank with the model's own folder"
            )
        self._dense, self._out = dense, out

    def _parts(self, query: str, document: str) -> tuple[list[int], list[int], list[int], int | None]:
        first, second = (self._tokenizer.encode(text, add_special=False) for text in (query, document))
        before = [*self._form.before, *first, *self._form.between]
        return before, second, self._form.after, len(before) if self._has_types else None

    def score(self, vector: Vector) -> float:
        """See `Ranker.score`."""
        return sigmoid(float(self._out(np.tanh(self._dense(vector)))[0]))


def _find(file: WeightFile, names: tuple[str, ...]) -> _Linear | None:
    for name in names:
        weight = file.tensors.get(f"{name}.weight")
        if weight is not None and len(weight.shape) == 2:
            numbers = np.asarray(file.read(weight.name), np.float32)
            has_bias = f"{name}.bias" in file.tensors
            bias = np.asarray(file.read(f"{name}.bias"), np.float32) if has_bias else np.zeros(len(numbers), np.float32)
            return _Linear(numbers, bias.reshape(-1))
    return None
