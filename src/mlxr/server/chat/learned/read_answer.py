"""Reads an answer whose form was learned: thoughts, text and calls, in any order."""

from mlxr.server.chat.answer_reader import AnswerReader, Parse, Reading, TextKind
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, ReasoningDelta
from mlxr.server.chat.formats.family import Beginning
from mlxr.server.chat.learned.python_tag import TAG, read_tagged
from mlxr.server.chat.learned.read_call import CallReader
from mlxr.server.chat.learned.spelled_form import CALL, CONTENT, THOUGHT, THOUGHT_END, SpelledForm

FENCE, FENCE_END = "```json", "```"
"""What JSON may stand between that a request has asked for."""
_MOST_AGAIN = 4096
"""Characters that are read again where they were no call; in more, no call is looked for within."""


class FormReader:
    """Reads one answer."""

    def __init__(self, form: SpelledForm, reader: AnswerReader, job: ChatJob, beginning: Beginning) -> None:
        """Starts before an answer.

        Args:
            form: the model's.
            reader: gets the answer's text.
            job: what was asked.
            beginning: where the answer begins.
        """
        self._form, self._reader, self._job, self._beginning = form, reader, job, beginning
        self._uses_tools = job.uses_tools
        self._calls = CallReader(form, reader, job)
        self._may_fence = job.sampling.json_schema is not None and not job.continues_text

    def read(self) -> Reading:
        """Reads all of it."""
        reader, form = self._reader, self._form
        if self._beginning is Beginning.THINKING and form.form.thought is not None:
            yield from self._think(is_opened=True)
        has_begun = self._beginning is Beginning.THINKING
        is_fresh = has_begun or not self._job.continues_text
        while True:
            if is_fresh:
                kind = yield from self._fresh()
                if kind is None and reader.ended and not (reader.peek().strip() if has_begun else reader.peek()):
                    return  # white space after a marker is no text
            else:
                kind = None
            if kind is None:
                if self._may_fence:
                    yield from self._fenced()
                markers = form.within_tools if self._uses_tools else form.within_text
                kind = yield from reader.text_until(ContentDelta, markers)
                if kind is None:
                    return
            is_fresh, has_begun = (yield from self._handle(kind)), True

    def _fenced(self) -> Reading:
        """JSON in a code fence, if the text begins with one: without the fence."""
        reader, self._may_fence = self._reader, False
        if (yield from reader.next_is([FENCE])):
            yield from reader.skip_space()
            yield from reader.json_value(lambda text: reader.emit(ContentDelta, text))
            yield from reader.next_is([FENCE_END])

    def _fresh(self) -> Parse[str | None]:
        """What comes where no text has begun; None if it is text."""
        form, reader = self._form, self._reader
        markers = form.fresh_tools if self._uses_tools else form.fresh_text
        while True:
            reader.mark()
            found = yield from reader.first_of(markers)
            if found is not None or not (self._uses_tools and form.is_bare):
                return found
            if not (yield from self._calls.read_bare()):
                return None
            yield from self._skip_between()

    def _skip_between(self) -> Reading:
        """White space after a call, and what some models write between calls that nothing else tells apart."""
        yield from self._reader.skip_space()
        if self._form.is_bare and (yield from self._reader.next_sign()) == ";":
            self._reader.take_sign()

    def _handle(self, kind: str) -> Parse[bool]:
        """Reads what a marker begins; whether no text has begun after it."""
        reader = self._reader
        if kind == CALL:
            return (yield from self._call())
        if kind == TAG:
            yield from read_tagged(reader, self._job)
        elif kind == THOUGHT:
            yield from self._think(is_opened=False)
        elif kind == CONTENT:
            return False
        elif kind == THOUGHT_END and not self._job.reasoning:
            reader.emit(ContentDelta, self._form.form.thought.end_marker)  # type: ignore[union-attr]
            return False
        return True

    def _call(self) -> Parse[bool]:
        """Reads calls whose first marker has been read; if there is none, the marker is text."""
        reader = self._reader
        marker = reader.last_marker
        reader.mark()
        space = reader.last_space
        if (yield from self._calls.read(self._form.triggers[marker])):
            yield from self._skip_between()
            return True
        self._is_text(ContentDelta, space + marker)
        return False

    def _is_text(self, kind: TextKind, marker: str) -> None:
        """Emits a marker that begins no call as text, and puts back what was read after it."""
        reader = self._reader
        again = reader.raw_since_mark()
        reader.emit_named(kind, marker)
        if len(again) <= _MOST_AGAIN:
            reader.put_back(again)
        else:
            reader.emit(kind, again)

    def _call_within(self, kind: TextKind) -> Parse[bool]:
        """Reads calls within a thought whose first marker has been read; whether they end the thought.

        If the end of the thought still comes, they were only thought of. So they are told when the answer has ended.
        """
        reader, triggers = self._reader, self._form.triggers
        marker = reader.last_space + reader.last_marker
        reader.mark()
        reader.hold()
        self._calls.is_sure = True
        if not (yield from self._calls.read(triggers[reader.last_marker])):
            reader.drop()
            self._is_text(kind, marker)
            return False
        while True:
            after = reader.position()
            yield from self._skip_between()
            if (yield from reader.first_of(self._form.calls)) is None:
                break
            if not (yield from self._calls.read(triggers[reader.last_marker])):
                break
        reader.back_to(after)
        if not self._calls.is_sure and self._form.thinking_text.pattern.search(reader.raw_since_mark()):
            reader.drop()  # the thought ends before what was taken for a call does
            reader.back_to(0)
            reader.emit_named(kind, marker)
            return False
        is_quoted = yield from self._ends_later()
        reader.back_to(after)
        if not is_quoted:
            reader.release()
            yield from self._skip_between()
            return True
        reader.drop()
        reader.emit_named(kind, marker + reader.raw_since_mark())
        return False

    def _ends_later(self) -> Parse[bool]:
        """Whether a thought goes on after calls, as its end tells that comes later; what is read must be put back.

        An end that directly follows, and after which there is nothing, does not tell.
        """
        reader, pieces = self._reader, list[str]()
        found = yield from reader.each_until(pieces.append, self._form.thinking_text, exact=True)
        has_text = bool("".join(pieces).strip())
        if found is None:
            return has_text and reader.was_cut
        return has_text or bool((yield from reader.next_sign()))

    def _think(self, *, is_opened: bool) -> Reading:
        """Reads a thought whose beginning has been read, here or in the prompt."""
        form, reader, reasoning = self._form, self._reader, self._job.reasoning
        kind: TextKind = ReasoningDelta if reasoning else ContentDelta
        thought = form.form.thought
        assert thought is not None, "a form with thoughts"
        if is_opened and reasoning:  # some models open it once more
            yield from reader.next_is([form.thought_start])
        elif not is_opened and not reasoning:
            reader.emit(ContentDelta, thought.opening.strip())
        if reasoning:
            yield from reader.skip_space()
        markers = form.thinking_tools if self._uses_tools else form.thinking_text
        while True:
            found = yield from reader.text_until(kind, markers, exact=not reasoning)
            if found != CALL:
                break
            if (yield from self._call_within(kind)):  # some models do not write the end of a thought then
                return
        if found is None or found == CONTENT:
            return
        if not reasoning:
            reader.emit(ContentDelta, thought.end_marker)
            return
        rest, header = thought.closing.partition(thought.end_marker)[2].strip(), form.form.header.strip()
        is_text = bool(rest) and (yield from reader.next_is(form.spell.chunks(rest)))
        if not is_text and header and rest.startswith(header):  # calls follow
            yield from reader.next_is(form.spell.chunks(header))
        yield from reader.skip_space()
