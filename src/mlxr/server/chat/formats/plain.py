"""The format of models of no known family: thinking and text, and no tool calls."""

from typing import ClassVar

from mlxr.server.chat.formats.family import Family


class Plain(Family):
    """Answers are text, perhaps after `<think>...</think>`."""

    takes_tools: ClassVar[bool] = False

    @staticmethod
    def matches(template_text: str) -> bool:
        """Any template."""
        del template_text
        return True
