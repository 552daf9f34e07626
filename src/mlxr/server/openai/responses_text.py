"""Texts of /v1/responses: what messages say, and what tools give back."""

from typing import Annotated, Literal

from pydantic import Tag

from mlxr.server.fields import BY_TYPE, TEXT_OR_LIST, ApiModel, WithoutEffect, known_types


class InputText(ApiModel):
    """Text of a message."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: WithoutEffect = None


class OutputText(ApiModel):
    """Text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: WithoutEffect = None
    logprobs: WithoutEffect = None


class Refusal(ApiModel):
    """What the assistant said in place of an answer."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[InputText, Tag("[input_text]")]
    | Annotated[OutputText, Tag("[output_text]")]
    | Annotated[Refusal, Tag("[refusal]")],
    BY_TYPE,
    known_types("input_text", "output_text", "refusal", instead="this server takes text only"),
]
Text = Annotated[
    Annotated[str, Tag("str")] | Annotated[list[Part], Tag("[list]")],
    TEXT_OR_LIST,
]


def joined_text(content: str | list[InputText | OutputText | Refusal]) -> str:
    """The text of a content, part by part."""
    if isinstance(content, str):
        return content
    return "\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)
