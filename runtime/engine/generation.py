"""Generation: prompts in, tokens out, several sequences in each step.

Each step takes the next token of every sequence that is decoding and fills the rest of the step with chunks of prompts,
so short and long prompts mix. Answers that share a prompt share its blocks until they write (copy-on-write). A prompt
that goes on where an earlier answer ended may reuse its sequence (`KeptSequence`).

On hosts that pipeline, the step after this one is launched before this one's tokens are read, whenever it is known: all
sequences were in this one to its last token, and the arena has room for them. A sequence that turns out to have ended
(only an end-of-sequence token does that unforeseen) is in one step too many, whose token nobody reads.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import whole_number
from mlxr.runtime.cache.kept_sequence import KeptSequence
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.pipeline import Draws, launch_step
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.too_long import too_long
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


@dataclass(eq=False)
class _Sequence:
    """A sequence of the arena: `length` tokens are in it or in a launched step, `pending` are known and not yet."""

    index: int
    seq_id: int
    pending: list[int]
    sampler: Sampler
    decoder: StreamDecoder | None
    completion: Completion
    limit: int
    """Tokens at which it ends."""
    unread: Sequence[int]
    """What the decoder does not know yet of the prompt."""
    length: int = 0
    is_released: bool = False

    @property
    def is_at_its_last(self) -> bool:
        """Whether it ends with the token that the step drew which brought it to its length."""
        return self.length + 1 >= self.limit


_Step = tuple[list[_Sequence], Draws]
"""A launched step: whose tokens it draws, and these."""


class Generation(Iterator[Event]):
    """A running generation: an iterator that runs steps and gives tokens.

    Its sequences are freed at its end; before that by `close`, at the end of a `with` block, and as soon as nothing
    refers to it: what it holds does not refer back to it, so that leaving a loop over it is enough.

    Attributes:
        completions: the answers so far, by index.
        prefill_seconds: time of the steps in which a prompt was still being read.
        decode_seconds: time of all other steps.
    """

    def __init__(
        self,
        host: Host,
        pager: Pager,
        tokenizer: Tokenizer | None,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: Sampling,
        num_samples: int,
        ignore_eos: bool,
        kept: KeptSequence | None = None,
    ) -> None:
        """See `Model.start`."""
        self._sequences: list[_Sequence] = []
        self._ready: deque[Event] = deque()
        self._following: _Step | None = None
        self._has_begun = self._has_ended = self._lost_its_model = False
        self._kept = kept
        self._host, self._pager, self._tokenizer = host, pager, tokenizer
        self._plan = host.plan
        self._max_tokens = whole_number("max_tokens", max_tokens)
        self._num_samples = whole_number("num_samples", num_samples)
        self._sampling = sampling
        self._stops = frozenset() if ignore_eos or tokenizer is None else frozenset(tokenizer.eos_ids)
        self._check(prompts)
        self.completions = [Completion(len(p)) for p in prompts for _ in range(num_samples)]
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._prompts = prompts

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        context, most = self._plan.arena.context, self._plan.arena.max_sequences
        for name, value in (("max_tokens", self._max_tokens), ("num_samples", self._num_samples)):
            if value < 1:
                raise RequestError(f"{name} is {value!r}; expected a whole number of at least 1")
        if not prompts:
            raise RequestError("no prompt was given; give at least one")
        wanted = len(prompts) * self._num_samples
        if self._kept is not None and (wanted != 1 or self._kept.in_use or self._kept.pager is not self._pager):
            raise RequestError(
                "a kept sequence serves one answer of its own model at a time: finish or close the other generation, "
                "or start without it"
            )
        in_use = self._pager.num_sequences - (self._kept.num_held if self._kept else 0)
        if wanted > most - in_use:
            raise RequestError(
                f"{wanted} sequence{'s' * (wanted > 1)} (prompts x samples) do not fit: the artifact holds {most}, "
                f"{in_use} in use: finish or close other generations, or compile the "
                "spec with a larger cache.max_sequences"
            )
        for prompt in prompts:
            if len(prompt) >= context:
                raise too_long(f"the prompt has {len(prompt)} tokens", context)

    def finish(self) -> list[Completion]:
        """Runs to the end and returns all answers."""
        for _ in self:
            pass
        return self.completions

    def __next__(self) -> Event:
        """The next token. Iterating again goes on where it was left."""
        if self._lost_its_model:
            raise RequestError("the model was closed before the answer ended: ask before its `with` block ends")
        try:
            while not self._ready:
                if self._has_ended or (self._has_begun and not self._sequences):
                    raise StopIteration
                self._run_step()
        except BaseException:
            self.close()
            raise
        return self._ready.popleft()

    def __enter__(self) -> "Generation":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends the generation and frees its sequences."""
        self._has_ended, self._following = True, None
        self._ready.clear()
        try:
            while self._sequences:
                self._release(self._sequences.pop(0))
        finally:
            if self._sequences:  # one could not be released; the others can
                self.close()

    def end_with_model(self) -> None:
        """Closes it because its model is closed, of which it holds nothing then; what is still to come is lost."""
        is_done = self._has_ended or (self._has_begun and not self._sequences and not self._ready)
        self._lost_its_model = not is_done
        self.close()
        del self._host, self._pager

    def _run_step(self) -> None:
        """Runs a step; its tokens are ready then."""
        start = time.perf_counter()
        if not self._has_begun:
            self._begin()
        prefilling = any(not s.completion.token_ids for s in self._sequences)
        step = self._following or self._launch(self._requests())
        self._following = self._launch_ahead(step) if self._host.pipelines else None
        self._ready.extend(self._read(step))
        seconds = time.perf_counter() - start
        if prefilling:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    def _begin(self) -> None:
        """Adds the prompts' sequences."""
        self._has_begun = True
        for number, prompt in enumerate(self._prompts):
            if self._kept is None:
                self._add(number * self._num_samples, self._pager.add_sequence, list(prompt))
            else:
                self._resume(self._kept, prompt)

    def _resume(self, kept: KeptSequence, prompt: Sequence[int]) -> None:
        """Adds the one answer's sequence, of whose prompt the arena may hold the beginning."""
        shared = 0

        def allocate() -> int:
            nonlocal shared
            seq_id, shared = kept.begin(prompt)
            return seq_id

        sequence = self._add(0, allocate, [])
        sequence.length = sequence.completion.cached_tokens = shared
        sequence.pending = list(prompt[shared:])

    def _release(self, sequence: _Sequence) -> None:
        """Gives a sequence back, and with it what a step that is still under way adds to it.

        After an interruption the arena may hold more than `length`, but surely that, less the newest token.
        """
        if sequence.is_released:
            return
        sequence.is_released = True
        if self._kept is None:
            self._pager.free(sequence.seq_id)
        else:
            known = [*self._prompts[0], *sequence.completion.token_ids[:-1]]
            self._kept.end(known[: sequence.length])

    def _add(self, index: int, allocate: Callable[[], int], pending: list[int]) -> _Sequence:
        """Adds an answer's sequence. It is allocated last, so that nothing between can fail and leak it."""
        decoder = self._tokenizer.stream_decoder() if self._tokenizer else None
        prompt = self._prompts[index // self._num_samples]
        sampler, completion = Sampler(self._sampling, stream=index), self.completions[index]
        limit = min(self._plan.arena.context, completion.prompt_tokens + self._max_tokens)
        sequence = _Sequence(index, allocate(), pending, sampler, decoder, completion, limit, prompt)
        self._sequences.append(sequence)
        return sequence

    def _read_prompt(self, sequence: _Sequence) -> None:
        """Tells the decoder of the prompt, after which text goes on, so that both are the text of all tokens.

        The first step has been launched by then: it need not wait for this.
        """
        if sequence.decoder:
            for token in sequence.unread:
                self._text(sequence.decoder, token)
        sequence.unread = ()

    def _text(self, decoder: StreamDecoder | None, token: int) -> str:
        """What a token adds to the text: nothing for the ids by which a model's vocabulary exceeds its tokenizer's."""
        known = self._tokenizer is not None and token < self._tokenizer.vocab_size
        return decoder.push(token) if decoder and known else ""

    def _requests(self) -> list[tuple[_Sequence, BatchRequest]]:
        """The next step: decoding sequences first, then prompts in order, as far as limits and free blocks reach.

        Who does not get blocks waits for others to end. When nobody can go on, the first one is tried all the same,
        for the arena's own error.
        """
        budget, rows = self._plan.max_tokens, self._plan.max_rows
        requests: list[tuple[_Sequence, BatchRequest]] = []
        growths: list[tuple[int, int]] = []
        for sequence in sorted(self._sequences, key=lambda s: len(s.pending) > 1):
            count = min(len(sequence.pending), budget)
            last = count == len(sequence.pending)
            if not count or (last and not rows):
                continue
            growth = (sequence.seq_id, count)
            if not self._pager.can_append_all([*growths, growth]):
                continue
            growths.append(growth)
            budget -= count
            rows -= last
            request = BatchRequest(
                sequence.seq_id, sequence.pending[:count], sequence.length, "last" if last else "none"
            )
            requests.append((sequence, request))
        if not requests:
            first = self._sequences[0]
            count = min(len(first.pending), self._plan.max_tokens)
            requests.append((first, BatchRequest(first.seq_id, first.pending[:count], first.length, "none")))
        return requests

    def _launch(self, requests: list[tuple[_Sequence, BatchRequest]], tokens: mx.array | None = None) -> _Step:
        """Launches a step and the drawing of its tokens; a prompt that ends in it is forked for its other samples."""
        logits = launch_step(self._host, self._pager, [r for _, r in requests], tokens)
        rows: list[int] = []
        drawing: list[_Sequence] = []
        for sequence, request in requests:
            sequence.length += len(request.tokens)
            del sequence.pending[: len(request.tokens)]
            if request.rows == "last":
                siblings = [sequence]
                if sequence.length == sequence.completion.prompt_tokens:
                    siblings += [self._fork(sequence, sample) for sample in range(1, self._num_samples)]
                rows += [rows[-1] + 1 if rows else 0] * len(siblings)
                drawing += siblings
        return drawing, Draws(self._host, logits, rows, [sequence.sampler for sequence in drawing])

    def _launch_ahead(self, step: _Step) -> _Step | None:
        """Launches the step that takes the tokens which another one is about to draw; None if it is not known yet."""
        drawing, draws = step
        index = {sequence: i for i, sequence in enumerate(drawing)}
        if any(sequence not in index for sequence in self._sequences):
            return None  # a prompt is being read, or waits for room that the end of another may give
        going = [sequence for sequence in self._sequences if not sequence.is_at_its_last]
        if not 0 < len(going) <= min(self._plan.max_tokens, self._plan.max_rows):
            return None
        if not self._pager.can_append_all([(sequence.seq_id, 1) for sequence in going]):
            return None
        requests = [(sequence, BatchRequest(sequence.seq_id, [0], sequence.length)) for sequence in going]
        return self._launch(requests, draws.tokens([index[sequence] for sequence in going]))

    def _fork(self, sequence: _Sequence, sample: int) -> _Sequence:
        fork = self._add(sequence.index + sample, partial(self._pager.fork, sequence.seq_id), [])
        fork.length = sequence.length
        return fork

    def _read(self, step: _Step) -> list[Event]:
        """Waits for a step's tokens. Those of sequences that ended while it was under way are dropped."""
        drawing, draws = step
        for one in drawing:
            self._read_prompt(one)
        tokens = zip(drawing, draws.read(), strict=True)
        return [self._accept(one, token) for one, token in tokens if one.completion.finish_reason is None]

    def _accept(self, sequence: _Sequence, token: int) -> Event:
        completion = sequence.completion
        completion.token_ids.append(token)
        num_tokens = completion.prompt_tokens + len(completion.token_ids)
        stop = token in self._stops
        text = "" if stop else self._text(sequence.decoder, token)
        if stop:
            completion.finish_reason = "stop"
        elif num_tokens >= sequence.limit:
            completion.finish_reason = "length" if len(completion.token_ids) >= self._max_tokens else "context"
        if completion.finish_reason:
            text += sequence.decoder.flush() if sequence.decoder else ""
            self._release(sequence)
            self._sequences.remove(sequence)
        elif sequence.length < num_tokens:
            sequence.pending.append(token)  # else the step that takes it has been launched
        completion.text += text
        return Event(sequence.index, token, text, completion.finish_reason)
