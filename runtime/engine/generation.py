"""Generation: prompts in, tokens out, several sequences in each step.

Each step takes the next token of every answer that is decoding and fills the rest of the step with chunks of prompts,
so short and long prompts mix (see schedule.py). Answers to the same prompt share its blocks until they write to them
(copy-on-write). A prompt that continues an earlier one and its answer may reuse their sequence (`PrefixCacheEntry`).

Hosts that pipeline get the next step before the tokens of this one are read, whenever the next step is known by then:
every answer has a token in this step, and the arena has room for all of them. An answer that turns out to have ended
(only an end-of-sequence token comes unforeseen) is in one step too many, whose token nobody reads.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import whole_number
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.prefix_cache_entry import PrefixCacheEntry
from mlxr.runtime.engine.answer import Answer
from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.pipeline import Samples, launch_step
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.schedule import Scheduled, next_step, step_ahead
from mlxr.runtime.engine.too_long import too_long
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


class _LaunchedStep(NamedTuple):
    """A step that has been launched: the answers that it samples tokens for, and these tokens."""

    answers: list[Answer]
    samples: Samples


class Generation(Iterator[Event]):
    """A running generation: an iterator that runs steps and gives tokens.

    Its sequences are freed when it ends: after the last token, by `close`, at the end of a `with` block, or when the
    last reference to it goes. Nothing that it refers to refers back to it, so leaving a loop over it is enough.

    Attributes:
        completions: the answers so far, by index.
        prefill_seconds: time of the steps during which a prompt was not yet complete.
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
        kept: PrefixCacheEntry | None = None,
    ) -> None:
        """See `Model.start`."""
        self._answers: list[Answer] = []
        self._ready: deque[Event] = deque()
        self._ahead: _LaunchedStep | None = None
        self._has_begun = self._has_ended = self._lost_its_model = False
        self._prefix = kept
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
        prefix = self._prefix
        if prefix is not None and (wanted != 1 or prefix.in_use or prefix.pager is not self._pager):
            raise RequestError(
                "a prefix cache entry (kept=) serves one answer of its own model at a time: finish or close the other "
                "generation, or start without the entry"
            )
        in_use = self._pager.num_sequences - (prefix.num_sequences if prefix else 0)
        if wanted > most - in_use:
            raise RequestError(
                f"{'1 sequence does' if wanted == 1 else f'{wanted} sequences (prompts x samples) do'} not fit: the "
                f"artifact holds {most}, "
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
        """The next token. Iterating again continues where the last loop stopped."""
        if self._lost_its_model:
            raise RequestError("the model was closed before the answer ended: ask before its `with` block ends")
        try:
            while not self._ready:
                if self._has_ended or (self._has_begun and not self._answers):
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
        self._has_ended, self._ahead = True, None
        self._ready.clear()
        try:
            while self._answers:
                self._release(self._answers.pop(0))
        finally:
            if self._answers:  # one could not be released; the others can
                self.close()

    def end_with_model(self) -> None:
        """Closes the generation because its model is being closed, and drops every reference to what the model owns.

        Tokens that have not been taken yet are lost.
        """
        is_done = self._has_ended or (self._has_begun and not self._answers and not self._ready)
        self._lost_its_model = not is_done
        self.close()
        del self._host, self._pager

    def _run_step(self) -> None:
        """Runs a step, and puts its tokens into `_ready`."""
        start = time.perf_counter()
        if not self._has_begun:
            self._begin()
        is_prefilling = any(not answer.completion.token_ids for answer in self._answers)
        step = self._ahead or self._launch(next_step(self._answers, self._plan, self._pager))
        self._ahead = self._launch_ahead(step) if self._host.pipelines else None
        self._ready.extend(self._read(step))
        seconds = time.perf_counter() - start
        if is_prefilling:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    def _begin(self) -> None:
        """Adds the first answer to each prompt; the others are forked from it when the prompt is complete."""
        self._has_begun = True
        for number, prompt in enumerate(self._prompts):
            if self._prefix is None:
                self._add(number * self._num_samples, self._pager.add_sequence, list(prompt))
            else:
                self._resume(self._prefix, prompt)

    def _resume(self, prefix: PrefixCacheEntry, prompt: Sequence[int]) -> None:
        """Adds the only answer in the sequence of a prefix cache entry, which may hold the prompt's first tokens."""
        num_cached = 0

        def allocate() -> int:
            nonlocal num_cached
            seq_id, num_cached = prefix.begin(prompt)
            return seq_id

        answer = self._add(0, allocate, [])
        answer.length = answer.completion.cached_tokens = num_cached
        answer.pending = list(prompt[num_cached:])

    def _add(self, index: int, allocate: Callable[[], int], pending: list[int]) -> Answer:
        """Adds an answer. Its sequence is allocated last: nothing can fail after that and leak it."""
        tokenizer = self._tokenizer
        decoder = tokenizer.stream_decoder() if tokenizer else None
        num_decodable = tokenizer.vocab_size if tokenizer else 0
        prompt = self._prompts[index // self._num_samples]
        sampler, completion = Sampler(self._sampling, stream=index), self.completions[index]
        max_length = min(self._plan.arena.context, completion.prompt_tokens + self._max_tokens)
        answer = Answer(
            index, allocate(), pending, sampler, decoder, num_decodable, completion, max_length, undecoded=prompt
        )
        self._answers.append(answer)
        return answer

    def _fork(self, answer: Answer, sample: int) -> Answer:
        """Adds another answer to the prompt that one has just completed."""
        fork = self._add(answer.index + sample, partial(self._pager.fork, answer.seq_id), [])
        fork.length = answer.length
        return fork

    def _release(self, answer: Answer) -> None:
        """Gives an answer's sequence back, and with it what a step that is still running adds to it.

        After an interruption the arena may hold more than `length` tokens; `length` of them, without the newest
        sampled one, are certain.
        """
        if answer.is_released:
            return
        answer.is_released = True
        if self._prefix is None:
            self._pager.free(answer.seq_id)
        else:
            known = [*self._prompts[0], *answer.completion.token_ids[:-1]]
            self._prefix.end(known[: answer.length])

    def _launch(self, scheduled: Scheduled, tokens: mx.array | None = None) -> _LaunchedStep:
        """Launches a step and the sampling of its tokens; a prompt that it completes is forked for further samples.

        Args:
            scheduled: the step.
            tokens: its token ids where they are on the device.
        """
        logits = launch_step(self._host, self._pager, [request for _, request in scheduled], tokens)
        rows: list[int] = []
        sampled: list[Answer] = []
        for answer, request in scheduled:
            answer.length += len(request.tokens)
            del answer.pending[: len(request.tokens)]
            if request.rows == "last":
                siblings = [answer]
                if answer.length == answer.completion.prompt_tokens:
                    siblings += [self._fork(answer, sample) for sample in range(1, self._num_samples)]
                rows += [rows[-1] + 1 if rows else 0] * len(siblings)
                sampled += siblings
        return _LaunchedStep(sampled, Samples(self._host, logits, rows, [answer.sampler for answer in sampled]))

    def _launch_ahead(self, step: _LaunchedStep) -> _LaunchedStep | None:
        """Launches the step after a launched one, whose tokens it takes; None if it is not known yet."""
        scheduled = step_ahead(self._answers, step.answers, self._plan, self._pager)
        if not scheduled:
            return None
        index = {answer: i for i, answer in enumerate(step.answers)}
        return self._launch(scheduled, step.samples.tokens([index[answer] for answer, _ in scheduled]))

    def _read(self, step: _LaunchedStep) -> list[Event]:
        """Waits for a step's tokens. Those of answers that ended while it was running are dropped."""
        for answer in step.answers:
            answer.decode_prompt()
        tokens = zip(step.answers, step.samples.read(), strict=True)
        return [self._accept(answer, token) for answer, token in tokens if answer.completion.finish_reason is None]

    def _accept(self, answer: Answer, token: int) -> Event:
        event = answer.accept(token, self._stops, self._max_tokens)
        if event.finish_reason:
            self._release(answer)
            self._answers.remove(answer)
        return event
