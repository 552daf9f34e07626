"""Hermes 2 and 3, Qwen 2.5 and 3 and others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Content
from mlxr.server.chat.formats.family import Family, json_object, one_or_more
from mlxr.server.chat.json_call import CallState, read_json_call

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class Hermes(Family):
    """Each call is JSON between two markers."""

    @staticmethod
    def matches(template_text: str) -> bool:
        """Qwen3-Coder has the same markers around `<function=`, which is another format."""
        return _OPENING in template_text and "<function=" not in template_text

    def read_calls(self, reader: AnswerReader, job: ChatJob) -> Reading:
        """See `Family`."""
        del job
        while (yield from reader.text_until(Content, [_OPENING])) is not None:
            state, num_calls = CallState.NO_CALL, 0
            reader.mark()
            while (yield from reader.begins_with("{")):
                state = yield from read_json_call(reader)
                if state is not CallState.COMPLETE:
                    break
                num_calls += 1  # some models write several between the same markers
                reader.mark()
            if state is CallState.NO_CALL:
                reader.emit(Content, (_OPENING if num_calls == 0 else "") + reader.since_mark())
            if num_calls == 0 and state is CallState.NO_CALL:
                continue
            if state is CallState.BROKEN:
                yield from reader.each_until(reader.emit_arguments, [_CLOSING])
            else:
                yield from reader.skip_space()
                yield from reader.text_until(Content, [_CLOSING])
            yield from reader.skip_space()

    def calls(self, grammar: AnswerGrammar, job: ChatJob) -> tuple[str, str]:
        """See `Family`."""
        objects = " | ".join(json_object(grammar, name, rule) for name, rule in self.arguments(grammar, job))
        end = f'"\\n" {grammar.marker(_CLOSING)}'
        body = grammar.add("body", f'"\\n" ({objects}) {end}')
        return _OPENING, one_or_more(body, f'"\\n" {grammar.marker(_OPENING)}', job.may_call_several)
