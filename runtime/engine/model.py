"""A loaded model: an artifact with weights, tokenizer, arena, pager and host, ready to generate."""

import gc
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError, RequestError, blaming_head
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.engine.adapter_set import adapters_of
from mlxr.runtime.engine.choose_arena import Head, choose_arena
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.cpu_experts import card_mmap, check_leaves_experts, load_experts, resting, use_experts
from mlxr.runtime.engine.default_sampling import DefaultSampling, default_sampling
from mlxr.runtime.engine.embeds import Embeds
from mlxr.runtime.engine.errors import ModelClosedError
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.group_rank import LeadingRank
from mlxr.runtime.engine.listeners import Inbox
from mlxr.runtime.engine.logit_chunks import logit_chunks
from mlxr.runtime.engine.make_requests import TERMS, RequestMaker, Terms
from mlxr.runtime.engine.model_adapters import ModelAdapters
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.engine.open_tiers import open_tiers, why_no_tiers
from mlxr.runtime.engine.pool import Pooling, check_output
from mlxr.runtime.engine.prompts import Pair, Prompt, check_ids, list_of, token_ids
from mlxr.runtime.engine.request import Listener, Request
from mlxr.runtime.engine.sampling import Sampling, sampling_for
from mlxr.runtime.engine.speculation.draft_model import DraftModel, check_same_vocabulary
from mlxr.runtime.engine.speculation.own_head import OwnHead
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.engine.warm_up import warm_up
from mlxr.runtime.hosts.host import Host, Progress
from mlxr.runtime.hosts.select import check_host, make_host
from mlxr.runtime.memory.fitting_arena import context_line
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.find_chat_template import Place, ReadMetadata, load_chat_template
from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.runtime.tokenizer.template_files import DEFAULT, NamedTemplates
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.check_metadata import check_metadata
from mlxr.runtime.weights.open_weights import open_weights


