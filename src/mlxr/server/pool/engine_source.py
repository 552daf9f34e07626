"""A served model that `mlxr.Engine` loads."""

import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import MlxrError
from mlxr.loading.options import NO_OPTIONS, USUAL_SEQUENCES, LoadOptions
from mlxr.model_facts import ModelFacts, model_facts
from mlxr.named_model import named_model
from mlxr.planned_memory import PlannedMemory, planned_context, planned_memory
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS
from mlxr.runtime.engine.reasoning import NO_REASONING, Reasoning
from mlxr.runtime.tokenizer.template_files import DEFAULT, NamedTemplates, read_template_file
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.errors import without_folders
from mlxr.server.metrics.meter import Meter
from mlxr.server.pool.served_engine import ServedEngine
from mlxr.server.pool.served_model import LoadedModel, Progress

_LOG = logging.getLogger("mlxr.server")
_PROMPTS_AT_ONCE = 64
"""Prompts that a step reads for embeddings, if they are short."""


@dataclass(frozen=True)
class EngineSource:
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
    """

    name: str
    model: str
    options: LoadOptions = NO_OPTIONS
    max_sequences: int = USUAL_SEQUENCES
    max_waiting: int = 1024
    template: Path | None = None
    reasoning: Reasoning = NO_REASONING
    meters: defaultdict[str, Meter] = field(default_factory=lambda: defaultdict(Meter), compare=False, repr=False)

    @property
    def meter(self) -> Meter:
        """See `ModelSource`."""
        return self.meters[self.name]

    @property
    def set_context(self) -> int | None:
        """See `ModelSource`."""
        context = self.options.changes.context
        if context is not None or (registered := named_model(self.model)) is None:
            return context
        return registered.options.changes.context

    def longest_context(self) -> int:
        """See `ModelSource`."""
        registered = named_model(self.model)
        model, weights = self.model, self.options.weights
        if registered is not None:
            model = str(registered.source)
            weights = registered.options.weights if weights is None else weights
        facts = model_facts(model, replace(self.options.changes, context=None, output=None), weights)
        return max(facts.context, self.set_context or 0)

    def with_context(self, tokens: int) -> "EngineSource":
        """See `ModelSource`."""
        return replace(self, options=self._changed(context=tokens))

    def for_embeddings(self) -> "EngineSource":
        """See `ModelSource`. What speeds up generation is left out; more prompts are read in a step."""
        return replace(
            self,
            name=f"{self.name} (embeddings)",
            options=replace(self._changed(output="hidden"), tiers=NO_TIERS, draft=None, prompt_lookup=False),
            max_sequences=max(self.max_sequences, _PROMPTS_AT_ONCE),
            template=None,
        )

    def _changed(self, **changes: Any) -> LoadOptions:
        return replace(self.options, changes=replace(self.options.changes, **changes))

    def facts(self) -> ModelFacts:
        """See `ModelSource`."""
        facts = model_facts(self.model, self._changed(output=None).changes, self.options.weights)
        if self.template is None:
            return facts
        return replace(facts, templates=NamedTemplates({DEFAULT: read_template_file(self.template)}, ""))

    def _draft_memory(self) -> PlannedMemory | None:
        """What the draft model takes, for one sequence; None: there is none."""
        draft = self.options.draft
        return None if draft is None else planned_memory(draft, self.options.for_draft(1))

    def planned_memory(self) -> PlannedMemory:
        """See `ModelSource`. A draft model's memory counts."""
        own = planned_memory(self.model, self._of_engine)
        if (draft := self._draft_memory()) is None:
            return own
        return PlannedMemory(own.full + draft.full, own.least + draft.least, own.good + draft.full)

    def planned_context(self) -> str:
        """See `ModelSource`."""
        return planned_context(self.model, self._of_engine)

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """See `ModelSource`."""
        if most_bytes is not None and (draft := self._draft_memory()) is not None:
            most_bytes -= draft.full
        options = replace(self._of_engine, most_bytes=most_bytes, progress=progress)
        engine = ServedEngine(self.model, options, self.meter, max_waiting=self.max_waiting)
        _LOG.info("%s is loaded: %s", self.name, engine.model.context_line)
        try:
            return self._with_format(engine)
        except BaseException:
            engine.close()
            raise

    def _with_format(self, engine: ServedEngine) -> LoadedModel:
        if self.options.changes.output == "hidden":
            return LoadedModel(engine, None, "it was loaded for embeddings", unused=engine.model.unused_bytes)
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
        return self.options.for_engine(self.max_sequences)
