"""/api/generate."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.server.chat.answer import AnswerEvent, answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import Form, json_form
from mlxr.server.documents.ollama_answers import OllamaText, OllamaTextLine
from mlxr.server.errors import bad_field
from mlxr.server.large_body_route import JsonRoute
from mlxr.server.ollama.answers import Ask, PartialAnswer, Records, answered, loaded_or_not
from mlxr.server.ollama.chat import CommonRequest
from mlxr.server.ollama.options import sampling_of
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.state import ServerState

router = APIRouter(route_class=JsonRoute)


class GenerateRequest(CommonRequest):
    """The body of /api/generate."""

    refused: ClassVar[dict[str, str]] = {
        "template": "write the whole prompt yourself and set raw, or start the server with --template",
        "context": "send the whole conversation to /api/chat",
        "suffix": "put the whole prompt of a model for code into prompt, and set raw",
        "images": "this server takes text only",
        "width": "this server makes no images",
        "height": "this server makes no images",
        "steps": "this server makes no images",
    }

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


@router.post("/api/generate", tags=["Ollama"], responses=answers(OllamaText, "application/x-ndjson"))
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answers a prompt; without one it loads the model, or unloads it if keep_alive is 0."""
    state = ServerState.of(request)
    body.check()
    if body.raw and body.system:
        raise bad_field("system", "system is given, and raw takes the prompt as it is: write it into the prompt")
    sampling = sampling_of(body.options, body.format, body.logprobs, body.top_logprobs)
    ask = Ask(state, body.model, body.keep_alive, body.options, lambda model: _pieces(model, body, sampling), _RECORDS)
    if not body.prompt:
        return await loaded_or_not(ask)
    return await answered(request, ask, body.stream)


def _pieces(model: LoadedModel, body: GenerateRequest, sampling: Sampling) -> AsyncGenerator[AnswerEvent]:
    if body.raw or (model.chat_format is None and not body.system):
        return _continued(model, body.prompt or "", sampling, parse_special=bool(body.raw))
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt or ""})
    job = ChatJob(
        tuple(messages),
        sampling,
        tool_choice="none",
        variables=body.variables(),
        thinking_budget=body.thinking_budget,
    )
    return answer(model, job)


async def _continued(
    model: LoadedModel, prompt: str, sampling: Sampling, parse_special: bool
) -> AsyncGenerator[AnswerEvent]:
    """The text that continues a prompt. In a raw one, the names of control tokens mean these tokens."""
    tokenizer = model.engine.model.require_tokenizer()
    check_length(prompt, tokenizer, model.limit)
    ids = await asyncio.to_thread(tokenizer.encode, prompt, parse_special=parse_special)
    async with aclosing(model.engine.generate(ids, sampling)) as events:
        async for event in events:
            yield AnswerEvent(event.index, [ContentDelta(event.text)] if event.text else [], event, False)


def _fields(part: PartialAnswer) -> dict[str, Any]:
    return {"response": part.text} | ({"thinking": part.thinking} if part.thinking else {})


def _line_form(*holes: str, **more: Any) -> Form:
    example = OllamaTextLine(model="", created_at="", response="", done=False, **more)
    return json_form(example, "model", "created_at", "response", *holes, after="\n")


_RECORDS = Records(_fields, OllamaText, OllamaTextLine, _line_form(), _line_form("logprobs", logprobs=[]))