class Model(ModelAdapters, Embeds):
    """A model that generates text. Owns its arena and pager.

    Several threads must not use it at once; `mlxr.Engine` is for that. The end of a `with` block closes it.

    Attributes:
        core: the loop that runs the steps of all generations.
        experts: the CPU's part of it, some layers' experts; None: its host computes all of them.
        types: the element types of activations and cache on its host, each with its reason.
        limit: of its context.
        ranks: the other ranks that execute parts of it; None: it is whole.
        default_sampling: how its own files say that tokens are chosen: for requests with `Sampling.of_model`.
    """

    def __init__(
        self,
        artifact: Artifact,
        weights: str | Path,
        *,
        host: str = "auto",
        tokenizer: str | Path | None = None,
        threads: int | None = None,
        tiers: TierSizes = NO_TIERS,
        shrink_arena: bool = False,
        most_bytes: int | None = None,
        mmap: Mmap = "auto",
        needed_context: int = 1,
        progress: Progress | None = None,
        ranks: LeadingRank | None = None,
        read: ModelTokenizer | None = None,
        needs_text: bool = False,
        head: Head | None = None,
    ) -> None:
        """Loads weights and prepares a host.

        Args:
            artifact: the compiled model.
            weights: a .safetensors or .gguf file, a safetensors index, or a folder of them.
            host: `auto`, `metal`, `cuda`, `cpu`, `sim` or `reference`.
            tokenizer: a tokenizer.json, a tokenizer.model, a GGUF file or a folder; None: the one in or beside the
                weights.
            threads: how many threads host cpu runs; None: one for each core that this process may use.
            tiers: how much to keep, in host memory and on disk, of what the arena has no room for.
            shrink_arena: whether the arena may have fewer blocks than the plan, if this machine lacks memory now; at
                least a sequence of full context fits into it.
            most_bytes: memory that it may take, mapped weights included; None: what is free.
            mmap: whether packed weights are mapped from a file of the cache, on a host that packs them.
            needed_context: tokens that a sequence must be able to have, where the spec leaves the context to memory.
            progress: called as loading proceeds.
            ranks: the other ranks that execute parts of the model, of which the artifact is rank 0's; None: it is
                whole. The host closes them.
            read: its tokenizer, if that has been read from these files already.
            needs_text: whether it is of no use without a tokenizer.
            head: a head that guesses for it, of its own or of other files; None: it has none, or that is not used.

        Raises:
            RequestError: it needs a tokenizer, and there is none, or the one in its files cannot be used.
            WeightsError: the weights are corrupt or of another model.
            TokenizerError: a tokenizer was named and is missing or corrupt, or has another vocabulary.
            HostError: the host cannot run here, or this machine has too little memory.
            ArenaError: the arena does not fit into this machine's memory.
        """
        self._running: WeakSet[Generation] = WeakSet()
        self._closed = self._speculates = False
        self._draft: Model | None = None
        self.artifact = artifact
        self.ranks = ranks
        plan = artifact.plan
        if ranks is None and plan.rank is not None:
            raise HostError(
                f"this is rank {plan.rank.rank}'s part of {artifact.spec.name}, which computes nothing alone: load the "
                f"whole artifact on each of its {plan.rank.size} ranks (mlx.launch -n {plan.rank.size} -- ...)"
            )
        entry = check_host(host, plan.targets, threads if artifact.experts is None else None)
        check_leaves_experts(artifact, entry)
        file = open_weights(weights) if head is None or artifact.spec.model.eagle is None else head.file
        check_metadata(file, artifact.spec)
        self._template_places: list[Place] = [] if tokenizer is None else [Path(tokenizer)]
        is_gguf = file.format == "gguf"  # whose metadata have been read
        self._template_places.append(ReadMetadata.of(file.path, file.metadata) if is_gguf else Path(weights))
        self._tokenizer = read or ModelTokenizer(file, weights, tokenizer, plan.vocab_size)
        self.tokenizer = self._tokenizer.require() if needs_text else self._tokenizer.tokenizer
        self.types = plan.programs[entry.target_among(plan.targets)].types
        chosen = choose_arena(
            artifact,
            file,
            entry,
            threads=threads,
            tier_memory=tiers.memory_bytes,
            shrink=shrink_arena,
            most_bytes=most_bytes if ranks is None else ranks.most_bytes(entry, most_bytes),
            mmap=card_mmap(artifact, mmap),
            needed_context=needed_context,
            head=head,
        )
        geometry = chosen.geometry if ranks is None else ranks.agree(chosen.geometry, file, entry)
        self.limit = chosen.limit
        if geometry.context < chosen.limit.tokens:
            self.limit = replace(chosen.limit, tokens=geometry.context, why="another rank has less memory free")
        self.arena = entry.load().arena_type(geometry)
        self.pager = Pager.from_geometry(geometry, record_evictions=bool(tiers))
        self.experts = load_experts(artifact, file, threads=threads, mmap=mmap, progress=progress)
        load = partial(make_host, host, threads=threads if self.experts is None else None, progress=progress)
        self._tokenizer.learn_all(entry.load())
        self.host = load(artifact, file, self.arena, resident=chosen.resident)
        if ranks is not None:
            self.host = ranks.lead(self.host)
        self._notes = chosen.notes + use_experts(self.host, self.experts)
        if self.host.builds_late:
            with resting(self.experts):
                warm_up(self.host, self.pager, progress)
        opened = open_tiers(artifact, file, self.host, tiers) if tiers else None
        self._notes += (why_no_tiers(artifact),) if tiers and opened is None else ()
        adapters = adapters_of(artifact, self.host)
        self.core = EngineCore(self.host, self.pager, opened, adapters=adapters)
        self._head: OwnHead | None = None
        if head is not None:
            with blaming_head():
                runner = load(*head[:2], self.arena, lender=self.host, resident=chosen.resident and 0)
                self._head = OwnHead(runner, self.pager, self.core.save_evicted, progress, head.ids)
            self.core.speculator = Speculator(self._head, self.host.clock)
            self._speculates = artifact.spec.model.eagle is not None
        self.default_sampling: DefaultSampling = default_sampling(file, plan.vocab_size, tokenizer)
        self._file = file
        self._maker = RequestMaker(
            plan,
            geometry,
            self.tokenizer,
            (artifact.spec.name, str(geometry.cache_type)),
            self.limit,
            adapters,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What this machine does otherwise than the plan asks, as messages for people."""
        return (*self._notes, *self.host.notes)

    @property
    def context_line(self) -> str:
        """How long a sequence may be, why, and what the cache takes, for people."""
        return context_line(self.limit, self.arena.geometry, self.arena.takes_pages)

    def unused_bytes(self) -> int:
        """Bytes of the arena that are not in memory yet, and will be when more of it is used."""
        if not self.arena.takes_pages:
            return 0
        return sum(map(operator.mul, self.pager.num_untaken, self.host.block_bytes_of_groups))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Text gets a BOS if its tokenizer says so; ids are taken as they are.

        Raises:
            TypeError: the prompt is neither text nor ids.
            RequestError: text without a tokenizer, no tokens, or an id outside the vocabulary.
        """
        if isinstance(prompt, Pair):
            prompt = prompt.ids
        ids = self.require_tokenizer().encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise RequestError("the prompt has no tokens; give it at least one")
        check_ids(ids, self.artifact.plan.vocab_size)
        return ids

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        return self._tokenizer.require()

    def start(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
        adapter: str | None = None,
    ) -> Generation:
        """Starts generating for any number of prompts; iterate over the result for the tokens.

        Args:
            prompts: texts or token ids.
            max_tokens: most tokens of each answer; None: what `sampling` says.
            sampling: how tokens are chosen and when answers end; None: greedily.
            ignore_eos: continue after an end-of-sequence token, as `sampling.ignore_eos` does.
            adapter: the name of a loaded adapter; None: that with which the model was loaded, if it was with one.

        Raises:
            TypeError: an argument of a wrong type.
            PromptTooLongError: a prompt that leaves no token of the context for the answer.
            RequestError: no prompt, or a bad option.
        """
        self._check_open()
        sampling = sampling_for(sampling, max_tokens, ignore_eos)
        events = Inbox()
        requests = self.make_requests(list_of(prompts), sampling, events, Terms(adapter=adapter))
        generation = Generation(self.core, requests, events)
        self._running.add(generation)
        return generation

    def make_requests(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        listener: Listener,
        terms: Terms = TERMS,
        pooling: Pooling | None = None,
    ) -> list[Request]:
        """Requests for the core; all that can be refused is refused here. Any thread may call it.

        Args:
            prompts: texts or token ids.
            sampling: how tokens are chosen and when answers end.
            listener: is told of events and errors.
            terms: priority, deadline and the like.
            pooling: how the rows of the prompts are pooled, which then get no answers; None: they get answers.

        Raises:
            TypeError: a prompt of a wrong type.
            PromptTooLongError: a prompt that leaves no token of the context for the answer.
            RequestError: no prompt, or a bad option, or the model was loaded for the other thing.
            ModelClosedError: another thread has closed the model meanwhile.
        """
        check_output(self.artifact.plan, pooling)
        if not prompts:
            raise RequestError("no prompt was given; give at least one")
        for prompt in prompts:
            if isinstance(prompt, str):
                check_length(prompt, self.require_tokenizer(), self.limit, pooling is None)
        ids = [self.encode(prompt) for prompt in prompts]
        sampling = self.default_sampling.completed(sampling)
        if terms.adapter is None and self.default_adapter is not None:
            terms = replace(terms, adapter=self.default_adapter)
        now, make = self.running_core().clock(), self._maker.make
        second = [prompt.second if isinstance(prompt, Pair) else None for prompt in prompts]
        return [
            request
            for i, prompt in enumerate(ids)
            for request in make(i, prompt, sampling, listener, now, terms, pooling, second[i])
        ]

    def speculate(self, draft: "Model | None" = None) -> None:
        """Lets requests that begin from now on try guessed tokens, several in a step: their answers stay the same.

        Requests do not speculate whose next choice depends on accepted tokens (penalties), nor those that ask for
        `prompt_logprobs`. On hosts that pipeline (metal, cuda), no step is launched ahead while drafts are tried. From
        then on, the model's own head does not guess.

        Args:
            draft: a smaller model of the same vocabulary that guesses; from now on it belongs to this one. None: tokens
                are guessed where the text repeats itself (prompt lookup).

        Raises:
            RequestError: the draft model has another vocabulary, or this model speculates already.
        """
        self._check_open()
        check_output(self.artifact.plan, None)
        if self._speculates:
            raise RequestError("the model speculates already: load it again to guess tokens in another way")
        guesser = None
        if draft is not None:
            check_same_vocabulary(self.artifact, self.tokenizer, draft.artifact, draft.tokenizer)
            guesser = DraftModel(draft.host, draft.pager, self.artifact.plan.vocab_size)
        self.core.speculator = Speculator(guesser, self.host.clock)
        self._draft, self._speculates = draft, True

    def chat_template(self, file: str | Path | None = None) -> ChatTemplate:
        """The model's chat template.

        Args:
            file: a Jinja2 file to use instead of the template that came with the model.

        Raises:
            ChatTemplateError: the model has none.
            TokenizerError: a file that should contain it cannot be read.
            RequestError: the model has no tokenizer.
        """
        return load_chat_template(self._template_places, self.require_tokenizer(), file)

    def use_template(self, text: str, source: str) -> None:
        """Makes a chat template the model's own.

        Args:
            text: the template.
            source: where it comes from, for messages.
        """
        self._template_places.insert(0, NamedTemplates({DEFAULT: text}, source))

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """The answer to one prompt; iterate over it for the tokens. See `start`."""
        return self.start([prompt], max_tokens=max_tokens, sampling=sampling, adapter=adapter)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        adapter: str | None = None,
    ) -> Completion:
        """The whole answer to one prompt; see `start`."""
        return self.start([prompt], max_tokens=max_tokens, sampling=sampling, adapter=adapter).finish()[0]

    def fill(
        self,
        prefix: str,
        suffix: str,
        *,
        files: Iterable[tuple[str, str]] = (),
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
    ) -> Completion:
        """What a model for code puts between two texts, with other files (each a name and a text) in view; see `start`.

        Raises:
            RequestError: its vocabulary has no control tokens for that.
        """
        options = sampling_for(sampling, max_tokens, ignore_eos=False)
        prompt = infill_prompt(self.require_tokenizer(), Gap(prefix, suffix, list(files)))
        return self.generate(prompt.ids, sampling=options.ending_also(prompt.ends))

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each token: [tokens, vocab], f32.

        Raises:
            RequestError: more tokens than the context, none, or an id outside the vocabulary.
        """
        return np.concatenate(list(self.logit_chunks(tokens)))

    def logit_chunks(self, tokens: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
        """Logits after each token, in order, as many rows at a time as a step computes: [rows, vocab], f32.

        Raises:
            RequestError: more tokens than the context, none, or an id outside the vocabulary.
        """
        self._check_open()
        check_output(self.artifact.plan, None)
        ids = self.encode(tokens)
        if len(ids) > self.limit.tokens:
            raise RequestError(f"{len(ids)} tokens are more than the context of {self.limit.tokens}")
        uses = None if self.default_adapter is None else [self.adapters.use(self.default_adapter).place]
        yield from logit_chunks(self.artifact.plan, self.pager, ids, self._running_host, uses)

    def _running_host(self) -> Host:
        self._check_open()
        return self.host

    def running_core(self) -> EngineCore:
        """The core, for threads that do not run it: another one may close the model at any time.

        Raises:
            ModelClosedError: the model is closed.
        """
        core: EngineCore | None = vars(self).get("core")
        if core is None:
            raise ModelClosedError
        return core

    def close(self) -> None:
        """Ends all generations and frees weights, arena and threads; the model cannot be used afterwards."""
        if self._closed:
            return
        self._closed = True
        refers_to_itself = self.host.has_own_memory
        for generation in list(self._running):
            generation.end_with_model()
        with ExitStack() as closing:  # whatever fails, the rest is closed
            for guesser in (self._draft, self._head):
                if guesser is not None:
                    closing.callback(guesser.close)
            guesser = self._draft = self._head = None  # it has the host and the arena, too
            if self.experts is not None:  # after the card's host, whose steps wait for it
                closing.callback(self.experts.close)
            closing.callback(self.host.close)
            closing.callback(self._maker.close)
            closing.callback(self.core.close)
            del self.host, self.arena, self.core
        if refers_to_itself:  # steps and their traces have the host; nobody knows when a card's memory would be free
            gc.collect()

    def _check_open(self) -> None:
        if self._closed:
            raise ModelClosedError

    def __enter__(self) -> "Model":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._closed else f"host {self.host.name}"
        arena = self.artifact.plan.arena
        return f"<Model {self.artifact.spec.name}: {where}, context {self.limit.tokens} x {arena.max_sequences}>"
