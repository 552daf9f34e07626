"""What MLXR's chat layer makes of a template and of answers in its form, by the path of the server."""

import asyncio
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.server.chat.answer_parser import joined
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr_tests.chat_formats import byte_tokenizer, events
from mlxr_tests.outside_chats import ChatCase, Message

_CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<\|[\w/]{1,40}>|<[\w/]{1,40}\|>|\[/?[A-Z][A-Z_]{2,30}\]"
    r"|<(?:start|end)_of_\w+>|</?s>|<[be]os>"
)
"""What vocabularies have as one token, and call a control token. XML-like tags are text in most."""

_PARTS: Mapping[str, Literal["content", "reasoning_content"]] = {"content": "content", "reasoning": "reasoning_content"}
"""Which part of the last message a case continues."""


def control_names(template: str) -> tuple[str, ...]:
    """The names in a template's text that are control tokens in a model's vocabulary, by their looks."""
    return tuple(sorted(set(_CONTROL.findall(template))))


@dataclass(frozen=True)
class Answer:
    """What an answer is parsed to. A call is a name and its arguments as text."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]

    @staticmethod
    def of(deltas: Sequence[Delta]) -> "Answer":
        """The sum of deltas."""
        texts = {
            kind: "".join(delta.text for delta in deltas if isinstance(delta, kind))
            for kind in (ContentDelta, ReasoningDelta)
        }
        names = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
        arguments = [""] * len(names)
        for delta in deltas:
            if isinstance(delta, ToolArguments):
                arguments[delta.index] += delta.text
        return Answer(texts[ContentDelta], texts[ReasoningDelta], tuple(zip(names, arguments, strict=True)))


class SpokenModel:
    """A template with a tokenizer that has its control tokens, as a server has both. Close it."""

    def __init__(self, template: str, control: Sequence[str] = (), tool_use: str | None = None) -> None:
        """Makes both.

        Args:
            template: its text.
            control: the names of control tokens; others are text.
            tool_use: as for `ChatTemplate`.
        """
        self.tokenizer: LibraryTokenizer = byte_tokenizer(control)
        self.template = ChatTemplate(template, "the template", {"bos_token": "", "eos_token": ""}, tool_use=tool_use)
        self.format = ChatFormat(self.template, self.tokenizer)

    def __enter__(self) -> "SpokenModel":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.format.close()

    def prompt(self, job: ChatJob) -> list[int]:
        """The tokens of a prompt."""
        return asyncio.run(self.format.prompt(job))

    def text(self, ids: Sequence[int]) -> str:
        """What tokens say, control tokens by their names."""
        pieces = [
            self.tokenizer.token_text(token).encode()
            if token in self.tokenizer.control_ids
            else self.tokenizer.bytes_of(token)
            for token in ids
        ]
        return b"".join(pieces).decode("utf-8", "replace")

    def parsed(
        self, job: ChatJob, prompt: Sequence[int], pieces: Sequence[str], *, is_partial: bool = False
    ) -> list[Delta]:
        """The deltas of an answer in pieces, joined, without the calls' ids."""
        parser = self.format.parser(job, prompt)
        deltas: list[Delta] = []
        for event in self._events(pieces, is_partial):
            deltas += parser.push(event)
        deltas = joined(deltas if is_partial else [*deltas, *parser.finish()])
        return [ToolStart(delta.index, "", delta.name) if isinstance(delta, ToolStart) else delta for delta in deltas]

    def _events(self, pieces: Sequence[str], is_partial: bool) -> Iterator[Event]:
        made = list(events(self.tokenizer, pieces))
        yield from made[:-1] if is_partial else made

    def pieces(self, answer: str, chance: random.Random | None = None) -> list[str]:
        """An answer in pieces, as few as can be, or cut at random; control tokens are pieces of their own."""
        control = self.tokenizer.control_tokens
        pattern = "|".join(re.escape(name) for name in sorted(control, key=len, reverse=True))
        parts = [part for part in re.split(f"({pattern})", answer) if part]
        if chance is None:
            return parts
        longest = chance.choice((1, 3, 8, 40))
        return [piece for part in parts for piece in ([part] if part in control else _cut(part, longest, chance))]


