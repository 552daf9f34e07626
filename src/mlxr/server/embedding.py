"""Embeddings of prompts, for every API that gives some."""

import asyncio
from collections.abc import Callable, Sequence

from mlxr.runtime.engine.pool import Pooling, Vector, check_dimensions, finished
from mlxr.runtime.engine.prompts import Pair
from mlxr.server.documents.json_form import json_text
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.request_record import RECORD


async def embed(
    model: LoadedModel,
    prompts: Sequence[list[int] | Pair],
    *,
    pooling: Pooling | None = None,
    dimensions: int | None = None,
    normalize: bool = True,
    priority: int = 0,
    salt: str = "",
) -> list[Vector]:
    """The embedding of each prompt, f32. Cancelling the task cancels what is left.

    Args:
        model: loaded for it: `pool.use(name, embeds=True)`.
        prompts: token ids, at least one each, or those of two texts.
        pooling: `mean`, `last` or `cls`; None: what the model's own files say, else `mean`.
        dimensions: how many dimensions to keep, the first ones; None: all.
        normalize: whether embeddings have length 1.
        priority: as for `mlxr.Engine.generate`.
        salt: as for `mlxr.Engine.generate`.

    Raises:
        PromptTooLongError: a prompt is longer than the context.
        RequestError: a bad option.
        MlxrError: the engine has failed, or a step of the request.
    """
    width = await asyncio.to_thread(model.engine.model.embedding_width, pooling)
    check_dimensions(dimensions, width)
    vectors = await model.engine.embed(prompts, pooling, priority=priority, salt=salt)
    if (record := RECORD.get()) is not None:
        record.prompt_tokens += sum(len(prompt.ids if isinstance(prompt, Pair) else prompt) for prompt in prompts)
    return [finished(vector, dimensions, normalize) for vector in vectors]


async def written(vectors: Sequence[Vector], write: Callable[[Vector], str]) -> list[str]:
    """What a function writes for each vector. Other requests go on meanwhile."""
    texts = []
    for index, vector in enumerate(vectors):
        texts.append(write(vector))
        if index % 4 == 3:
            await asyncio.sleep(0)
    return texts


def numbers_text(vector: Vector) -> str:
    """A vector in JSON."""
    return json_text(vector.tolist())
