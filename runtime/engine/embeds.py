"""The part of a model that makes vectors of texts, and ranks by them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.default_pooling import default_pooling, dense_modules
from mlxr.runtime.engine.dense_modules import Dense, through
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.listeners import Inbox
from mlxr.runtime.engine.make_requests import TERMS, Terms
from mlxr.runtime.engine.pool import Pooling, check_dimensions, finished
from mlxr.runtime.engine.prompts import Prompt, list_of
from mlxr.runtime.engine.ranking.find_ranker import find_ranker
from mlxr.runtime.engine.ranking.ranker import Ranked, Ranker, in_order
from mlxr.runtime.engine.request import Listener, Request
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.weight_file import WeightFile


class Embeds(ABC):
    """What `Model` does with rows; the model has all that is named here."""

    artifact: Artifact
    core: EngineCore
    limit: ContextLimit
    _file: WeightFile
    _running: WeakSet[Generation]
    _ranker: Ranker | None = None
    _dense: tuple[Dense, ...] | None = None

    @abstractmethod
    def require_tokenizer(self) -> Tokenizer:
        """See `Model`."""

    @abstractmethod
    def make_requests(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        listener: Listener,
        terms: Terms = TERMS,
        pooling: Pooling | None = None,
    ) -> list[Request]:
        """See `Model`."""

    @abstractmethod
    def _check_open(self) -> None:
        """See `Model`."""

    def embed(
        self,
        prompts: Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Embeddings of prompts: [prompts, hidden] or [prompts, dimensions], f32.

        Without `pooling`, they go through the products (Dense modules) that the model's own files name, too.

        The model must have been loaded for it, with `changes=mlxr.Changes(output="hidden")`; encoders always are.

        Args:
            prompts: texts or token ids.
            pooling: `mean`, `last` or `cls`; None: what the model's own files say, else `mean`.
            dimensions: how many dimensions to keep, the first ones; None: all.
            normalize: whether embeddings have length 1.

        Raises:
            TypeError: an argument of a wrong type.
            PromptTooLongError: a prompt is longer than the context.
            RequestError: no prompt, a bad option, or the model was loaded to generate.
            HostError: a step failed, or its result is not finite.
        """
        self._check_open()
        dense = self.dense_modules() if pooling is None else ()
        check_dimensions(dimensions, self.embedding_width(pooling))
        events = Inbox()
        requests = self.make_requests(
            list_of(prompts), Sampling(), events.append, pooling=pooling or self.default_pooling()
        )
        generation = Generation(self.core, requests, events)
        self._running.add(generation)
        generation.finish()
        return np.stack([finished(through(dense, one.pooled), dimensions, normalize) for one in requests])

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[Ranked]:
        """Ranks documents by how well they answer a query: the best one first, with scores from 0 to 1.

        The model is a reranker: an encoder with a head for it, or Qwen3-Reranker, loaded as `embed` needs it. Documents
        that are too long are cut.

        Args:
            query: what is looked for.
            documents: at least one.
            top_n: how many are wanted; None: all.

        Raises:
            TypeError: documents is one text.
            RequestError: the model does not rank, the query is too long, there is no document, or none is wanted.
            HostError: a step failed, or its result is not finite.
        """
        ranker = self.ranker()
        if isinstance(documents, str):
            raise TypeError("documents is a text; expected a list of texts")
        if top_n is not None and top_n < 1:
            raise RequestError(f"top_n is {top_n}, expected at least 1")
        pairs = [ranker.pair(query, document) for document in documents]
        vectors = self.embed(pairs, pooling=ranker.pooling, normalize=False)
        return in_order([ranker.score(vector) for vector in vectors], top_n)

    def ranker(self) -> Ranker:
        """How the model ranks.

        Raises:
            RequestError: it does not.
        """
        if self._ranker is None:
            self._ranker = find_ranker(self.artifact, self._file, self.require_tokenizer(), self.limit.tokens)
        return self._ranker

    def dense_modules(self) -> tuple[Dense, ...]:
        """The products behind the pooling that the model's own files name; they are read once.

        Raises:
            MlxrError: one of them cannot be read.
        """
        if self._dense is None:
            self._dense = dense_modules(self._file)
        return self._dense

    def embedding_width(self, pooling: Pooling | None = None) -> int:
        """Numbers of an embedding, with a pooling or, None, as the model's own files say.

        Raises:
            MlxrError: a module that they name cannot be read.
        """
        dense = self.dense_modules() if pooling is None else ()
        return len(dense[-1].bias) if dense else self.artifact.spec.model.hidden_size

    def default_pooling(self) -> Pooling:
        """How the model's own files say that rows are pooled; `mean` where they say nothing.

        Raises:
            RequestError: they ask for what is not supported.
        """
        return default_pooling(self._file)
