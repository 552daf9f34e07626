"""Clients that people use on top of OpenAI's: `pip install -e ".[clients]"` installs them.

lm-eval's numbers are compared with the softmax of the model's own logits.
"""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openai
import pydantic
import pytest

import mlxr
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.api_calls import CHAT
from mlxr_tests.running_server import EXACT, HERMES, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY

pytestmark = pytest.mark.long
WHY = 'it is not installed: pip install -e ".[clients]"'
SOON: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""A model that knows nothing would think for ever."""
LONG = dataclasses.replace(EXACT, context=4096, force_context=True)
PAIRS = [("Once upon a time", " there was a fox"), ("The fox said", " no"), ("", "A hill")]


class Fox(pydantic.BaseModel):
    """What is asked for as JSON."""

    colour: Literal["red", "grey"]
    legs: Literal[3, 4]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with one model, as harnesses expect it."""
    template: Path = tmp_path_factory.mktemp("clients") / "hermes.jinja"
    template.write_text(HERMES)
    with running_server(lambda: ModelPool([tiny_source(template=template, changes=LONG)])) as running:
        yield running


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=LONG) as loaded:
        yield loaded


def log_probabilities(model: mlxr.Model, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of each token after the first, and whether it is the most probable one."""
    logits = model.logits(ids).astype(np.float64)[:-1]
    rows = logits - logits.max(1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(1, keepdims=True))
    return rows[np.arange(len(ids) - 1), ids[1:]], rows.argmax(1) == ids[1:]


@pytest.mark.parametrize("backend", ["remote", "auto"])
def test_lm_eval_gets_the_librarys_log_likelihoods(one: RunningServer, model: mlxr.Model, backend: str) -> None:
    api = pytest.importorskip("lm_eval.models.openai_completions", reason=WHY)
    instance = pytest.importorskip("lm_eval.api.instance", reason=WHY).Instance
    lm = api.LocalCompletionsAPI(
        base_url=f"{one.url}/v1/completions", model="tiny", tokenizer_backend=backend, num_concurrent=2, max_length=512
    )
    asked = [instance("loglikelihood", {}, pair, number) for number, pair in enumerate(PAIRS)]
    tokenizer = model.require_tokenizer()
    assert lm.prefix_token_id == tokenizer.bos_id and lm.eot_token_id == tokenizer.eos_id
    for (context, continuation), (told, is_greedy) in zip(PAIRS, lm.loglikelihood(asked), strict=True):
        ids = tokenizer.encode(context + continuation, add_special=False)
        before = len(tokenizer.encode(context, add_special=False)) if context else 1
        ids = ids if context else [tokenizer.bos_id, *ids]
        expected, greedy = log_probabilities(model, ids)
        assert told == pytest.approx(expected[before - 1 :].sum(), abs=1e-3)
        assert is_greedy == greedy[before - 1 :].all()
    text = "Once upon a time there was a hill. " * 3
    (rolling,) = lm.loglikelihood_rolling([instance("loglikelihood_rolling", {}, (text,), 0)])
    ids = [tokenizer.bos_id, *tokenizer.encode(text, add_special=False)]
    assert rolling == pytest.approx(log_probabilities(model, ids)[0].sum(), abs=1e-2)
    until: dict[str, Any] = {"until": ["§"], "max_gen_toks": 12}
    (written,) = lm.generate_until([instance("generate_until", {}, ("The fox", until), 0)])
    assert written == model.generate(tokenizer.encode("The fox", add_special=False), max_tokens=12).text


def test_lm_eval_chats(one: RunningServer, model: mlxr.Model) -> None:
    api = pytest.importorskip("lm_eval.models.openai_completions", reason=WHY)
    instance = pytest.importorskip("lm_eval.api.instance", reason=WHY).Instance
    lm = api.LocalChatCompletion(base_url=f"{one.url}/v1/chat/completions", model="tiny", num_concurrent=2)
    history = lm.apply_chat_template([{"role": "user", "content": "The fox"}])
    until: dict[str, Any] = {"until": ["§"], "max_gen_toks": 12}
    (written,) = lm.generate_until([instance("generate_until", {}, (history, until), 0)])
    body = {"model": "tiny", "messages": [{"role": "user", "content": "The fox"}], "max_tokens": 12, "temperature": 0}
    told = one.http.post(CHAT.path, json=body).json()["choices"][0]["message"]["content"]
    assert written == told


def test_instructor(one: RunningServer) -> None:
    instructor = pytest.importorskip("instructor", reason=WHY)
    with openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0) as plain:
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            client = instructor.from_openai(plain, mode=mode)
            fox = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "A fox"}],
                response_model=Fox,
                max_tokens=2000,
                seed=1,
                extra_body=SOON,
            )
            assert isinstance(fox, Fox)


def test_pydantic_ai(one: RunningServer) -> None:
    ai = pytest.importorskip("pydantic_ai", reason=WHY)
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> None:
        chat = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{one.url}/v1", api_key="none"))
        for kind in (ai.NativeOutput(Fox), ai.ToolOutput(Fox)):
            agent = ai.Agent(chat, output_type=kind, model_settings={"max_tokens": 200, "seed": 2, "extra_body": SOON})
            result = await agent.run("A fox")
            assert isinstance(result.output, Fox)
        agent = ai.Agent(chat, model_settings={"max_tokens": 8, "seed": 2, "extra_body": SOON})
        async with agent.run_stream("A fox") as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True)]
            assert pieces and stream.usage.output_tokens == 8

    asyncio.run(run())


def test_langchain(one: RunningServer) -> None:
    chat = pytest.importorskip("langchain_openai", reason=WHY).ChatOpenAI(
        base_url=f"{one.url}/v1", api_key="none", model="tiny", max_tokens=200, seed=3, temperature=0.8, extra_body=SOON
    )
    whole = chat.invoke("A fox", max_tokens=8)
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(str(piece.content) for piece in chat.stream("A fox", max_tokens=8)) == whole.content
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Fox, method=method).invoke("A fox"), Fox)
