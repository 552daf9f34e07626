"""Learns the form of a model's answers by rendering its template in several ways, and comparing the results."""

from collections.abc import Collection
from dataclasses import replace

from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.thinking_form import MARKER, find_thinking
from mlxr.server.chat.learned.answer_form import AnswerForm, CallForm, MessageForm, Origin, ThoughtForm
from mlxr.server.chat.learned.learn_calls import learn_calls
from mlxr.server.chat.learned.learn_thoughts import learn_thought, thought_turn
from mlxr.server.chat.learned.lexemes import chunks, common_end, common_start
from mlxr.server.chat.learned.our_form import OUR_CALLS, known_calls
from mlxr.server.chat.learned.probe import CONTENT, KEYS, NAMES, VALUE, Probe, a_call

_CALL = (a_call(0, {KEYS[0]: VALUE}),)


def learn_form(
    template: ChatTemplate, variables: dict[str, object], ends: Collection[str] = (), *, has_tools: bool = True
) -> AnswerForm:
    """The form of a template's answers.

    Args:
        template: rendered some thirty times; it must not be in use.
        variables: what it needs besides messages.
        ends: names of tokens that end an answer.
        has_tools: whether it is also used where tools are given; another one may be made for that.

    Raises:
        ChatTemplateError: it takes too long or too much.
    """
    probe = Probe(template, variables, tuple(ends), tools=("tools", "xml_tools") if has_tools else ("",))
    writes_calls = probe.finds_form()
    form = _frame(probe, writes_calls)
    calls = learn_calls(probe, form.turn_end) if writes_calls else None
    if calls is not None:
        form = _with_calls(probe, replace(form, calls=calls))
    else:
        form = _with_other_calls(probe, template, form, writes_calls=writes_calls)
    if form.thought is None and (known := find_thinking(template, variables)):
        form = replace(form, thought=ThoughtForm(known.opening.lstrip(), known.closing, known.end_marker))
    if probe.form.tools and not _tells(probe, probe.form.tools):
        probe.form = replace(probe.form, tools="")
    return replace(form, calls=_trimmed(form.calls), messages=probe.form)


def _frame(probe: Probe, writes_calls: bool) -> AnswerForm:
    """What stands around an answer."""
    probe.tail = _tail(probe, writes_calls)
    content = probe.turn(content=CONTENT) or ""
    prompts = [probe.render([], prompt=True, thinks=thinks) or "" for thinks in (True, False)]
    calls = (probe.turn(_CALL) or "") if writes_calls else ""
    thought = thought_turn(probe)
    texts = [text for text in (content, calls, thought, prompts[0]) if text]
    header = common_start(*texts) if texts else ""
    if prompts[1] and (shorter := common_start(header, prompts[1])).strip():  # it may say `/nothink`
        header, texts = shorter, [*texts, prompts[1]]
    header = _whole(header, texts)
    form, header = learn_thought(probe, header, thought, content)
    probe.header = header
    if form is not None:
        probe.empty = form.opening.strip(), form.end_marker
    before, _, after = probe.without_thought(content.removeprefix(header)).partition(CONTENT)
    if calls:  # a text that all messages have after the header, and that prompts end with
        shared = common_start(before, probe.without_thought(calls.removeprefix(header)))
        if shared.strip() and prompts[0].rstrip().endswith(shared.strip()):
            probe.header, before = header + shared, before.removeprefix(shared)
    if form is not None and before.strip() == form.opening.strip():
        before = ""  # the template does not close what it opens
    user_end = common_start(probe.render([]) or "", probe.header)
    after_calls = calls[max(calls.rfind(VALUE), calls.rfind(NAMES[0])) :] if calls else after
    turn_end = _turn_end(probe, after, after_calls, user_end.strip())
    return AnswerForm(OUR_CALLS, form, probe.header.removeprefix(user_end), "", before, "", turn_end)


def _tail(probe: Probe, writes_calls: bool) -> str:
    """What a template writes after every conversation, beyond the end of the last message: instructions, often."""
    asked, content = probe.render([]) or "", probe.turn(content=CONTENT) or ""
    if content.startswith(asked.rstrip()):
        return ""  # it is the end of the question
    after = content.partition(CONTENT)[2]
    tail = common_end(asked, after, *([probe.turn(_CALL) or ""] if writes_calls else []))
    return tail if after.removesuffix(tail).strip() else ""


