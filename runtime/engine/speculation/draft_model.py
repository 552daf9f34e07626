"""A draft model: a smaller model of the same vocabulary guesses what a text goes on with, for several texts at once.

Its tokens must mean the same text as those of the model for which it guesses: `check_same_vocabulary`.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from mlxr.compiler.artifact import MOST_UNDONE, Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import copy_shared_blocks
from mlxr.runtime.engine.speculation.guess_costs import GuessCosts
from mlxr.runtime.engine.speculation.text import Text
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


@dataclass
class _Draft:
    """A text in the draft model's arena.

    Attributes:
        seq_id: its sequence.
        tokens: what the sequence holds: tokens of the text, then perhaps guesses.
        certain: how many of them are the text's.
    """

    seq_id: int
    tokens: list[int] = field(default_factory=list)
    certain: int = 0


class DraftModel:
    """Guesses greedily. It owns sequences in the draft model's own arena, at most as many as that has room for.

    Attributes:
        hope: see `Guesser`.
    """

    hope = 0.5

    def __init__(self, host: Host, pager: Pager, vocab_size: int) -> None:
        """Starts without texts.

        Args:
            host: runs the draft model.
            pager: of its arena.
            vocab_size: ids of the model for which it guesses; `check_same_vocabulary` has compared them.
        """
        self._host, self._pager = host, pager
        self._known = host.plan.vocab_size
        self._vocab_size = min(vocab_size, self._known)
        self._drafts: dict[Hashable, _Draft] = {}
        self._costs = GuessCosts()

    @property
    def launches(self) -> Mapping[str, int]:
        """See `Guesser`."""
        return self._host.launches

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        """Guesses up to `text.most` tokens of each text; none while the model still reads the text.

        At most one step's worth of what it has not read is read, so that a long prompt does not hold up other texts.

        Raises:
            HostError: a step of the draft model failed; it has forgotten these texts.
        """
        try:
            guesses = self._guess([text for text in texts if text.most > 0 and self._takes(text)])
        except BaseException:
            for text in texts:
                self.end(text.key)
            raise
        return [guesses.get(text.key, []) for text in texts]

    def seconds(self, guesses: int) -> float:
        """See `Guesser`."""
        return self._costs.seconds(guesses)

    def reading(self, text: Text) -> float:
        """See `Guesser`."""
        draft = self._drafts.get(text.key)
        return self._costs.reading(len(text.tokens) - (draft.certain if draft else 0))

    def measure_anew(self) -> None:
        """See `Guesser`."""
        self._costs = GuessCosts()

    def end(self, key: Hashable) -> None:
        """Forgets a text."""
        if draft := self._drafts.pop(key, None):
            self._pager.free(draft.seq_id)

    def close(self) -> None:
        """Forgets all texts."""
        for key in list(self._drafts):
            self.end(key)

    def _takes(self, text: Text) -> bool:
        """Whether a text fits the draft model, which may have a shorter context and lack ids that have no text."""
        draft = self._drafts.get(text.key)
        new = text.tokens[draft.certain if draft else 0 :]
        if len(text.tokens) + text.most <= self._pager.context and max(new, default=0) < self._known:
            return True
        self.end(text.key)
        return False

    def _guess(self, texts: Sequence[Text]) -> dict[Hashable, list[int]]:
        """Reads what is new of the texts; guesses of those that it has read to their end."""
        budget, rows = self._host.plan.max_tokens, self._host.plan.max_rows
        reading: list[tuple[Text, BatchRequest]] = []
        for text, draft in self._with_room(texts):
            start = len(draft.tokens)
            chunk = list(text.tokens[start : start + budget])
            is_last = start + len(chunk) == len(text.tokens)
            if chunk and rows >= is_last:
                budget, rows = budget - len(chunk), rows - is_last
                reading.append((text, BatchRequest(draft.seq_id, chunk, start, "last" if is_last else "none")))
        if not reading:
            return {}
        reading.sort(key=lambda one: -one[0].most)  # those that are guessed on are the first ones of a step
        texts = [text for text, request in reading if request.rows == "last"]
        found = self._run([request for _, request in reading], texts)
        for text, request in reading:
            draft = self._drafts[text.key]
            draft.tokens += request.tokens
            draft.certain = len(draft.tokens)
        guesses = {text.key: [step[i] for step in found[: text.most]] for i, text in enumerate(texts)}
        for key, guess in guesses.items():
            draft = self._drafts[key]
            draft.tokens += guess[:-1]
        return guesses

    def _with_room(self, texts: Sequence[Text]) -> list[tuple[Text, _Draft]]:
        """The texts for which there is room up to their last guess, those first that have been begun."""
        keys = {text.key for text in texts}
        growths: list[tuple[int, int]] = []
        fitting = []
        for text in sorted(texts, key=lambda text: text.key not in self._drafts):
            if (draft := self._draft_of(text, keys)) is None:
                continue
            growths.append((draft.seq_id, len(text.tokens) + text.most - len(draft.tokens)))
            if self._make_room(growths, keys):
                fitting.append((text, draft))
            else:
                growths.pop()
                self.end(text.key)
        return fitting

    def _run(self, requests: Sequence[BatchRequest], texts: Sequence[Text]) -> list[list[int]]:
        """Reads, and guesses how texts go on, of which the first ones have most guesses.

        Returns:
            Of each guess in turn, the tokens of the texts that have as many, of those that both models have.
        """
        begun, begun_clock = time.perf_counter(), self._host.clock()
        tile = self._host.plan.query_tile
        steps = [Batch.build(requests, self._pager, tile)]
        seq_ids = [self._drafts[text.key].seq_id for text in texts]
        undo = 0 if self._pager.states is None else MOST_UNDONE
        for guessed in range(1, texts[0].most if texts else 0):
            going = [
                BatchRequest(seq_id, [0], len(text.tokens) + guessed - 1, undo=undo)
                for text, seq_id in zip(texts, seq_ids, strict=True)
                if text.most > guessed
            ]
            steps.append(Batch.build(going, self._pager, tile))
        copy_shared_blocks(self._host, self._pager, None)
        tokens, later = self._host.chain(steps, self._vocab_size)
        seconds, read = self._host.clock() - begun_clock, steps[0].num_tokens
        disturbed = time.perf_counter() - begun - seconds
        if read > (1 + MOST_UNDONE) * len(texts):
            self._costs.has_read(read, seconds)
        elif texts and read <= (1 + MOST_UNDONE) * len(texts):  # all that was new may have been guesses
            self._costs.measured(seconds, len(steps), later, disturbed)
        return tokens

    def _draft_of(self, text: Text, keys: set[Hashable]) -> _Draft | None:
        """The text's sequence, without guesses that did not come true; None if there is no room for one more."""
        draft = self._drafts.pop(text.key, None)
        if draft is None:
            if not self._pager.can_add_sequence() and not self._give_up_one(keys):
                return None
            draft = _Draft(self._pager.add_sequence())
        self._drafts[text.key] = draft  # what was asked for last comes last
        same, most = draft.certain, min(len(draft.tokens), len(text.tokens) - 1)  # the last token's logits are wanted
        while same < most and draft.tokens[same] == text.tokens[same]:
            same += 1
        same = self._pager.nearest(draft.seq_id, min(same, most))
        del draft.tokens[same:]
        draft.certain = same
        self._pager.truncate(draft.seq_id, same)
        return draft

    def _make_room(self, growths: Sequence[tuple[int, int]], keys: set[Hashable]) -> bool:
        while not self._pager.has_room(growths):
            if not self._give_up_one(keys):
                return False
        return True

    def _give_up_one(self, keys: set[Hashable]) -> bool:
        """Frees the sequence that was asked for longest ago, of texts that nobody asks for now."""
        for key in self._drafts:
            if key not in keys:
                self.end(key)
                return True
        return False


