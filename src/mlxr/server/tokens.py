"""/tokenize, /detokenize and /tokenizer_info, in vLLM's form.

Where one model is served, requests need not name it: lm-eval does not.
"""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.documents.openai_answers import DetokenizedText, TokenizerInfo, Tokens
from mlxr.server.errors import bad_field
from mlxr.server.fields import MOST_MESSAGES, ApiModel
from mlxr.server.large_body_route import JsonBytes, LargeBodyRoute, made, written_in_pieces
from mlxr.server.openai.chat_request import Message, check_prompt_end, told_message
from mlxr.server.openai.chat_tools import Tool, kit_of
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)
_LONGEST_NAME = 64
"""Of a control token, in characters."""
_MOST_CHARACTERS, _MOST_TOKENS = 4 << 20, 1 << 19
"""Of a text: a library gives the ids of longer ones in a call that stops everybody else for long."""


class TokenizeRequest(ApiModel):
    """The body of /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = Field(None, max_length=_MOST_CHARACTERS)
    messages: list[Message] | None = Field(None, min_length=1, max_length=MOST_MESSAGES)
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(ApiModel):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int] = Field(max_length=_MOST_TOKENS)


@router.post("/tokenize", tags=["Tokens"], responses=answers(Tokens))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text, or of a conversation up to where the answer begins."""
    if (body.prompt is None) == (body.messages is None):
        raise bad_field("prompt", "expected either prompt or messages")
    of_chats = ("tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")
    for name in of_chats if body.messages is None else ("add_special_tokens",):
        if getattr(body, name) is not None:
            other = "prompt" if body.messages is None else "messages, whose template writes them"
            raise bad_field(name, f"{name} has no meaning with {other}: leave it out")
    async with ServerState.of(request).use(body.model) as model:
        tokenizer = model.engine.model.require_tokenizer()
        if body.prompt is not None:
            ids = await asyncio.to_thread(_ids, tokenizer, body.prompt, body.add_special_tokens is not False)
        else:
            check_prompt_end(body.add_generation_prompt, body.continue_final_message)
            ids = await model.format.prompt(await made(request, lambda: _job(body)))

        def written() -> bytes:
            told = Tokens(count=len(ids), max_model_len=model.context, tokens=ids)
            if body.return_token_strs:
                told.token_strs = [tokenizer.token_text(token_id) for token_id in ids]
            return written_in_pieces(told.fields())

        return JsonBytes(await asyncio.to_thread(written))


def _job(body: TokenizeRequest) -> ChatJob:
    return ChatJob(
        tuple(told_message(i, message) for i, message in enumerate(body.messages or ())),
        Sampling(),
        kit_of(body.tools).functions(),
        variables=body.chat_template_kwargs or {},
        continue_final=body.continue_final_message or False,
        begins_answer=body.add_generation_prompt is not False,
    )


def _ids(tokenizer: Tokenizer, text: str, add_special: bool) -> list[int]:
    """The ids of a text. Clients ask so for the id of a control token, by its name alone."""
    if len(text) < _LONGEST_NAME:
        named = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(named) == 1 and tokenizer.is_control(named[0]):
            return named
    return tokenizer.encode(text, add_special=add_special, parse_special=True)


@router.post("/detokenize", tags=["Tokens"], responses=answers(DetokenizedText))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids."""
    async with ServerState.of(request).use(body.model) as model:
        tokenizer = model.engine.model.require_tokenizer()

        def written() -> bytes:
            return written_in_pieces(DetokenizedText(prompt=tokenizer.decode(body.tokens)).fields())

        return JsonBytes(await asyncio.to_thread(written))


@router.get("/tokenizer_info", tags=["Tokens"], responses=answers(TokenizerInfo))
async def tokenizer_info(request: Request, model: str | None = None) -> Response:
    """What a model's tokenizer is."""
    async with ServerState.of(request).use(model) as loaded:
        tokenizer = loaded.engine.model.require_tokenizer()
        bos, eos = tokenizer.bos_id, tokenizer.eos_id
        info = TokenizerInfo(
            vocab_size=tokenizer.vocab_size,
            bos_token_id=bos,
            eos_token_id=eos,
            end_token_ids=sorted(tokenizer.eos_ids),
            add_bos_token=tokenizer.adds_bos,
            chat_template=loaded.template or None,
            bos_token=None if bos is None else tokenizer.token_text(bos),
            eos_token=None if eos is None else tokenizer.token_text(eos),
        )
        return JsonAnswer(info)
