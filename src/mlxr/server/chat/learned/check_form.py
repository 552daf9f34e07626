"""Checks a form that was learned: a call that its template writes must be read as this call."""

import json
from contextlib import suppress

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ToolArguments, ToolStart
from mlxr.server.chat.formats.family import Beginning
from mlxr.server.chat.learned.answer_form import AnswerForm
from mlxr.server.chat.learned.probe import KEYS, NAMES, QUESTION, TOOLS, VALUE, Probe, a_call
from mlxr.server.chat.learned.read_answer import FormReader
from mlxr.server.chat.learned.spelled_form import SpelledForm


def reads_back(probe: Probe, form: AnswerForm) -> bool:
    """Whether the form reads one call with two texts, as the template writes it.

    Not all programs are what their renderings suggest: some count the calls, or write texts in a code of their own.

    Args:
        probe: of the template, whose form of messages has been found.
        form: to be checked.

    Raises:
        ChatTemplateError: rendering takes too long or too much.
    """
    arguments = {KEYS[0]: f"{VALUE} and more", KEYS[1]: "x"}
    text = probe.answer([a_call(0, arguments)])
    if text is None:
        return True  # the template takes no such call, and nothing speaks against the form
    reader = AnswerReader()
    job = ChatJob(({"role": "user", "content": QUESTION},), Sampling(), TOOLS)
    lead = form.lead.strip()  # the prompt has begun the answer
    reader.add(text if text.lstrip().startswith(lead) else lead + text)
    reader.ended = True
    for _ in FormReader(SpelledForm(form, ()), reader, job, Beginning.OPEN).read():
        pass
    deltas = reader.take_deltas()
    names = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
    with suppress(ValueError):
        told = "".join(delta.text for delta in deltas if isinstance(delta, ToolArguments))
        return names == [NAMES[0]] and json.loads(told) == arguments
    return False
