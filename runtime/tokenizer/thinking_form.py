"""How a template writes what a model thinks before it answers, found by rendering an answer that has both."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate

_QUESTION, _THOUGHT, _ANSWER = "mlxrquestion", "mlxrthought", "mlxranswer"
MARKER = re.compile(r"(<[^<>\s]+>|\[/?[A-Z_]+\])")
"""What most markers look like, whether or not they are control tokens."""
_SWITCHED_ON = {"enable_thinking": True}


@dataclass(frozen=True)
class ThinkingForm:
    """The texts around a thought.

    Attributes:
        opening: what comes before it: `<think>` and a line end.
        closing: what comes between it and the answer: a line end, `</think>` and two more.
        end_marker: the part of `closing` by which the end of a thought is known.
    """

    opening: str
    closing: str
    end_marker: str

    @property
    def start_marker(self) -> str:
        """`opening` without white space around it."""
        return self.opening.strip()


_USUAL = (
    ThinkingForm("<think>\n", "\n</think>\n\n", "</think>"),
    ThinkingForm("[THINK]", "[/THINK]", "[/THINK]"),
    ThinkingForm("<thinking>\n", "\n</thinking>\n\n", "</thinking>"),
    ThinkingForm("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>", "<|END_THINKING|>"),
    ThinkingForm("<|channel>thought\n", "<channel|>", "<channel|>"),
)
"""Forms of templates that leave out the thoughts of earlier answers."""


def find_thinking(template: ChatTemplate, variables: Mapping[str, Any] | None = None) -> ThinkingForm | None:
    """How a template writes thoughts; None if it knows of none.

    A template that does not write the thoughts of earlier answers, and only speaks of markers that are known, has the
    form that most have.

    Args:
        template: rendered twice; it must not be in use.
        variables: what it is rendered with besides the messages, such as tools.

    Raises:
        ChatTemplateError: the template took too long or too much.
    """
    variables = dict(variables or {}) | _SWITCHED_ON
    question = {"role": "user", "content": _QUESTION}
    answer = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
    try:
        text = template.render([question, answer], add_generation_prompt=False, **variables)
        prompt = template.render([question], **variables)
    except ChatTemplateError as error:
        if error.__cause__ is not None:
            raise
        text = prompt = ""
    before, _, after = text.partition(_THOUGHT)
    closing, has_answer, _ = after.partition(_ANSWER)
    if has_answer and (end := MARKER.search(closing)):
        opening = before.removeprefix(prompt)
        if (opening == before or not opening.strip()) and (markers := list(MARKER.finditer(before))):
            opening = before[markers[-1].start() :]  # the prompt itself begins the thought
        if opening.strip() and opening.strip() not in closing:
            return ThinkingForm(opening, closing, end[0])
    program = template.program(variables)
    return next((form for form in _USUAL if form.start_marker in program or form.end_marker in program), None)
