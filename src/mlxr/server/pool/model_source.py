"""Where a served model comes from."""

import logging
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.adapters import Adapters
from mlxr.loading.adapter_paths import NO_ADAPTERS, AdapterPath
from mlxr.loading.eagle_head import eagle_head
from mlxr.loading.find_model import FoundModel, find_model
from mlxr.loading.model_facts import ModelFacts, fills_gaps, model_facts
from mlxr.loading.options import NO_OPTIONS, USUAL_SEQUENCES, LoadOptions
from mlxr.loading.planned_memory import PlannedMemory, planned_context, planned_memory
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS
from mlxr.runtime.engine.errors import EngineError
from mlxr.runtime.engine.reasoning import NO_REASONING, Reasoning
from mlxr.runtime.tokenizer.template_files import DEFAULT, NamedTemplates, read_template_file
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.errors import api_error, without_folders
from mlxr.server.metrics.meter import Meter
from mlxr.server.pool.loaded_model import LoadedModel, Progress
from mlxr.server.pool.served_engine import ServedEngine

_LOG = logging.getLogger("mlxr.server")
_PROMPTS_AT_ONCE = 64
"""Prompts that a step reads for embeddings, if they are short."""


@dataclass(frozen=True)
class ModelSource:
    """A model's files, and the options of its engine; see `mlxr.Engine`.

    Attributes:
        name: what requests call it.
        model: what MODEL means for commands.
        options: how it is loaded.
        max_sequences: as for `mlxr.Engine`.
        max_waiting: as for `mlxr.Engine`.
        template: a Jinja2 file to use instead of the model's own chat template.
        reasoning: holds for requests that say nothing else.
        meters: measure the answers, by name. Copies (`replace`) share them: what a name had counted stays, whatever it
            means later.
        adapter_scales: those of adapters, by their names, for requests that say nothing. Copies share them, so that a
            model has them when it is loaded again.
    """

    name: str
    model: str
    options: LoadOptions = NO_OPTIONS
    max_sequences: int = USUAL_SEQUENCES
    max_waiting: int = 1024
    template: Path | None = None
    reasoning: Reasoning = NO_REASONING
    meters: defaultdict[str, Meter] = field(default_factory=lambda: defaultdict(Meter), compare=False, repr=False)
    adapter_scales: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def meter(self) -> Meter:
        """Measures its answers; the same for each source of this name that a server has had."""
        return self.meters[self.name]

    @property
    def set_context(self) -> int | None:
        """The context that the server was told to load it with; None: the model and memory decide."""
        context = self.options.changes.context
        return self._found.options.changes.context if context is None else context

    @property
    def _found(self) -> FoundModel:
        return find_model(self.model, self.options)

    def longest_context(self) -> int:
        """The longest context that it may have. Slow the first time: it reads files' headers.

        Raises:
            MlxrError: it cannot be found, or is not supported.
        """
        found = self._found
        own = self._changed(context=None, output=None).changes
        facts = model_facts(str(found.model), own, found.options.weights)
        return max(facts.context, self.set_context or 0)

    def with_context(self, tokens: int) -> "ModelSource":
        """The same model with this context, if memory has room for it."""
        return replace(self, options=self._changed(context=tokens))

    def for_embeddings(self) -> "ModelSource":
        """The same model in the form that gives embeddings, which takes memory of its own.

        What speeds up generation is left out; more prompts are read in a step.
        """
        return replace(
            self,
            name=f"{self.name} (embeddings)",
            options=replace(
                self._changed(output="hidden", adapters=None),
                tiers=NO_TIERS,
                draft=None,
                prompt_lookup=False,
                mtp="off",
                adapters=NO_ADAPTERS,
            ),
            max_sequences=max(self.max_sequences, _PROMPTS_AT_ONCE),
            template=None,
        )

    def with_adapter(self, adapter: AdapterPath, places: Adapters) -> "ModelSource":
        """The same model, loaded with one more adapter; the places are those that it has."""
        given = self.without_adapter(adapter.own_name).options.adapters
        adapters = replace(given, paths=(*given.paths, adapter), rank=places.rank, slots=places.slots)
        return replace(self, options=replace(self.options, adapters=adapters))

    def without_adapter(self, name: str) -> "ModelSource":
        """The same model, loaded without an adapter."""
        given = self.options.adapters
        paths = tuple(adapter for adapter in given.paths if adapter.own_name != name)
        return replace(self, options=replace(self.options, adapters=replace(given, paths=paths)))

    def _changed(self, **changes: Any) -> LoadOptions:
        return replace(self.options, changes=replace(self.options.changes, **changes))

    def facts(self) -> ModelFacts:
        """What it is, without loading it. Slow the first time: it reads files' headers.

        Raises:
            MlxrError: it cannot be found, or is not supported.
        """
        facts = model_facts(self.model, self._changed(output=None).changes, self.options.weights)
        if self.template is None:
            return facts
        return replace(facts, templates=NamedTemplates({DEFAULT: read_template_file(self.template)}, ""))

    def fills_gaps(self) -> bool:
        """Whether it can write text between two others; False of what cannot be read. Slow the first time."""
        changes = self._changed(output=None).changes
        try:
            return fills_gaps(self.model, changes, self.options.weights, self.options.tokenizer)
        except MlxrError:
            return False

    def is_encoder(self) -> bool:
        """Whether it has one form, that gives embeddings; False of what cannot be read. Slow the first time."""
        try:
            return self.facts().is_encoder
        except MlxrError:
            return False

    def _draft_memory(self) -> PlannedMemory | None:
        """What the draft model takes, for one sequence; None: there is none, or a head, counted with the model."""
        draft = self.options.draft
        if draft is None or eagle_head(self.options) is not None:
            return None
        return planned_memory(draft, self.options.for_draft(1))

    def planned_memory(self) -> PlannedMemory:
        """What it takes when it is loaded, with its draft model. Slow: it may compile.

        Raises:
            MlxrError: it cannot be found or compiled.
        """
        own = planned_memory(self.model, self._of_engine)
        if (draft := self._draft_memory()) is None:
            return own
        return PlannedMemory(own.full + draft.full, own.least + draft.least, own.good + draft.full)

    def planned_context(self) -> str:
        """How long a sequence could be if it were loaded now, and why, for people. Slow: it may compile.

        Raises:
            MlxrError: it cannot be found, compiled or loaded.
        """
        return planned_context(self.model, self._of_engine)

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """Loads it. Slow.

        Args:
            progress: is told how far it is.
            most_bytes: memory that it may take, less than it was planned with; None: as planned.

        Raises:
            MlxrError: it cannot be loaded.
        """
        if most_bytes is not None and (draft := self._draft_memory()) is not None:
            most_bytes -= draft.full
        options = replace(self._of_engine, most_bytes=most_bytes, progress=progress)
        engine = ServedEngine(self.model, options, self.meter, self.adapter_scales, max_waiting=self.max_waiting)
        _LOG.info("%s is loaded: %s", self.name, engine.model.context_line)
        try:
            return self._with_format(engine)
        except BaseException:
            engine.close()
            raise

    def _with_format(self, engine: ServedEngine) -> LoadedModel:
        if engine.model.artifact.spec.output == "hidden":
            why = "it is an encoder" if engine.model.artifact.plan.whole_prompts else "it was loaded for embeddings"
            return LoadedModel(engine, None, why, unused=engine.model.unused_bytes)
        try:
            template = engine.model.chat_template(self.template)
        except MlxrError as error:
            if self.template is not None:
                raise
            _LOG.info("%s cannot chat: %s", self.name, error)
            return LoadedModel(engine, None, without_folders(error), unused=engine.model.unused_bytes)
        template.source = self.name  # its errors reach clients, which know the model by this name
        template.start()
        tokenizer = engine.model.require_tokenizer()
        chat_format = ChatFormat(template, tokenizer, engine.model.limit, self.reasoning)
        return LoadedModel(engine, chat_format, template=template.text, unused=engine.model.unused_bytes)

    @property
    def _of_engine(self) -> LoadOptions:
        """As its engine loads it."""
        return self.options.for_engine(self.max_sequences).with_places()