def _cut(text: str, longest: int, chance: random.Random) -> Iterator[str]:
    while text:
        size = chance.randint(1, longest)
        yield text[:size]
        text = text[size:]


class CaseJudge:
    """Judges cases of one template: each as a model has it whose vocabulary has control tokens, and as text."""

    def __init__(self, template: str, num_cuts: int) -> None:
        """Makes the models.

        Args:
            template: its text.
            num_cuts: at random, of each answer.
        """
        self.models = {"tokens": SpokenModel(template, control_names(template)), "text": SpokenModel(template)}
        self._num_cuts = num_cuts

    def close(self) -> None:
        """Ends the templates' processes."""
        for model in self.models.values():
            model.format.close()

    def judge(self, case: ChatCase, way: str) -> str:
        """What is otherwise than expected; nothing if all is as it should be.

        Args:
            case: of this template.
            way: a key of `models`.
        """
        model = self.models[way]
        try:
            job = job_of(case)
            prompt = model.prompt(job)
            whole = model.parsed(job, prompt, model.pieces(case.answer))
            chance = random.Random(case.answer)
            for _ in range(self._num_cuts):
                pieces = model.pieces(case.answer, chance)
                if (cut := model.parsed(job, prompt, pieces)) != whole:
                    return f"cut into {pieces} it is {cut}, and whole {whole}"
            got = [Answer.of(whole)]
            if case.is_partial:
                got.append(Answer.of(model.parsed(job, prompt, model.pieces(case.answer), is_partial=True)))
        except MlxrError as error:
            return f"refused: {error}"
        except Exception as error:  # a defect, which is to be counted, and the rest too
            return f"fails: {error!r}"
        told = [_difference(case, answer, model.text(prompt)) for answer in got]
        return "" if "" in told else told[0]


def job_of(case: ChatCase) -> ChatJob:
    """The request of a case.

    Raises:
        RequestError: something that cannot be asked.
    """
    messages = tuple(_message(message, number) for number, message in enumerate(case.messages))
    sampling = Sampling(json_schema=json.loads(case.schema)) if case.schema else Sampling()
    return ChatJob(
        messages,
        sampling,
        tools=case.tools,
        tool_choice=case.choice,
        variables={"enable_thinking": case.thinks},
        reasoning=case.reasoning,
        continue_final=_PARTS.get(case.continued, False),
    )


def _message(message: Message, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.calls:
        made["tool_calls"] = [
            {"id": call_id or f"call_{number}_{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text, call_id) in enumerate(message.calls)
        ]
    if message.role == "tool":
        made["tool_call_id"] = message.call_id
    return made


def _difference(case: ChatCase, got: Answer, prompt: str) -> str:
    before = case.messages[-1] if case.continued else Message("", "", "", (), "")
    expected = case.expected
    what = f"expected {(expected.content, expected.reasoning, expected.calls)}, got {got}"
    if not _same_text(expected.content, before.content, got.content, prompt):
        return f"content: {what}"
    if not _same_text(expected.reasoning, before.reasoning, got.reasoning, prompt):
        return f"reasoning: {what}"
    if [name for name, _, _ in expected.calls] != [name for name, _ in got.calls]:
        return f"calls: {what}"
    if any(
        _value(text) != _value(is_text) for (_, text, _), (_, is_text) in zip(expected.calls, got.calls, strict=True)
    ):
        return f"arguments: {what}"
    return ""


def _same_text(expected: str, before: str, got: str, prompt: str) -> bool:
    """Whether a text is the expected one, save white space at its ends.

    llama.cpp also tells what is to be continued (`before`), and what the prompt has begun of a thought; MLXR's answers
    have only what the model wrote.
    """
    expected, got = expected.strip(), got.strip()
    if expected == got or expected == f"{before}{got}".strip():
        return True
    if before and expected.removeprefix(before.strip()).strip() == got and expected.startswith(before.strip()):
        return True
    opened = expected.removesuffix(got)
    return expected.endswith(got) and prompt.rstrip().endswith(opened.rstrip())


def _value(arguments: str) -> Any:
    """What arguments mean; nothing if they are not complete, as llama.cpp's test has it, or there are none."""
    try:
        return json.loads(arguments, strict=False)
    except ValueError:
        return ""