def _turn_end(probe: Probe, after: str, after_calls: str, user_end: str) -> str:
    """What ends the assistant's messages, with calls and without; often also those of the user."""
    shared = common_end(after, after_calls)
    if user_end and shared.rstrip().endswith(user_end):
        return user_end
    end = shared if shared.strip() else after
    found = [place + len(name) for name in probe.ends if name and (place := end.find(name)) >= 0]
    return end[: min(found)] if found else "".join(chunks(end)[:1])


def _whole(header: str, texts: list[str]) -> str:
    """A header without a tag that begins other parts of messages, too, as in `<|open|>think`, `<|open|>response`."""
    found = list(MARKER.finditer(header))
    if not found or found[-1].end() != len(header):
        return header
    rests = [text[len(header) :] for text in texts]
    is_part = all(rest[:1].isalpha() and not rest.startswith(CONTENT) for rest in rests if rest)
    return header[: found[-1].start()] if is_part and any(found[-1][0] in rest for rest in rests) else header


def _with_calls(probe: Probe, form: AnswerForm) -> AnswerForm:
    """The form with what stands between the text of an answer and its calls."""
    calls, before = form.calls, form.content_start
    begin = calls.between
    if not (calls.section_start + calls.start).strip() and begin.strip() and form.header.endswith(begin):
        # What the prompt ends with begins calls, too.
        calls = replace(calls, start=begin + calls.start, between="")
        form = replace(form, calls=calls, lead=begin, header=form.header.removesuffix(begin))
        before = begin + before
    text, after = probe.turn(_CALL, CONTENT) or "", (probe.turn(content=CONTENT) or "").partition(CONTENT)[2]
    begin = calls.section_start + calls.start
    place, name = text.find(CONTENT), text.find(NAMES[0])
    end = ""
    if 0 <= place < name:
        gap, empty = text[place + len(CONTENT) : name], begin.removeprefix(before)
        if before.strip() and begin.startswith(before) and gap.strip().startswith(empty.strip()):
            end = common_start(empty, after)  # calls come after a text that is empty
            calls = _without_start(calls, before + end)
            form = replace(form, calls=calls, has_empty_text=True)
        elif probe.form.is_text_apart:
            end = after[: after.find(form.turn_end)] if form.turn_end in after else ""
        elif begin.strip() and (at := gap.rfind(begin.strip())) >= 0:
            end = gap[:at].rstrip().removesuffix(form.header.strip()) if form.header.strip() else gap[:at]
    form = replace(form, content_start=before, content_end=end.strip())
    return form if form.lead else replace(form, lead=_lead(probe, form))


def _lead(probe: Probe, form: AnswerForm) -> str:
    """The end of the prompt, where every kind of answer begins with it: it is a part of the answer then."""
    opened = (probe.render([], prompt=True) or "").removeprefix(probe.header)
    begins = [form.content_start, form.calls.section_start + form.calls.start]
    begins += [] if form.thought is None else [form.thought.opening]
    return opened if opened.strip() and all(begin.lstrip().startswith(opened.strip()) for begin in begins) else ""


def _without_start(calls: CallForm, start: str) -> CallForm:
    if calls.section_start:
        return replace(calls, section_start=calls.section_start.removeprefix(start))
    return replace(calls, start=calls.start.removeprefix(start))


def _with_other_calls(probe: Probe, template: ChatTemplate, form: AnswerForm, *, writes_calls: bool) -> AnswerForm:
    """The form where the template's own of calls is not to be had."""
    tools = next((name for name in probe.tools if name and _tells(probe, name)), "")
    told = replace(probe, form=MessageForm(tools=tools)).instructions()
    if tools and (found := known_calls(template.program({"tools": []}), told)):
        probe.form = replace(probe.form, tools=tools, has_calls_as_text=not writes_calls)
        return replace(form, calls=found[0], origin=found[1])
    probe.form = MessageForm(has_calls_as_text=True, has_results_as_user=True, tools="")
    return replace(form, calls=OUR_CALLS, origin=Origin.OURS)


def _tells(probe: Probe, tools: str) -> bool:
    shown = replace(probe, form=replace(probe.form, tools=tools))
    told = shown.instructions() + (shown.render([], prompt=True) or "")
    return any(name in told for name in NAMES)


def _trimmed(calls: CallForm) -> CallForm:
    """The form without white space at the beginning of calls and at their end, where none is needed."""
    if calls.section_start.strip():
        return replace(calls, section_start=calls.section_start.lstrip(), section_end=calls.section_end.rstrip())
    start, end = calls.start.lstrip(), calls.end.rstrip()
    lost = calls.end[len(end) :] + calls.between + calls.start[: len(calls.start) - len(start)]
    return replace(calls, section_start="", start=start, end=end, between=lost, section_end=calls.section_end.rstrip())
