"""SmolLM3: calls as Hermes writes them; the template takes tools as `xml_tools`, and messages that are only text."""

import json
from collections.abc import Sequence
from typing import Any

from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.hermes import Hermes


class SmolLM3(Hermes):
    """The template writes no calls of earlier answers: they become text. Nor does it write their reasoning."""

    @staticmethod
    def matches(template_text: str) -> bool:
        """Whether it takes `xml_tools`."""
        return "xml_tools" in template_text

    def variables(self, job: ChatJob) -> dict[str, Any]:
        """See `Family`."""
        return dict(job.variables) | ({"xml_tools": [tool["function"] for tool in job.tools]} if job.uses_tools else {})

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """See `Family`."""
        return [_as_text(message) for message in job.messages]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in calls]
    texts = [json.dumps({key: f[key] for key in ("name", "arguments")}, ensure_ascii=False) for f in functions]
    parts = [message["content"], *(f"<tool_call>\n{text}\n</tool_call>" for text in texts)]
    return {"role": message["role"], "content": "\n".join(part for part in parts if part)}
