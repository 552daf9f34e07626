"""Forms of calls that no rendering shows: those that a template tells in words, and ours."""

import re

from mlxr.server.chat.learned.answer_form import ArgumentForm, CallForm, ObjectKeys, Origin, Slot, Style
from mlxr.server.chat.learned.learn_arguments import KINDS

_KEYS = ObjectKeys("name", "arguments")
_EXAMPLE = re.compile(
    r"(?P<start>(?:<[^<>\s/]+>|\[[A-Z_]+\]|<\|[^<>\s]+\|>)\s*\[?\s*)\{\s*['\"]?(?P<name>name|tool_name)['\"]?\s*:[^{}]*?"
    r"['\"]?(?P<arguments>arguments|parameters)['\"]?\s*:[^\n]*?\}\s*(?P<end>\]?\s*(?:</[^<>\s]+>|\[/[A-Z_]+\]|<\|[^<>\s]+\|>)?)"
)
_LIST_TOKEN = re.compile(r"<\|tool_call\|>")


def object_calls(start: str, end: str, between: str = "", keys: ObjectKeys = _KEYS) -> CallForm:
    """Calls as JSON objects between two texts; `[` at the end of the first one makes a list of them."""
    body = (f'{{"{keys.name}": "', Slot.NAME, f'", "{keys.arguments}": ', Slot.ARGUMENTS, "}")
    if start.rstrip().endswith("["):
        return CallForm(Style.OBJECT, start, end, "", body, "", ", ", keys=keys)
    return CallForm(Style.OBJECT, "", "", start, body, end, between or "\n", keys=keys)


OUR_CALLS = object_calls("<tool_call>\n", "\n</tool_call>")
"""What models are asked for whose template has no form: the one that most others have."""

# LFM2's template writes the tools and nothing of calls: the form is in Liquid AI's description of the model.
_LFM2 = CallForm(
    Style.KEYED,
    "<|tool_call_start|>[",
    "]<|tool_call_end|>",
    "",
    (Slot.NAME, "(", Slot.ARGUMENTS),
    ")",
    ", ",
    argument=ArgumentForm("", tuple((kind, "=") for kind in KINDS), (), ", ", ('"', '"'), has_python=True),
)
# Granite 3's template names the token, and that a list of calls follows.
_GRANITE3 = object_calls("<|tool_call|>[", "]")


def known_calls(program: str, told: str) -> tuple[CallForm, Origin] | None:
    """The form of calls of a template that leaves out calls; None if nothing tells it.

    Args:
        program: the template's text.
        told: what it writes before the conversation where there are tools.
    """
    if found := _EXAMPLE.search(told):
        keys = ObjectKeys(found["name"], found["arguments"])
        return object_calls(found["start"], found["end"].rstrip(), keys=keys), Origin.TOLD
    if "<|tool_list_start|>" in program or "List of tools: " in told:
        return _LFM2, Origin.NAMED
    if _LIST_TOKEN.search(told):
        return _GRANITE3, Origin.NAMED
    return None
