"""Errors of requests: each has an HTTP status, and each API shows it in its own form."""

import json
import re
from dataclasses import dataclass, field

from mlxr.compiler.errors import ChatTemplateError, HostError, MlxrError, RankLostError, RequestError, TokenizerError
from mlxr.compiler.text import without_python
from mlxr.hub import HubError
from mlxr.registry import NameTakenError, RegistryError
from mlxr.runtime.engine.errors import EngineError, PromptTooLongError, QueueFullError
from mlxr.server.documents.answers import (
    AnthropicError,
    AnthropicErrorDetail,
    AnthropicErrorFacts,
    OllamaError,
    OpenAIError,
    OpenAIErrorDetail,
    Told,
)

_PATH = r"""~?/(?:[^\s/'"`:,;|<>()\[\]{}]+/)+"""
_FOLDERS = re.compile(rf"(?<![\w.:/-]){_PATH}")
_BARE_FOLDERS = re.compile(rf"(?<!\S){_PATH}")
_LONGEST_QUOTE = 60


@dataclass
class ApiError(Exception):
    """A request that is not served.

    Attributes:
        status: of HTTP.
        message: what is wrong, where, and how to go on.
        kind: OpenAI's `type`; other APIs have theirs by the status.
        code: a name for programs.
        param: the field at fault.
        headers: further headers.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def bad_field(name: str, message: str) -> ApiError:
    """A field that is refused."""
    return ApiError(400, message, param=name, code="invalid_value")


def without_folders(error: object) -> str:
    """The text of an error for clients: of a path only its file's name, and nothing of Python. The log has it whole.

    What a request sent is quoted in its errors, and stays as it is.
    """
    told = without_python(error)
    return (_BARE_FOLDERS if isinstance(error, RequestError) else _FOLDERS).sub("", told)


def api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception. What is not the client's fault is told without details."""
    if isinstance(error, ApiError):
        return error
    told = _api_error(error)
    told.__cause__ = error  # the log tells less of what others say; see `outline`
    return told


def _api_error(error: BaseException) -> ApiError:
    text = without_folders(error)
    if isinstance(error, PromptTooLongError):
        return ApiError(400, text, code="context_length_exceeded", param="messages")
    if isinstance(error, QueueFullError):
        return ApiError(429, text, "rate_limit_error", "queue_full", headers={"Retry-After": "1"})
    if isinstance(error, RequestError | ChatTemplateError | TokenizerError):
        return ApiError(400, text, code="invalid_value")
    if isinstance(error, EngineError | RankLostError):
        return ApiError(503, text, "server_error", "engine_unavailable", headers={"Retry-After": "1"})
    if isinstance(error, HubError):
        return ApiError(502, text, "server_error", "hub_failed")
    if isinstance(error, MlxrError):
        return ApiError(500, text, "server_error", "model_failed")
    return ApiError(500, "the server failed on this request; its log says why", "server_error", "internal_error")


def pull_error(name: str, error: MlxrError) -> ApiError:
    """What a client is told of a model that was not fetched: the request is right, so that it says why.

    Args:
        name: of the model.
        error: as `pull_model` raises it.
    """
    if isinstance(error, NameTakenError):
        message = f"{name!r} is the name of another model here: 'mlxr remove' that one first"
        return ApiError(409, message, code="name_taken", param="model")
    if isinstance(error, RegistryError):
        message = f"{name} was fetched, and cannot be registered: {without_folders(error)}"
        return ApiError(500, message, "server_error", "registry_failed")
    if isinstance(error, HubError | HostError):
        return api_error(error)
    message = f"{name} is not a model that this server can run: {without_folders(error)}"
    return ApiError(422, message, code="model_not_supported", param="model")


def openai_body(error: ApiError) -> OpenAIError:
    """OpenAI's form."""
    detail = OpenAIErrorDetail(message=error.message, type=error.kind, param=error.param, code=error.code)
    return OpenAIError(error=detail)


_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
}


_NO_THREADS = AnthropicErrorFacts(error_code="thread_unsupported_request", unsupported=["thread"])
"""By this Anthropic's SDKs know to go on without a thread: they send the whole conversation from then on."""


def anthropic_body(error: ApiError) -> AnthropicError:
    """Anthropic's form. Its clients know a prompt that is too long by the first words, and then make it shorter."""
    start = "prompt is too long: " if error.code == "context_length_exceeded" else ""
    kind = _ANTHROPIC.get(error.status, "api_error")
    told = AnthropicErrorDetail(type=kind, message=f"{start}{error.message}")
    if error.code == "unsupported_field" and error.param == "thread":
        told.details = _NO_THREADS
    return AnthropicError(type="error", error=told)


def ollama_body(error: ApiError) -> OllamaError:
    """Ollama's form."""
    return OllamaError(error=error.message)


def error_body(path: str, error: ApiError) -> Told:
    """The form of the API that a path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic_body(error)
    if path.startswith("/api/"):
        return ollama_body(error)
    return openai_body(error)


def quoted_json(value: object) -> str:
    """A value as JSON, cut after 60 characters; of a long list no more is written than is shown.

    Args:
        value: of JSON; anything else in it is shown as a text.
    """
    value = value[:_LONGEST_QUOTE] if isinstance(value, str) else value
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, skipkeys=True, check_circular=False, default=str).iterencode(
        value
    ):
        text += piece
        if len(text) >= _LONGEST_QUOTE:
            break
    return text[:_LONGEST_QUOTE]
