"""What templates call the same things: a message's reasoning, variables that switch reasoning on and off, and tools.

Templates have no common names for these. Which ones a template reads is found in its text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
"""The keys under which templates look for the reasoning of a message."""
_SWITCH, _OTHER_SWITCH = "enable_thinking", "thinking"
_EFFORTS = ("reasoning_effort", "reasoning_strength")


def with_own_names(
    template_text: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """Messages and variables, which also have the names that a template reads.

    Args:
        template_text: the template.
        messages: their reasoning is `reasoning_content`.
        variables: `enable_thinking` switches reasoning, `reasoning_effort` says how much of it is wanted.
    """
    key = next((name for name in _REASONING if reads_key(template_text, name)), _REASONING[0])
    named = [
        {**message, key: message[_REASONING[0]]} if message.get(_REASONING[0]) and key not in message else message
        for message in messages
    ]
    known = dict(variables)
    if _SWITCH in known and _SWITCH not in template_text and reads_variable(template_text, _OTHER_SWITCH):
        known.setdefault(_OTHER_SWITCH, known[_SWITCH])
    if _EFFORTS[0] in known and reads_variable(template_text, _EFFORTS[1]):
        known.setdefault(_EFFORTS[1], known[_EFFORTS[0]])
    if known.get("functions") is None and reads_variable(template_text, "functions"):  # FireFunction's name of tools
        known["functions"] = json.dumps(known.get("tools") or [], indent=2, ensure_ascii=False)
        known.setdefault("datetime", datetime.now().strftime("%b %d %Y"))
    return named, known


def has_switch(template_text: str) -> bool:
    """Whether a template lets reasoning be switched off."""
    return _SWITCH in template_text or reads_variable(template_text, _OTHER_SWITCH)


def reads_key(template_text: str, name: str) -> bool:
    """Whether a template asks messages for a key: `message.NAME`, `message['NAME']`, `message.get('NAME')`."""
    return re.search(rf"""\.{name}\b|(?:\[|\.get\()\s*(['"]){name}\1""", template_text) is not None


def reads_variable(template_text: str, name: str) -> bool:
    """Whether a template has a variable of this name."""
    strings = r"""(?:[^%}'"]|'[^']*'|"[^"]*")*?"""
    return re.search(rf"""\{{[%{{]{strings}(?<![\w.'"]){name}\b(?!['"])""", template_text) is not None
