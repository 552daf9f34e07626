"""Tries a form of answers that was learned from a template: read back, cut, forced and timed."""

import functools
import json
import math
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema

from mlxr.compiler.errors import ChatTemplateError, MlxrError, RequestError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.constraint import Constraint, ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.chat_job import ChatJob
from mlxr_tests.constrained import tokens_of
from mlxr_tests.judged_chats import Answer, SpokenModel
from mlxr_tests.template_answers import (
    KINDS,
    MESSAGES,
    THOUGHT,
    TOOLS,
    USER,
    Written,
    call,
    difference,
    read_back,
    said,
    written,
)

_CLOSING = (b'"', b"]", b"}", b"<", b")", b"\n")
_MARKS = re.compile(r"(?<=[\w\s])[^\w\s]|\n[^\w\s]|[<\[(]")
_CLOSERS = ("</think>\n\n", "</think>", "</thinking>", "\n[BEGIN FINAL RESPONSE]\n", "[/THINK]", "</response>")
"""Ends of thoughts, which not all templates write in a conversation, even if their models do."""
_WORD = "quixotic"
_HARD = ("hard text", "lines", "nested")
_TOKEN = 4
"""Characters of a token where time is taken, as in most texts."""


@dataclass
class Count:
    """How many of some trials came out right, and what the others came to."""

    right: int = 0
    tried: int = 0
    told: list[str] = field(default_factory=list)

    def add(self, told: str) -> None:
        """Counts a trial: what is wrong, or nothing."""
        self.tried += 1
        self.right += not told
        if told:
            self.told.append(told)

    def __str__(self) -> str:
        """The sum."""
        return f"{self.right} of {self.tried}"


