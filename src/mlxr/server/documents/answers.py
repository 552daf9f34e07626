"""The `responses` of routes: what an answer is, whole and streamed, and what errors are."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Told(BaseModel):
    """An answer, or a part of one: it has no further fields."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class OpenAIErrorDetail(Told):
    """What is wrong, and how to go on."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Told):
    """OpenAI's form of errors, which all but Anthropic's and Ollama's paths have."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(Told):
    """What is wrong, and how to go on."""

    type: str
    message: str


class AnthropicError(Told):
    """Anthropic's form of errors."""

    type: str
    error: AnthropicErrorDetail


class OllamaError(Told):
    """Ollama's form of errors."""

    error: str


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
