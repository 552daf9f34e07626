"""Derives how a template writes what a model thinks before it answers."""

from mlxr.runtime.tokenizer.thinking_form import MARKER
from mlxr.server.chat.learned.answer_form import ThoughtForm
from mlxr.server.chat.learned.lexemes import chunks, common_start
from mlxr.server.chat.learned.probe import CONTENT, KEYS, NAMES, THOUGHT, VALUE, Probe, a_call


def thought_turn(probe: Probe) -> str:
    """A message of the assistant that has a thought; nothing if the template writes none."""
    for calls, content in (
        ((), CONTENT),
        ([a_call(0, {KEYS[0]: VALUE})], ""),
        ([a_call(0, {KEYS[0]: VALUE})], CONTENT),
    ):
        text = probe.turn(calls, content, THOUGHT)
        if text is not None and 0 <= text.find(THOUGHT) < text.find(CONTENT if content else NAMES[0]):
            return text
    return ""


def learn_thought(probe: Probe, header: str, turn: str, plain: str) -> tuple[ThoughtForm | None, str]:
    """The form of thoughts, None if none was found; and what begins the assistant's messages.

    Args:
        probe: whose form of messages has been found.
        header: what all messages of the assistant begin with, perhaps also what begins a thought.
        turn: a message with a thought.
        plain: a message without one.
    """
    if turn:
        opening, _, after = turn.removeprefix(header).partition(THOUGHT)
        opened, closed = ((prompt or "").removeprefix(header) for prompt in _prompts(probe))
        if not opening.strip() and opened.strip():
            opening = opened
        elif not opening.strip():
            start = _last_marker(header)
            header, opening = header[:start], header[start:]
        again = header.removeprefix(common_start(probe.render([]) or "", header))
        return _of_turn(header, again, opening, after, plain.removeprefix(header), closed), header
    return _of_prompts(probe, header, plain)


def _prompts(probe: Probe) -> tuple[str, str]:
    """The prompts of an answer with a thought, and of one without."""
    return tuple(probe.render([], prompt=True, thinks=thinks) or "" for thinks in (True, False))  # type: ignore[return-value]


def _of_turn(header: str, again: str, opening: str, after: str, plain: str, closed: str) -> ThoughtForm | None:
    closing, has_content, _ = after.partition(CONTENT)
    core, begin = closing, plain.partition(CONTENT)[0]
    if not has_content or NAMES[0] in closing:
        core = closing = closing[: len(closing) - len(closing.lstrip())] + _end_marker(closing)
    rest = begin.strip().removeprefix(opening.strip()).strip()
    for known in (begin, closed, rest, header, again):
        if known.strip() and (shorter := core.rstrip().removesuffix(known.strip())).strip():
            core = shorter
    end_marker = _end_marker(core)
    if not opening.strip() or not end_marker or end_marker in opening:
        return None
    has_empty = rest.startswith(end_marker) or begin.strip().startswith(end_marker)
    if not has_empty and begin.strip() and opening.strip() in begin:
        has_empty = end_marker in begin
    return ThoughtForm(opening, closing, end_marker, has_empty)


def _end_marker(closing: str) -> str:
    """The part of a closing by which it is known: its first tag, or its first line."""
    line = closing.strip().split("\n")[0].strip()
    found = MARKER.match(line)
    # `<|close|>think<|sep|>` is one marker.
    return found[0] if found and not line[found.end() :][:1].isalnum() else line


def _last_marker(header: str) -> int:
    """Where the last tag of a header begins; where there is none, its last word."""
    found = list(MARKER.finditer(header))
    if found and not header[found[-1].end() :].strip():
        return found[-1].start()
    words = chunks(header)
    return header.rfind(words[-1]) if words else len(header)


def _of_prompts(probe: Probe, header: str, plain: str) -> tuple[ThoughtForm | None, str]:
    """The form from prompts that open a thought, or have an empty one."""
    prompts = _prompts(probe)
    opened, closed = (prompt.removeprefix(header) for prompt in prompts)
    opening = opened.strip()
    if opening and closed.strip().startswith(opening) and len(closed.strip()) > len(opening):
        end = closed.strip()[len(opening) :].strip()
        return ThoughtForm(opened, f"\n{end}\n\n", _end_marker(end)), header
    for text in (opened, closed):
        found = MARKER.findall(text)
        if len(found) == 2 and "".join(text.split()) == "".join(found) and _closes(found[1], found[0]):
            start = text[: text.find(found[1])].rstrip() + "\n"
            return ThoughtForm(start, f"\n{found[1]}\n\n", found[1], has_empty=True), header
    at = _last_marker(header)
    end = _end_marker(plain.removeprefix(header).partition(CONTENT)[0])
    if end and _closes(end, header[at:].strip()):
        return ThoughtForm(header[at:], end, end, has_empty=True), header[:at]
    return None, header


def _closes(end: str, start: str) -> bool:
    return "/" in end and end.replace("/", "", 1) == start
