"""A served model that `mlxr.Engine` loads."""

import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.engine import with_sequences
from mlxr.model_facts import ModelFacts, model_facts
from mlxr.model_source import USUAL_SEQUENCES
from mlxr.named_model import named_model
from mlxr.planned_memory import PlannedMemory, planned_context, planned_memory
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
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
        template: a Jinja2 file to use instead of the model's own chat template.
        reasoning: holds for requests that say nothing else.
        weights: as for `mlxr.Engine`.
        control: as for `mlxr.Engine`.
        meters: measure the answers, by name. Copies (`replace`) share them: what a name had counted stays, whatever it
            means later.
    """

    name: str
    model: str
    max_sequences: int = USUAL_SEQUENCES
    max_waiting: int = 1024
    host: str = "auto"
    threads: int | None = None
    changes: Changes = NO_CHANGES
    tiers: TierSizes = NO_TIERS
    draft: str | None = None
    prompt_lookup: bool = False
    template: Path | None = None
    reasoning: Reasoning = NO_REASONING
    weights: str | None = None
    control: str | None = None
    meters: defaultdict[str, Meter] = field(default_factory=lambda: defaultdict(Meter), compare=False, repr=False)

    @property
    def meter(self) -> Meter:
        """See `ModelSource`."""
        return self.meters[self.name]

    @property
    def set_context(self) -> int | None:
        """See `ModelSource`."""
        if self.changes.context is not None or (registered := named_model(self.model)) is None:
            return self.changes.context
        return registered.options.changes.context

    def longest_context(self) -> int:
        """See `ModelSource`."""
        registered = named_model(self.model)
        model = self.model if registered is None else str(registered.source)
        weights = self.weights if registered is None or self.weights is not None else _text(registered.options.weights)
        facts = model_facts(model, replace(self.changes, context=None, output=None), weights)
        return max(facts.context, self.set_context or 0)

    def with_context(self, tokens: int) -> "EngineSource":
        """See `ModelSource`."""
        return replace(self, changes=replace(self.changes, context=tokens))

    def for_embeddings(self) -> "EngineSource":
        """See `ModelSource`. What speeds up generation is left out; more prompts are read in a step."""
        return replace(
            self,
            name=f"{self.name} (embeddings)",
            changes=replace(self.changes, output="hidden"),
            max_sequences=max(self.max_sequences, _PROMPTS_AT_ONCE),
            tiers=NO_TIERS,
            draft=None,
            prompt_lookup=False,
            template=None,
        )

    def facts(self) -> ModelFacts:
        """See `ModelSource`."""
        facts = model_facts(self.model, replace(self.changes, output=None), self.weights)
        if self.template is None:
            return facts
        return replace(facts, templates=NamedTemplates({DEFAULT: read_template_file(self.template)}, ""))

    def _draft_memory(self, draft: str) -> PlannedMemory:
        changes = Changes(trust_artifact=self.changes.trust_artifact)
        return planned_memory(draft, host=self.host, threads=self.threads, changes=changes)

    def planned_memory(self) -> PlannedMemory:
        """See `ModelSource`. A draft model's memory counts."""
        own = planned_memory(self.model, host=self.host, threads=self.threads, changes=self._changes, tiers=self.tiers)
        if self.draft is None:
            return own
        draft = self._draft_memory(self.draft)
        return PlannedMemory(own.full + draft.full, own.least + draft.least, own.good + draft.full)

    def planned_context(self) -> str:
        """See `ModelSource`."""
        return planned_context(
            self.model, self.weights, host=self.host, threads=self.threads, changes=self._changes, tiers=self.tiers
        )

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """See `ModelSource`."""
        if most_bytes is not None and self.draft is not None:
            most_bytes -= self._draft_memory(self.draft).full
        engine = ServedEngine(
            self.model,
            self.meter,
            weights=self.weights,
            max_sequences=self.max_sequences,
            max_waiting=self.max_waiting,
            host=self.host,
            threads=self.threads,
            changes=self.changes,
            tiers=self.tiers,
            draft=self.draft,
            prompt_lookup=self.prompt_lookup,
            most_bytes=most_bytes,
            control=self.control,
            progress=progress,
        )
        _LOG.info("%s is loaded: %s", self.name, engine.model.context_line)
        try:
            return self._with_format(engine)
        except BaseException:
            engine.close()
            raise

    def _with_format(self, engine: ServedEngine) -> LoadedModel:
        if self.changes.output == "hidden":
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
    def _changes(self) -> Changes:
        """As `mlxr.Engine` changes the spec."""
        return with_sequences(self.changes, self.max_sequences)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
