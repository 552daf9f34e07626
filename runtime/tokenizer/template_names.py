"""What templates call the same things: a message's reasoning, variables that switch reasoning on and off, and tools.

Templates have no common names for these. `template_worker` finds which ones a template reads.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
"""The keys under which templates look for the reasoning of a message."""
_SWITCH, _OTHER_SWITCH = "enable_thinking", "thinking"
_EFFORT, _OTHER_EFFORT = "reasoning_effort", "reasoning_strength"
_BUDGET = "thinking_budget"
_FUNCTIONS, _DATE = "functions", "datetime"
ASKED = tuple({*_REASONING, _SWITCH, _OTHER_SWITCH, _OTHER_EFFORT, _BUDGET, _FUNCTIONS})
"""The names that matter."""


@dataclass(frozen=True)
class ReadNames:
    """Which of `ASKED` a template reads.

    Attributes:
        keys: of messages: `message.NAME`, `message['NAME']`, `message.get('NAME')`.
        variables: by themselves.
    """

    keys: Collection[str] = ()
    variables: Collection[str] = ()

    @property
    def has_switch(self) -> bool:
        """Whether reasoning can be switched off."""
        return _SWITCH in self.variables or _OTHER_SWITCH in self.variables

    @property
    def has_budget(self) -> bool:
        """Whether the template tells the model how much it may think."""
        return _BUDGET in self.variables

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages, whose `reasoning_content` also has the name that the template reads."""
        key = next((name for name in _REASONING if name in self.keys), _REASONING[0])
        return [
            {**message, key: message[_REASONING[0]]} if message.get(_REASONING[0]) and key not in message else message
            for message in messages
        ]

    def values(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables, also by the names that the template reads."""
        known = dict(variables)
        if _SWITCH in known and _SWITCH not in self.variables and _OTHER_SWITCH in self.variables:
            known.setdefault(_OTHER_SWITCH, known[_SWITCH])
        if _EFFORT in known and _OTHER_EFFORT in self.variables:
            known.setdefault(_OTHER_EFFORT, known[_EFFORT])
        if known.get(_FUNCTIONS) is None and _FUNCTIONS in self.variables:  # FireFunction's name of tools
            known[_FUNCTIONS] = json.dumps(known.get("tools") or [], indent=2, ensure_ascii=False)
            known.setdefault(_DATE, datetime.now().strftime("%b %d %Y"))
        return known

    def with_budget(self, variables: Mapping[str, Any], budget: int | None) -> dict[str, Any]:
        """The variables, with the budget if the template reads it."""
        told = {_BUDGET: budget} if self.has_budget and budget is not None else {}
        return {**told, **variables}
