"""What an answer is: `Told`, and the `responses` of routes, with what errors are."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, SkipValidation

LooseText = Annotated[str, SkipValidation]
"""A text that a client or a model wrote: it may be no valid Unicode, half of a pair of surrogates, say."""


class Told(BaseModel):
    """An answer, or a part of one: it has no further fields. Those that it was not given are left out."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def fields(self) -> dict[str, Any]:
        """What is written of it; what is in that is as it was given."""
        given = self.model_fields_set
        return {name: value for name, value in self.__dict__.items() if name in given}


class OpenAIErrorDetail(Told):
    """What is wrong, and how to go on."""

    message: LooseText
    type: str
    param: LooseText | None
    code: str | None


class OpenAIError(Told):
    """OpenAI's form of errors, which all but Anthropic's and Ollama's paths have."""

    error: OpenAIErrorDetail


class AnthropicErrorFacts(Told):
    """What programs go by: a part of the request that this server does not have."""

    error_code: str
    unsupported: list[str]


class AnthropicErrorDetail(Told):
    """What is wrong, and how to go on."""

    type: str
    message: LooseText
    details: AnthropicErrorFacts | None = None


class AnthropicError(Told):
    """Anthropic's form of errors."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class OllamaError(Told):
    """Ollama's form of errors."""

    error: LooseText


def answers(model: type[BaseModel], stream: str = "", **others: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route.

    Args:
        model: of a whole answer.
        stream: media type of a streamed answer, if there is one.
        others: descriptions of further statuses, as `status_503`.
    """
    told: dict[int | str, dict[str, Any]] = {200: {"model": model}}
    if stream:
        told[200]["content"] = {stream: {}}
    return told | {int(name.removeprefix("status_")): {"description": text} for name, text in others.items()}


_CODES = {
    401: "a key is asked for",
    403: "an unknown host, or a page of another site",
    404: "there is no such model",
    405: "another method is meant",
    413: "the body is too large",
    429: "too many requests wait: try again after `Retry-After` seconds",
    500: "the model failed; the server's log says why",
    503: "no memory for the model now, or it is still being loaded, or the server is ending",
}


def errors(path: str) -> dict[int | str, dict[str, Any]]:
    """The errors that every route may give.

    Args:
        path: of one of the routes, which decides the form of errors.
    """
    if path.startswith("/v1/messages"):
        model: type[Told] = AnthropicError
    else:
        model = OllamaError if path.startswith("/api/") else OpenAIError
    told: dict[int | str, dict[str, Any]] = {
        code: {"model": model, "description": text} for code, text in _CODES.items()
    }
    return told | {"4XX": {"model": model, "description": "a field that cannot be served; the message says which"}}
