"""/api/generate."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
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
        "images": "this server takes text only",
        "width": "this server makes no images",
        "height": "this server makes no images",
        "steps": "this server makes no images",
    }

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


@router.post("/api/generate", tags=["Ollama"], responses=answers(OllamaText, "application/x-ndjson"))
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answers a prompt, or fills in before a suffix; without any it loads the model, or unloads it (keep_alive 0)."""
    state = ServerState.of(request)
    body.check()
    if body.raw and body.system:
        raise bad_field("system", "system is given, and raw takes the prompt as it is: write it into the prompt")
    if body.suffix and (body.raw or body.system):
        name = "raw" if body.raw else "system"
        raise bad_field(name, f"{name} is given, and text before a suffix is taken as it is: leave {name} out")
    sampling = sampling_of(body.options, body.format, body.logprobs, body.top_logprobs)
    ask = Ask(state, body.model, body.keep_alive, body.options, lambda model: _pieces(model, body, sampling), _RECORDS)
    if not (body.prompt or body.suffix):
        return await loaded_or_not(ask)
    return await answered(request, ask, body.stream)


def _pieces(model: LoadedModel, body: GenerateRequest, sampling: Sampling) -> AsyncGenerator[AnswerEvent]:
    if body.suffix:
        gap = Gap(body.prompt or "", body.suffix)
        return _text(model, gap[:2], lambda tokenizer: infill_prompt(tokenizer, gap)[:2], sampling)
    if body.raw or (model.chat_format is None and not body.system):
        prompt, special = body.prompt or "", bool(body.raw)
        return _text(model, [prompt], lambda tokenizer: (tokenizer.encode(prompt, parse_special=special), ()), sampling)
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


async def _text(
    model: LoadedModel,
    texts: Iterable[str],
    encode: Callable[[Tokenizer], tuple[list[int], tuple[int, ...]]],
    sampling: Sampling,
) -> AsyncGenerator[AnswerEvent]:
    """What follows a prompt, as it is.

    Args:
        model: answers.
        texts: what the prompt is made of.
        encode: gives the prompt's tokens, and those that end the answer besides those that end any.
        sampling: how tokens are chosen.
    """
    tokenizer = model.engine.model.require_tokenizer()
    for text in texts:
        check_length(text, tokenizer, model.limit)
    ids, ends = await asyncio.to_thread(encode, tokenizer)
    async with aclosing(model.engine.generate(ids, sampling.ending_also(ends))) as events:
        async for event in events:
            yield AnswerEvent(event.index, [ContentDelta(event.text)] if event.text else [], event, False)


def _fields(part: PartialAnswer) -> dict[str, Any]:
    return {"response": part.text} | ({"thinking": part.thinking} if part.thinking else {})


def _line_form(*holes: str, **more: Any) -> Form:
    example = OllamaTextLine(model="", created_at="", response="", done=False, **more)
    return json_form(example, "model", "created_at", "response", *holes, after="\n")


_RECORDS = Records(_fields, OllamaText, OllamaTextLine, _line_form(), _line_form("logprobs", logprobs=[]))
