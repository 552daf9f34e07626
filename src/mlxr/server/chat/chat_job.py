"""What an API asks of a model: the messages of a conversation, and how to answer them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.messages import check_tools

_NAMED = "function:"
_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True)
class ChatJob:
    """One request for an answer, or for several.

    Attributes:
        messages: as the chat templates of Hugging Face read them: `role`, `content` (text), `reasoning_content`,
            `tool_calls` (each with `id`, `type` and `function`: a `name` and `arguments`, a dict or its JSON text),
            `tool_call_id`, `name`.
        sampling: how tokens are chosen, with the answer's own constraint if it has one.
        tools: in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`.
        tool_choice: `auto`, `none`, `required`, or `function:NAME`.
        parallel_tool_calls: whether one answer may call several tools, unless the choice names one.
        variables: for the template: `enable_thinking`, `reasoning_effort` ...
        thinking_budget: most tokens of reasoning; 0: none; None: what the model's own default says, else as many as the
            model wants.
        reasoning: whether it is told apart from the answer's text; else it stays in it.
        continue_final: whether the last message is the beginning of the answer; or which part of it goes on:
            `reasoning_content`, or `content`, which need not have begun. True: the reasoning, if there is no text yet.
        begins_answer: whether the prompt ends with what begins a message of the assistant; else the model writes that
            itself.

    Raises:
        RequestError: tools that cannot be used, a tool choice that is not known, or one that needs tools where there
            are none.
    """

    messages: tuple[dict[str, Any], ...]
    sampling: Sampling
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    thinking_budget: int | None = None
    reasoning: bool = True
    continue_final: bool | Literal["content", "reasoning_content"] = False
    begins_answer: bool = True

    def __post_init__(self) -> None:
        """Checks the tools and their choice, and the budget."""
        check_tools(self.tools)
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise RequestError(f"thinking_budget is {self.thinking_budget}; expected 0 or more tokens of reasoning")
        if self.tool_choice not in _CHOICES and not self.tool_choice.startswith(_NAMED):
            raise RequestError(
                f"tool_choice is {self.tool_choice!r}; expected auto, none, required, or the name of a tool"
            )
        if self.must_call and not self.tools:
            raise RequestError(
                f"tool_choice is {self.tool_choice!r}, and there are no tools: give some, or leave it out"
            )
        if self.chosen_tool is not None and self.chosen_tool not in self.tool_names:
            raise RequestError(
                f"tool_choice names the tool {self.chosen_tool!r}, which is not among the tools: "
                f"{', '.join(self.tool_names)}"
            )

    @property
    def continues_thought(self) -> bool:
        """Whether the answer begins within the reasoning of the last message."""
        return bool(self.continue_final) and self.continue_final != "content" and not self._has_text

    @property
    def continues_text(self) -> bool:
        """Whether the answer begins within the text of the last message."""
        return bool(self.continue_final) and self._has_text

    @property
    def _has_text(self) -> bool:
        content = self.messages[-1].get("content") or ""
        parts = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
        return any(part.strip() for part in parts)

    @property
    def uses_tools(self) -> bool:
        """Whether the answer may call a tool."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer must call a tool."""
        return self.tool_choice == "required" or self.tool_choice.startswith(_NAMED)

    @property
    def constrains_calls(self) -> bool:
        """Whether the form of calls, their arguments or their number must be enforced."""
        is_strict = any(tool["function"].get("strict") for tool in self.tools)
        return self.uses_tools and (self.must_call or is_strict or not self.parallel_tool_calls)

    @property
    def may_call_several(self) -> bool:
        """Whether the answer may have several calls; a tool that is chosen by its name is called exactly once."""
        return self.parallel_tool_calls and self.chosen_tool is None

    @property
    def chosen_tool(self) -> str | None:
        """The name of the one tool that must be called, if the request names it."""
        return self.tool_choice.removeprefix(_NAMED) if self.tool_choice.startswith(_NAMED) else None

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(tool["function"]["name"] for tool in self.tools)
