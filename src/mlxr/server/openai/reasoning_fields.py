"""The fields of chat requests about reasoning, under the names that other servers have for them."""

from typing import Any, Literal

from mlxr.server.errors import bad_field
from mlxr.server.fields import ApiModel, WithoutEffect

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(ApiModel):
    """OpenRouter's: how much the model thinks, and whether that is told."""

    effort: Effort | None = None
    max_tokens: int | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: WithoutEffect = None


class ThinkingSwitch(ApiModel):
    """Anthropic's, which other servers took over."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]
    budget_tokens: int | None = None


class ReasoningFields(ApiModel):
    """Each budget means the same: most tokens of reasoning, after which the answer begins; -1: as many as it wants."""

    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    thinking_budget_tokens: int | None = None
    """llama-server's, as are the two that follow."""
    reasoning_budget: int | None = None
    reasoning_budget_tokens: int | None = None
    thinking_token_budget: int | None = None
    """vLLM's."""
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    separate_reasoning: Literal[True] | None = None
    """SGLang's, as is `stream_reasoning`; routers add both."""
    stream_reasoning: Literal[True] | None = None

    @property
    def shows_reasoning(self) -> bool:
        """Whether the answer tells its reasoning."""
        return self.include_reasoning is not False and not (self.reasoning and self.reasoning.exclude)

    @property
    def budget(self) -> int | None:
        """Most tokens of reasoning.

        Raises:
            ApiError: two fields name different ones, or one names fewer than none.
        """
        named = {
            "reasoning.max_tokens": None if self.reasoning is None else self.reasoning.max_tokens,
            "thinking.budget_tokens": None if self.thinking is None else self.thinking.budget_tokens,
            "thinking_budget": self.thinking_budget,
            "thinking_budget_tokens": self.thinking_budget_tokens,
            "reasoning_budget": self.reasoning_budget,
            "reasoning_budget_tokens": self.reasoning_budget_tokens,
            "thinking_token_budget": self.thinking_token_budget,
        }
        given = {name: tokens for name, tokens in named.items() if tokens is not None}
        if not given:
            return None
        name, tokens = next(iter(given.items()))
        if any(other != tokens for other in given.values()):
            raise bad_field(name, f"{' and '.join(given)} are given, and mean the same: leave all but one out")
        if tokens < -1:
            raise bad_field(name, f"{name} is {tokens}; expected 0 or more tokens of reasoning, or -1 for no limit")
        return None if tokens == -1 else tokens

    @property
    def variables(self) -> dict[str, Any]:
        """For the chat template."""
        reasoning = self.reasoning or Reasoning()
        effort = reasoning.effort if self.reasoning_effort is None else self.reasoning_effort
        variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        switches = [None if effort is None else effort != "none", reasoning.enabled, self.enable_thinking]
        if reasoning.max_tokens:
            switches.insert(1, True)
        if self.thinking is not None:
            switches.append(self.thinking.type != "disabled")
        for switch in switches:
            if switch is not None:
                variables["enable_thinking"] = switch
        return variables | (self.chat_template_kwargs or {})