@dataclass(frozen=True)
class ReadySource(ModelSource):
    """The source of a model that was loaded before the server began: one over several ranks, which all load at once.

    It can be loaded once; pin it, so that nobody unloads it.

    Attributes:
        loaded: the model.
    """

    loaded: LoadedModel = field(kw_only=True)

    @classmethod
    def of(cls, source: ModelSource) -> "ReadySource":
        """Loads a source's model."""
        given = {entry.name: getattr(source, entry.name) for entry in fields(source)}
        return cls(**given, loaded=source.load(lambda *_: None))

    @property
    def set_context(self) -> int:
        """What it has."""
        return self.loaded.context

    def longest_context(self) -> int:
        """What it has."""
        return self.loaded.context

    def with_context(self, tokens: int) -> "ReadySource":
        """The same: it is loaded once."""
        return self

    def for_embeddings(self) -> "ReadySource":
        """The same: it says to requests for embeddings that it was loaded to generate, or the other way round."""
        return self

    def planned_memory(self) -> PlannedMemory:
        """Nothing: it has its memory already."""
        return PlannedMemory(0, 0, 0)

    def planned_context(self) -> str:
        """What it has."""
        return self.loaded.engine.model.context_line

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """The model.

        Raises:
            ApiError: it has ended, and cannot be loaded again; a server that is started again may answer.
        """
        if (reason := self.loaded.engine.health()) is not None:
            raise api_error(EngineError(f"{reason}: the server ends"))
        return self.loaded
