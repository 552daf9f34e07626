"""Fields of /api/chat beside `options`, which Ollama does not know and a client sends all the same."""

from typing import Any, Literal

from pydantic import Field

from mlxr.server.errors import bad_field
from mlxr.server.fields import ApiModel
from mlxr.server.ollama.options import Options


class ToolName(ApiModel):
    """The name of a tool."""

    name: str


class ToolChoice(ApiModel):
    """The one tool that the model must call."""

    type: Literal["function"]
    name: str | None = None
    function: ToolName | None = None


class OuterFields(ApiModel):
    """What ollama-ai-provider-v2, for Vercel's AI SDK, says beside `options`; what is in `options` goes first."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None

    def all_options(self, options: Options | None) -> Options:
        """The request's `options` with what they lack of these fields."""
        inner = options or Options()
        outer = {"temperature": self.temperature, "top_p": self.top_p, "num_predict": self.max_output_tokens}
        return inner.model_copy(update={name: value for name, value in outer.items() if getattr(inner, name) is None})

    def chosen(self, names: list[Any]) -> str:
        """The choice among tools of these names: `auto`, `none`, `required` or `function:NAME`.

        Raises:
            ApiError: it names no tool, or one that is not among them.
        """
        choice = self.tool_choice
        if not isinstance(choice, ToolChoice):
            return (choice or "auto") if names or choice == "required" else "none"
        name = choice.name or (choice.function.name if choice.function else None)
        if name not in names:
            raise bad_field("tool_choice", f"tool_choice names {name!r:.80}; tools has {', '.join(names) or 'none'}")
        return f"function:{name}"
