"""Gives requests all tokens of a launch at once where nothing is special about any of them: nearly always.

What is done for each token is done by functions of C, or in the one loop that makes events.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.completion import Completion, EventsTogether
from mlxr.runtime.engine.listeners import ListenerOfSeveral
from mlxr.runtime.engine.request import Answer, Request, take_back, take_tokens
from mlxr.runtime.engine.step import Decode, Step
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder


@dataclass(slots=True)
class _Columns:
    """Columns of a step's requests that get tokens together, and what stays the same from step to step.

    Attributes:
        rows: of the step, which these are.
        answers, completions, texts: of each.
        marks: of each the number of its answer, and tokens of its prompt that were cached.
        listeners: each with the places of its requests among these.
        stop_ids: that end any of them.
        table: texts of tokens, see `StreamDecoder.table`; None: nobody was where it holds.
        odd: those for which it does not hold, or did not when they were looked at last.
    """

    rows: list[int]
    answers: list[Answer]
    completions: list[Completion]
    texts: list[AnswerText]
    marks: list[tuple[int, int]]
    listeners: list[tuple[ListenerOfSeveral, list[int]]]
    stop_ids: frozenset[int]
    odd: set[int] = field(default_factory=set)
    table: list[str | None] | None = None


class Together:
    """What is known of the requests of the newest steps."""

    def __init__(self) -> None:
        self._decode: Decode | None = None
        self._columns = _NONE

    def forget(self) -> None:
        """Forgets the requests, since somebody else has given them tokens."""
        self._decode = None

    def give(
        self,
        step: Step,
        decode: Decode,
        tokens: npt.NDArray[np.int32],
        time: float,
        abandon: Callable[[Request], object],
    ) -> list[int]:
        """Gives requests the tokens of a step with `decode`, and tells their listeners.

        Requests are left out, with all others of their listeners, of which a token may end the answer or must be seen
        by itself. If any listener takes events one by one, all are left out: it may end others' requests.

        Args:
            step: it.
            decode: its columns.
            tokens: of each of its steps, one for each request: [steps, requests].
            time: when it ended.
            abandon: ends a request whose listener fails.

        Returns:
            The rows of the requests that have got their tokens.
        """
        if self._decode is not decode:
            self._decode, self._columns = decode, _columns_of(decode, range(len(decode.requests)))
        columns, flat = self._columns, tokens.reshape(-1).tolist()
        if any([answer.is_done for answer in columns.answers]):
            columns = _columns_of(decode, [row for row in columns.rows if not decode.requests[row].answer.is_done])
        if step.most_more < 1 or not columns.stop_ids.isdisjoint(flat):
            ending = {row for row in columns.rows if _may_end(decode.requests[row], tokens[:, row].tolist())}
            columns = _columns_of(decode, columns.rows, ending)
        if columns is not self._columns:
            self.forget()  # others' texts go on, of which those columns would not know
        if not columns.rows:
            return []
        if len(columns.rows) < len(decode.requests):
            tokens = tokens[:, columns.rows]
            flat = tokens.reshape(-1).tolist()
        of_each: list[list[int]] = tokens.T.tolist()
        try:
            texts, joined, decoders = _texts_of(columns, of_each, flat)
        except Exception:  # one by one, each fails its own request alone
            return []
        events = EventsTogether(columns.marks, flat, texts, time)
        before, told = [completion.text for completion in columns.completions], 0
        try:
            take_tokens(columns.answers, columns.completions, of_each, joined)
            for place, (_, after) in decoders.items():
                columns.texts[place].go_on(after)
            for listener, places in columns.listeners:
                own = events.of(places)
                told += 1  # whoever is interrupted now was told
                try:
                    listener.tell_all(own)
                except Exception:
                    for place in places:
                        abandon(decode.requests[columns.rows[place]])
        except BaseException:  # Ctrl-C: what nobody was told is computed again
            for place in [place for _, places in columns.listeners[told:] for place in places]:
                start = step.starts[columns.rows[place]] + 1
                take_back(decode.requests[columns.rows[place]], start, before[place])
                if place in decoders:
                    columns.texts[place].go_on(decoders[place][0])
            raise
        return columns.rows


def _columns_of(decode: Decode, rows: Collection[int], ending: Collection[int] = ()) -> _Columns:
    """Of those of some requests that may get tokens together.

    Args:
        decode: has the requests.
        rows: which.
        ending: those of them to leave out.
    """
    requests = [decode.requests[row] for row in rows]
    if not all(isinstance(request.listener, ListenerOfSeveral) for request in requests):
        return _NONE
    left_out = {
        id(request.listener)
        for row, request in zip(rows, requests, strict=True)
        if row in ending or request.sampler.needs_tokens or request.text.can_stop
    }
    rows = [row for row in rows if id(decode.requests[row].listener) not in left_out]
    requests = [decode.requests[row] for row in rows]
    places = defaultdict[int, list[int]](list)
    for place, request in enumerate(requests):
        places[id(request.listener)].append(place)
    answers = [request.answer for request in requests]
    return _Columns(
        rows,
        answers,
        [answer.completion for answer in answers],
        [request.text for request in requests],
        [(request.index, request.answer.completion.cached_tokens) for request in requests],
        [(requests[own[0]].listener, own) for own in places.values()],  # type: ignore[misc]  # looked at above
        frozenset().union(*[request.stop_ids for request in requests]),
        {*range(len(requests))},
    )


_NONE = _Columns([], [], [], [], [], [], frozenset())


def _may_end(request: Request, tokens: Sequence[int]) -> bool:
    is_last = len(request.answer.tokens) + len(tokens) >= request.max_length
    return is_last or not request.stop_ids.isdisjoint(tokens)


def _texts_of(
    columns: _Columns, of_each: Sequence[Sequence[int]], flat: Sequence[int]
) -> tuple[list[str], list[str], dict[int, tuple[StreamDecoder | None, StreamDecoder | None]]]:
    """The texts of tokens, in the order of `flat`, and joined for each place; by place the decoders of odd ones.

    Args:
        columns: of those that get them.
        of_each: their tokens.
        flat: the same, step by step.
    """
    odd, width = columns.odd, len(columns.rows)
    for place in [*odd]:
        if (table := columns.texts[place].table) is not None:
            columns.table = table if columns.table is None else columns.table
            if table is columns.table:
                odd.remove(place)
    found = _known(columns.table, flat)
    if (joined := _joined(found, width)) is None:
        lacking = [at for at, text in enumerate(found) if text is None]
        if len(odd) < width:
            new = [flat[at] for at in lacking]
            next(text for place, text in enumerate(columns.texts) if place not in odd).learn({*new})
            for at, learned in zip(lacking, _known(columns.table, new), strict=True):
                found[at] = learned
        odd.update([at % width for at in lacking if found[at] is None])
    decoders = dict[int, tuple[StreamDecoder | None, StreamDecoder | None]]()
    for place in odd:
        found[place::width], before, after = columns.texts[place].ahead(of_each[place])
        decoders[place] = before, after
    if joined is None or odd:
        joined = _joined(found, width)
        assert joined is not None, "no text is missing now"
    return found, joined, decoders  # type: ignore[return-value]  # likewise


def _known(table: list[str | None] | None, tokens: Sequence[int]) -> list[str | None]:
    """What a table has of tokens; a model may have more tokens than its tokenizer, and those have no text."""
    if table is None:
        return [None] * len(tokens)
    try:  # a getter of all asks for several at once from memory
        return [*itemgetter(*tokens)(table)] if len(tokens) > 1 else [table[token] for token in tokens]
    except IndexError:
        size = len(table)
        return [table[token] if token < size else "" for token in tokens]


def _joined(texts: Sequence[str | None], width: int) -> list[str] | None:
    """Those of each place, joined; None: one is missing. To join them takes a fourth of the time of a search."""
    try:
        return ["".join(texts[place::width]) for place in range(width)]  # type: ignore[arg-type]
    except TypeError:
        return None
