"""A head: one more layer that guesses from the rows that the model computes.

It is the model's own (multi-token prediction), or other files bring it (EAGLE-3). The head is a program of its own on
the model's arena. The model keeps a row of each token there, after its final norm or projected as the head needs it,
and the head has keys and values there like any layer: so prefixes, forks and preemption need nothing here. Its entry of
position p comes from row p and token p + 1; guesses go on from the head's own rows, which the model writes over once it
computes these tokens.

Source: DeepSeek-V3 (2024), and `MtpModel` of transformers; EAGLE-3 (2025). A model's own head with several layers
guesses with its first alone.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mlxr.compiler.artifact import HIDDEN, MOST_UNDONE
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import SaveEvicted, copy_shared_blocks
from mlxr.runtime.engine.speculation.guess_costs import GuessCosts
from mlxr.runtime.engine.speculation.head_steps import HeadPart, guess_batches, head_batch
from mlxr.runtime.engine.speculation.text import Text
from mlxr.runtime.engine.warm_up import warm_up
from mlxr.runtime.hosts.batch import Int32Array
from mlxr.runtime.hosts.host import Host, Progress


@dataclass
class _Read:
    """How many positions of a sequence the head has read, and the blocks that had them."""

    seq_id: int
    count: int
    blocks: list[int]


class OwnHead:
    """Guesses greedily, for texts whose tokens, all but the last, the model has computed.

    Attributes:
        hope: see `Guesser`: heads are trained with their models.
    """

    hope = 0.8

    def __init__(
        self,
        host: Host,
        pager: Pager,
        save: SaveEvicted | None = None,
        progress: Progress | None = None,
        ids: Int32Array | None = None,
    ) -> None:
        """Starts without texts.

        Args:
            host: runs the head, on the arena of the model; it is closed with the head.
            pager: of that arena, without sequences.
            save: is given the blocks that the prefix cache gives up; None: they are lost.
            progress: called as steps are prepared, on hosts that build them late.
            ids: of each token that it may guess, the model's id; None: they are the same.
        """
        if host.builds_late:
            warm_up(host, pager, progress)
        self._host, self._pager, self._save, self._ids = host, pager, save, ids
        geometry = host.arena.geometry
        group = geometry.group_of(geometry.store(HIDDEN).owners[-1])
        assert group is not None, "rows for the head are of tokens"
        self._group, self._lives = group, pager.lives(group)
        self._read: dict[Hashable, _Read] = {}
        self._known: dict[int, int] = {}  # by block, its life in which the head has read all of it
        self._costs = GuessCosts()

    @property
    def launches(self) -> Mapping[str, int]:
        """See `Guesser`."""
        return self._host.launches

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        """Guesses up to `text.most` tokens of each text; none while the head still reads the text.

        At most one step's worth is read of texts that it cannot read to their end, so that they do not hold up others.

        Raises:
            HostError: a step of the head failed.
        """
        guesses: dict[Hashable, list[int]] = {}
        wanted = [text for text in texts if text.most > 0 and text.seq_id is not None]
        parts: list[tuple[Text, HeadPart]] = []
        rest: list[tuple[Text, HeadPart]] = []
        budget = self._host.plan.max_tokens
        written: set[int] = set()
        for text in wanted[: self._host.plan.max_rows]:
            part = self._unread(text)
            if len(wanted) > 1:
                # No step writes a slot twice: what this step reads for another text is known in the next step.
                blocks = self._blocks_of(part)
                if not written.isdisjoint(blocks):
                    continue
                written |= blocks
            whole = len(part.tokens) <= budget
            (parts if whole else rest).append((text, part))
            budget -= len(part.tokens) if whole else 0
        if rest and budget:
            text, part = rest[0]
            part = part._replace(tokens=part.tokens[:budget])
            self._read_alone(part)
            self._has_read(text, part)
        if parts and self._pager.can_append_all([(part.seq_id, text.most) for text, part in parts]):
            guesses = self._guess(parts)
        return [guesses.get(text.key, []) for text in texts]

    def seconds(self, guesses: int) -> float:
        """See `Guesser`."""
        return self._costs.seconds(guesses)

    def reading(self, text: Text) -> float:
        """See `Guesser`."""
        return 0.0 if text.seq_id is None else self._costs.reading(len(self._unread(text).tokens))

    def measure_anew(self) -> None:
        """See `Guesser`."""
        self._costs = GuessCosts()

    def end(self, key: Hashable) -> None:
        """Forgets a text."""
        self._read.pop(key, None)

    def close(self) -> None:
        """Closes its host."""
        self._host.close()

    def _unread(self, text: Text) -> HeadPart:
        """What the head has not read of a text."""
        assert text.seq_id is not None, "texts without a sequence are passed over"
        read, length = self._read.get(text.key), len(text.tokens) - 1
        if read is None or read.seq_id != text.seq_id:
            read = self._read[text.key] = _Read(text.seq_id, self._known_start(text.seq_id, length), [])
        count = min(self._still_read(read), length - 1)
        return HeadPart(text.seq_id, count, text.tokens[count + 1 :])

    def _still_read(self, read: _Read) -> int:
        """Positions that the blocks still have: the pager may have put others with the same tokens in their place."""
        size, blocks = self._pager.block_size, self._blocks(read.seq_id)
        for i, (before, now) in enumerate(zip(read.blocks, blocks, strict=False)):
            if before != now:
                return min(read.count, (i + 1) * size - 1 if self._knows(now) else i * size)
        return read.count

    def _known_start(self, seq_id: int, length: int) -> int:
        """Positions of a new sequence that the head has read for others, whose blocks it shares."""
        size, blocks = self._pager.block_size, self._blocks(seq_id)
        known = sum(1 for _ in takewhile(self._knows, blocks[: length // size]))
        return max(0, known * size - 1)  # the last one depends on the token after the block

    def _knows(self, block_id: int) -> bool:
        """Whether the head has read all of a full block."""
        return self._known.get(block_id) == self._lives[block_id]

    def _blocks_of(self, part: HeadPart) -> set[int]:
        """The blocks that hold these positions."""
        size, blocks = self._pager.block_size, self._blocks(part.seq_id)
        return set(blocks[part.start // size : (part.start + len(part.tokens) - 1) // size + 1])

    def _blocks(self, seq_id: int) -> list[int]:
        """A sequence's blocks in the group that has the head's layer."""
        blocks: list[int] = self._pager.block_tables([seq_id], self._group)[0].tolist()
        return blocks

    def _has_read(self, text: Text, part: HeadPart) -> None:
        """Notes that a part of a text has been read."""
        size, blocks = self._pager.block_size, self._blocks(part.seq_id)
        count = part.start + len(part.tokens)
        self._read[text.key] = _Read(part.seq_id, count, blocks[: -(-count // size)])
        full = blocks[part.start // size : count // size]
        self._known.update((block_id, self._lives[block_id]) for block_id in full)

    def _read_alone(self, part: HeadPart) -> None:
        """Reads a part of a text after which it does not guess yet."""
        batch = head_batch(self._pager, self._host.plan.query_tile, [part], with_rows=False)
        self._host.read(self._host.step(batch))

    def _guess(self, parts: Sequence[tuple[Text, HeadPart]]) -> dict[Hashable, list[int]]:
        """Reads texts to their end and guesses: their sequences have room for the guesses meanwhile."""
        parts = sorted(parts, key=lambda part: -part[0].most)
        self._pager.grow_all([(part.seq_id, text.most) for text, part in parts])
        try:
            copy_shared_blocks(self._host, self._pager, self._save)
            found = self._run([part for _, part in parts], [text.most for text, _ in parts])
            for text, part in parts:
                self._has_read(text, part)
        finally:
            for _, part in parts:
                self._pager.truncate(part.seq_id, part.start + len(part.tokens))
        return {text.key: [step[i] for step in found[: text.most]] for i, (text, _) in enumerate(parts)}

    def _run(self, parts: Sequence[HeadPart], most: Sequence[int]) -> list[list[int]]:
        """Of each guess in turn, the tokens of those sequences that have as many; `most` falls."""
        begun, begun_clock = time.perf_counter(), self._host.clock()
        plan = self._host.plan
        steps = [
            head_batch(self._pager, plan.query_tile, parts),
            *guess_batches(self._pager, plan.query_tile, parts, most),
        ]
        tokens, later = self._host.chain(steps, plan.output_width, self._ids)
        seconds, read = self._host.clock() - begun_clock, steps[0].num_tokens
        disturbed = time.perf_counter() - begun - seconds
        if read > (1 + MOST_UNDONE) * len(parts):
            self._costs.has_read(read, seconds)
        elif read <= (1 + MOST_UNDONE) * len(parts):  # all that was new may have been guesses
            self._costs.measured(seconds, len(steps), later, disturbed)
        return tokens
