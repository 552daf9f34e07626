"""How a model is loaded: the one record that commands, the Python API, the server and the registry pass on."""

import dataclasses
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.loading.adapter_paths import NO_ADAPTERS, GivenAdapters
from mlxr.runtime.argument_types import PATH, expect, whole_number
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.hosts.registry import AUTO
from mlxr.runtime.memory.mmap_choice import Mmap

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Progress

Mtp = Literal["auto", "on", "off"]
"""Whether the model's own head guesses tokens."""
ExpertsOnCpu = int | Literal["auto"] | None
"""Of how many layers the CPU computes the chosen experts; see `LoadOptions`."""
USUAL_SEQUENCES = 16
"""Sequences that an engine computes in a step, if nobody says otherwise."""


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded, apart from which. The registry keeps the first six fields of a model.

    Raises:
        TypeError: a field has a value of a wrong type.
        RequestError: several ways to guess tokens are asked for.

    Attributes:
        weights: a .safetensors or .gguf file, a safetensors index, or a folder of them; None: the model's own.
        tokenizer: a tokenizer.json, a tokenizer.model, a GGUF file or a folder; None: the one in or beside the weights.
        host: `auto`, `metal`, `cuda`, `cpu`, `sim` or `reference`.
        threads: how many threads host cpu runs; None: one for each core that this process may use.
        changes: changes to the model's spec; of `needed_context` and `sequences` only the caller knows. With tiers,
            layers that see a window keep all tokens.
        template: the text of a chat template to use instead of the model's own; None: its own.
        tiers: how much to keep, in host memory and on disk, of the KV cache that the arena has no room for.
        draft: a smaller model of the same vocabulary that guesses tokens, named like the model, or a head of other
            files that does (EAGLE-3); None: there is none.
        prompt_lookup: whether tokens are guessed without a model, where the text repeats itself.
        mtp: whether the model's own head guesses tokens: `auto`: if it has one, as long as that pays, and not beside a
            draft model or prompt lookup; `on`: it must have one; `off`: never.
        adapters: LoRA adapters that are loaded with it, and places for more.
        shrink_arena: whether the arena may be smaller than the spec says, if this machine lacks memory now.
        most_bytes: memory that it may take, mapped weights included, a draft model not; None: what is free.
        control: of a model that is split over several ranks: HOST:PORT at which rank 0 listens for the others; None:
            chosen.
        ranks: over how many ranks a model that is not compiled yet is split, where its spec does not say; None: as many
            as `mlx.launch` started. 1: each of these loads a whole model for itself.
        needs_text: whether a model without a tokenizer that can be used is refused, before anything is compiled.
        mmap: whether host cpu maps quantised weights from a file of the cache, which it packs once, or packs them into
            memory: `auto`: where they do not fit into memory, where packing takes long, and where the file is there;
            `on`, `off`: always, never.
        experts_on_cpu: of how many layers, from the first on, the CPU computes the chosen experts beside a card:
            `auto`: of as few as are needed for the rest to fit into the card's memory; None: as the spec says.
        progress: called with what is being loaded and how far it is.
    """

    weights: str | Path | None = None
    tokenizer: str | Path | None = None
    host: str = AUTO
    threads: int | None = None
    changes: Changes = NO_CHANGES
    template: str | None = None
    tiers: TierSizes = NO_TIERS
    draft: "str | os.PathLike[str] | None" = None
    prompt_lookup: bool = False
    mtp: Mtp = "auto"
    adapters: GivenAdapters = NO_ADAPTERS
    shrink_arena: bool = False
    most_bytes: int | None = None
    control: str | None = None
    ranks: int | None = None
    needs_text: bool = False
    mmap: Mmap = "auto"
    experts_on_cpu: ExpertsOnCpu = None
    progress: "Progress | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Checks what can be checked without the model."""
        expect("weights", self.weights, (*PATH, type(None)), "the path of a file or folder")
        expect("host", self.host, str, "a host's name")
        expect("tokenizer", self.tokenizer, (*PATH, type(None)), "the path of a file or folder")
        expect("changes", self.changes, Changes, "mlxr.Changes")
        expect("draft", self.draft, (*PATH, type(None)), "a model's name or path")
        if self.prompt_lookup and self.draft is not None:
            raise RequestError("a draft model and prompt lookup both guess tokens: choose one of them")
        if self.mtp not in get_args(Mtp):
            raise RequestError(f"mtp is {self.mtp!r}, expected {', '.join(get_args(Mtp))}")
        if self.mtp == "on" and (self.prompt_lookup or self.draft is not None):
            what = "prompt lookup" if self.prompt_lookup else "a draft model"
            raise RequestError(f"{what} and the model's own head both guess tokens: choose one of them")
        if self.mmap not in get_args(Mmap):
            raise RequestError(f"mmap is {self.mmap!r}, expected {', '.join(get_args(Mmap))}")
        if isinstance(self.experts_on_cpu, str):
            if self.experts_on_cpu != "auto":
                raise RequestError(f"experts_on_cpu is {self.experts_on_cpu!r}, expected auto or a number of layers")
        elif self.experts_on_cpu is not None:
            object.__setattr__(self, "changes", replace(self.changes, experts_on_cpu=self.experts_on_cpu))
        if self.threads is not None:
            whole_number("threads", self.threads)
        if self.tiers:  # a prefix that comes back from a tier needs all of its blocks
            object.__setattr__(self, "changes", replace(self.changes, keep_windows=True))

    def over(self, registered: "LoadOptions") -> "LoadOptions":
        """These options; those at their defaults are taken from what the model was registered with.

        Threads belong to a host: those of the registry hold only where its host does.
        """
        host, threads = self.host, self.threads
        if host == AUTO:
            host, threads = registered.host, registered.threads if threads is None else threads
        return replace(
            self,
            weights=self.weights or registered.weights,
            tokenizer=self.tokenizer or registered.tokenizer,
            host=host,
            threads=threads,
            changes=merged(registered.changes, self.changes),
            template=registered.template if self.template is None else self.template,
        )

    def with_places(self) -> "LoadOptions":
        """These, with places for the adapters that the model is loaded with, unless places are asked for.

        Raises:
            MlxrError: an adapter cannot be opened.
        """
        if not self.adapters or self.changes.adapters is not None:
            return self
        return replace(self, changes=replace(self.changes, adapters=self.adapters.places()))

    def for_engine(self, max_sequences: int) -> "LoadOptions":
        """These, for an engine that computes so many requests in a step; its arena may be smaller than the spec says.

        Raises:
            TypeError: it is no whole number.
        """
        changes = with_sequences(self.changes, whole_number("max_sequences", max_sequences))
        return replace(self, changes=changes, shrink_arena=True)

    def for_draft(self, max_sequences: int) -> "LoadOptions":
        """How the draft model of a model with so many sequences is loaded: each rank has it whole."""
        return LoadOptions(
            host=self.host,
            threads=self.threads,
            changes=Changes(sequences=max_sequences, trust_artifact=self.changes.trust_artifact),
            shrink_arena=True,
            mtp="off",
            ranks=1,
            mmap=self.mmap,
            progress=self.progress,
        )


NO_OPTIONS = LoadOptions()


def with_sequences(changes: Changes, max_sequences: int) -> Changes:
    """Changes to a spec that also let so many sequences be computed in a step."""
    return replace(changes, sequences=max(changes.sequences, max_sequences))


def merged(registered: Changes, given: Changes) -> Changes:
    """The changes that a caller gives, and those of the registry where the caller leaves a field at its default."""
    mine = {name: value for name, value in changes_as_dict(registered).items() if name != "accepted_keys"}
    unset = {name: value for name, value in mine.items() if getattr(given, name) == getattr(NO_CHANGES, name)}
    keys = tuple(dict.fromkeys((*registered.accepted_keys, *given.accepted_keys)))
    return replace(given, **unset, accepted_keys=keys)


def changes_as_dict(changes: Changes) -> dict[str, Any]:
    """The fields of changes that are not at their defaults; without what only a caller knows."""
    fields = (entry.name for entry in dataclasses.fields(Changes) if entry.name not in ("needed_context", "sequences"))
    values = {name: getattr(changes, name) for name in fields}
    return {name: value for name, value in values.items() if value != getattr(NO_CHANGES, name)}