def check_same_vocabulary(
    artifact: Artifact, tokenizer: Tokenizer | None, draft_artifact: Artifact, draft_tokenizer: Tokenizer | None
) -> None:
    """Compares the vocabularies of a model and its draft model token by token; without tokenizers only their sizes.

    Either model may have rows for more ids than the tokenizer: they have no text.

    Raises:
        RequestError: a token means another text in the draft model, or only one of the models has a tokenizer.
    """
    name, draft_name = artifact.spec.name, draft_artifact.spec.name
    size, draft_size = artifact.plan.vocab_size, draft_artifact.plan.vocab_size
    what = f"{draft_name} cannot be the draft model of {name}"
    fix = "take a smaller model of the same family, or prompt lookup, which needs no model"
    if tokenizer is None and draft_tokenizer is None:
        if size != draft_size:
            raise RequestError(f"{what}: its vocabulary has {draft_size} tokens, not {size}: {fix}")
        return
    if tokenizer is None or draft_tokenizer is None:
        lacking = name if tokenizer is None else draft_name
        raise RequestError(f"{what}: {lacking} has no tokenizer, so nothing tells whether their tokens are the same")
    used = min(size, tokenizer.vocab_size)
    draft_used = min(draft_size, draft_tokenizer.vocab_size)
    if draft_used < used:
        raise RequestError(f"{what}: its vocabulary has {draft_used} tokens, not {used}: {fix}")
    for token in range(used):
        text, draft_text = tokenizer.token_text(token), draft_tokenizer.token_text(token)
        if text != draft_text:
            raise RequestError(f"{what}: token {token} is {draft_text!r} in it, and {text!r} in {name}: {fix}")
