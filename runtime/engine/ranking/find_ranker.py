"""Finds how a model ranks, by its own files."""

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.ranking.cross_encoder import CrossEncoder
from mlxr.runtime.engine.ranking.ranker import Ranker
from mlxr.runtime.engine.ranking.yes_or_no import FAMILIES, YesOrNo
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.weight_file import WeightFile


def find_ranker(artifact: Artifact, file: WeightFile, tokenizer: Tokenizer, context: int) -> Ranker:
    """How a model ranks.

    Args:
        artifact: the model, which gives rows.
        file: its weights, with its head.
        tokenizer: of the model.
        context: most tokens of a prompt.

    Raises:
        RequestError: it does not rank, or was loaded to generate.
    """
    family = artifact.spec.model.tensor_names
    if artifact.plan.whole_prompts:
        return CrossEncoder(file, tokenizer, context, has_types=(artifact.spec.model.token_types or 0) > 1)
    if family not in FAMILIES:
        raise RequestError(
            f"models of family {family} do not rank: encoders with a classifier do, and Qwen3-Reranker "
            f"({', '.join(FAMILIES)})"
        )
    if artifact.plan.hidden_size is None:
        raise RequestError(
            'the model was loaded to generate: load it to rank with changes=mlxr.Changes(output="hidden")'
        )
    return YesOrNo(file, tokenizer, context)