class TriedForm:
    """The form of one template."""

    def __init__(self, model: SpokenModel, ends: Sequence[str] = (), without: Sequence[str] = ()) -> None:
        """Has the template write messages.

        Args:
            model: speaks with it.
            ends: as for `written`.
            without: the names of messages that are left out.
        """
        self.model = model
        self._phrases = list(_CLOSERS)
        self.texts: dict[str, tuple[Mapping[str, Any], Written]] = {}
        for name, message in MESSAGES.items():
            if name in without:
                continue
            for thought in ("", THOUGHT):
                whole = said(message["content"], *message.get("tool_calls", ()), thought=thought)
                text = self._written(whole, ends)
                if text is not None:
                    self._phrases.append(text.answer)
                if text is not None and (text.is_asked or not thought):
                    self.texts[f"{name}, after a thought" if thought else name] = whole, text

    @functools.cached_property
    def _is_exact(self) -> bool:
        """Whether the template writes values so that they can be read: some put quotes around texts as they are."""
        wrong = {
            name for name, (message, text) in self.texts.items() if difference(message, read_back(self.model, text))
        }
        return not wrong or not all(name.partition(",")[0] in _HARD for name in wrong)

    def read_back(self) -> Count:
        """What the template writes of each message that it takes whole is read back."""
        count = Count()
        for name, (message, text) in self.texts.items():
            told = difference(message, read_back(self.model, text))
            count.add(told and f"{name}: {text.answer!r}: {told}")
        return count

    def richest(self) -> tuple[Mapping[str, Any], Written] | None:
        """A message with as much as the template writes of a thought, a text and two calls, and what it writes."""
        calls = (call("store_items", KINDS), call("clock", {}, 2))
        for num_calls in (2, 1):
            for thought, content in ((THOUGHT, "Let me see."), (THOUGHT, ""), ("", "Let me see."), ("", "")):
                message = said(content, *calls[:num_calls], thought=thought)
                text = self._written(message, switched=False)
                if text is None or not text.is_asked:
                    continue
                heads = [line for line in text.prompt.splitlines()[-3:] if "ssistant" in line]  # of a turn
                if not any(each in text.answer for each in [*heads, text.end] if each):
                    return message, text
        return None

    def cuts(self, num: int, seed: int = 0) -> Count:
        """Answers, right and broken ones, cut at random come to the same deltas, joined."""
        count, chance = Count(), random.Random(seed)
        answers = []
        for text in _broken(self.texts, chance, max(4, num // 100)):
            prompt = self.model.tokenizer.encode(text.prompt[-200:], add_special=False, parse_special=True)
            job = ChatJob((USER,), Sampling(), tools=TOOLS, variables=text.switch)
            answers.append((job, prompt, text, self.model.parsed(job, prompt, self.model.pieces(text.answer))))
        for number in range(num):
            job, prompt, text, whole = answers[number % len(answers)]
            pieces = self.model.pieces(text.answer, chance)
            cut = self.model.parsed(job, prompt, pieces)
            count.add("" if cut == whole else f"{pieces}: {cut}; whole {whole}")
        return count

    def kept(self, num: int, seed: int = 0) -> Count:
        """A word put anywhere into an answer, right or broken, is told once: as text, thought, name or argument."""
        count, chance = Count(), random.Random(seed)
        answers = list(_broken(self.texts, chance, num))
        for _ in range(num):
            text = chance.choice(answers)
            parts = self.model.pieces(text.answer)
            number = chance.randrange(len(parts))
            if parts[number] not in self.model.tokenizer.control_tokens:
                at = chance.randint(0, len(parts[number]))
                parts[number] = f"{parts[number][:at]}{_WORD}{parts[number][at:]}"
            else:
                parts.insert(number, _WORD)
            answer = "".join(parts)
            got = read_back(self.model, replace(text, answer=answer))
            told = " ".join([got.content, got.reasoning, *(f"{name} {arguments}" for name, arguments in got.calls)])
            times = told.count(_WORD)
            count.add("" if times == 1 else f"{times} times in what is told of {answer!r}: {got}")
        return count

    def forced(self, num: int, seed: int = 0) -> Count:
        """Calls chosen at random among what a grammar allows are such calls, and the template writes them as such."""
        count = Count()
        tokenizer = self.model.tokenizer
        compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
        try:
            for number in range(num):
                tool = TOOLS[number % 3 == 2]
                name = tool["function"]["name"]
                job = ChatJob((USER,), Sampling(), tools=TOOLS, tool_choice=f"function:{name}")
                count.add(self._forced(compiler, job, tool["function"], seed + number))
        finally:
            compiler.close()
        return count

    def _forced(self, compiler: ConstraintCompiler, job: ChatJob, function: Mapping[str, Any], seed: int) -> str:
        try:
            prompt = self.model.prompt(job)
            constraint = compiler.compile(self.model.format.constrained(job, prompt))
        except MlxrError as error:
            return f"refused: {error}"
        assert constraint is not None
        try:
            ids = self._chosen(constraint, random.Random(seed))
        except EndlessError as error:
            return f"it does not end: {error}"
        answer = self.model.text(ids)
        got = Answer.of(self.model.parsed(job, prompt, self.model.pieces(answer)))
        if [name for name, _ in got.calls] != [function["name"]] or got.content:
            return f"{answer!r} is {got}"
        try:
            arguments = json.loads(got.calls[0][1])
            jsonschema.validate(arguments, function["parameters"])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{answer!r} is {got}: {error!s:.200}"
        if not _is_finite(arguments):
            return ""  # templates have no form for it
        message = said("", call(function["name"], arguments))
        text = self._written(message)
        if text is None or not self._is_exact:  # the template leaves out calls, or a part of this one
            return ""
        again = difference(message, read_back(self.model, text))
        return again and f"{answer!r} is {got}, and as the template writes it {text.answer!r}: {again}"

    def _chosen(self, constraint: Constraint, chance: random.Random) -> list[int]:
        """Tokens that a constraint allows, at random, and often parts of what the template writes: so they end."""
        tokenizer, ids, phrase = self.model.tokenizer, list[int](), list[int]()
        while not constraint.is_complete:
            if len(ids) > 6000:
                raise EndlessError(self.model.text(ids)[-200:])
            if not phrase and (tokens := constraint.forced()):
                ids += tokens
                continue
            constraint.prepare()
            allowed = tokens_of(constraint.mask())
            if not phrase and chance.random() < 0.2:
                phrase = tokenizer.encode(self._part(chance), add_special=False, parse_special=True)
            if phrase and phrase[0] in allowed:
                token = phrase.pop(0)
            else:
                phrase = []
                ends = [t for t in allowed if t in tokenizer.control_ids or tokenizer.bytes_of(t)[:1] in _CLOSING]
                token = chance.choice(ends if ends and chance.random() < 0.3 else allowed)
            if token in tokenizer.eos_ids:
                break
            constraint.accept(token)
            ids.append(token)
        return ids

    def _part(self, chance: random.Random) -> str:
        """A part of what the template writes, often from the beginning of a marker."""
        answer = chance.choice(self._phrases)
        starts = [match.start() for match in _MARKS.finditer(answer)] or [0]
        start = chance.choice(starts) if chance.random() < 0.8 else chance.randrange(len(answer))
        return answer[start : start + chance.choice((4, 12, 24, 48))]

    def own_calls_allowed(self) -> Count:
        """Where a call is required, the grammar allows what the template itself writes, if that can be read."""
        count, tokenizer = Count(), self.model.tokenizer
        compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
        for name, (message, text) in self.texts.items():
            if message["content"] or "tool_calls" not in message or not text.is_asked:
                continue
            if difference(message, read_back(self.model, text)):
                continue
            told = [self._refusal(compiler, text, answer) for answer in (text.answer.strip("\n"), text.answer.strip())]
            count.add("" if "" in told else f"{name}: {told[0]}")
        compiler.close()
        return count

    def _refusal(self, compiler: ConstraintCompiler, text: Written, answer: str) -> str:
        """Where the grammar of calls refuses an answer; nothing if it allows it."""
        job = ChatJob((USER,), Sampling(), tools=TOOLS, tool_choice="required", variables=text.switch)
        tokenizer, done = self.model.tokenizer, 0
        prompt = tokenizer.encode(text.prompt, add_special=False, parse_special=True)
        ids = tokenizer.encode(answer, add_special=False, parse_special=True)
        try:
            constraint = compiler.compile(self.model.format.constrained(job, prompt))
            assert constraint is not None
            for done, token in enumerate(ids):  # noqa: B007
                constraint.accept(token)
            if not constraint.is_complete and tokenizer.eos_id not in tokens_of(constraint.mask()):
                end = tokenizer.encode(text.end or "?", add_special=False, parse_special=True)
                if end[0] not in tokens_of(constraint.mask()):
                    return f"{answer!r} may not end"
        except RequestError as error:
            return f"{self.model.text(ids[:done])!r}, then {self.model.text(ids[done:])!r}: {error}"
        return ""

    def microseconds(self) -> float:
        """The time that parsing takes, per token: the least of some runs over a long answer with all there can be."""
        calls = [call("store_items", {"label": "It is a word like others. " * 60, "count": n}, n) for n in range(3)]
        message = said("Some text that is no call at all. " * 30, *calls)
        text = self._written(said(message["content"], *calls, thought="I think of it. " * 60)) or self._written(message)
        text = text or self._written(said("", calls[0])) or next(iter(self.texts.values()))[1]
        job = ChatJob((USER,), Sampling(), tools=TOOLS, variables=text.switch)
        prompt = self.model.tokenizer.encode(text.prompt[-200:], add_special=False, parse_special=True)
        control = self.model.tokenizer.control_tokens
        pieces = [
            piece
            for part in self.model.pieces(text.answer)
            for piece in ([part] if part in control else [part[i : i + _TOKEN] for i in range(0, len(part), _TOKEN)])
        ]
        stream = [Event(0, control[piece], "") if piece in control else Event(0, 0, piece) for piece in pieces]
        times = []
        for _ in range(7):
            parser = self.model.format.parser(job, prompt)
            start = time.process_time()
            for event in stream:
                parser.push(event)
            parser.finish()
            times.append(time.process_time() - start)
        return min(times) / len(stream) * 1e6

    def _written(
        self, message: Mapping[str, Any], ends: Sequence[str] = (), *, switched: bool = True
    ) -> Written | None:
        """What the template writes of a message; None if it leaves out a part."""
        try:
            text = written(self.model.template, message, ends=ends, switched=switched)
        except ChatTemplateError:
            return None
        return text if all(each in text.answer for each in _texts(message)) else None


class EndlessError(Exception):
    """A grammar that a random answer does not get out of."""


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """What must be in what is written of a message."""
    yield message["content"].strip()
    yield message.get("reasoning_content", "").strip()
    for each in message.get("tool_calls", ()):
        yield each["function"]["name"]
        for value in each["function"]["arguments"].values():
            if isinstance(value, str):
                yield max(re.findall(r"[a-zA-Z0-9 ]+", value), key=len, default="")


def _broken(
    texts: Mapping[str, tuple[Mapping[str, Any], Written]], chance: random.Random, num: int
) -> Iterator[Written]:
    """Answers as they are written, and such that are cut off, have gaps, or parts of others."""
    whole = [text for _, text in texts.values()]
    yield from whole
    for _ in range(num):
        text, other = chance.choice(whole), chance.choice(whole).answer
        at, to = sorted(chance.randint(0, len(text.answer)) for _ in range(2))
        start = chance.randint(0, len(other))
        part = other[start : start + chance.randint(1, 12)]
        changed = chance.choice(
            (text.answer[:at], text.answer[:at] + text.answer[to:], text.answer[:at] + part + text.answer[at:])
        )
        yield replace(text, answer=changed or text.answer)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list) else True
