"""What there is to know of models and the server: /api/tags, /api/show, /api/ps, /api/version."""

import asyncio
import json
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.version import VERSION
from mlxr.loading.model_facts import ModelFacts
from mlxr.runtime.engine.default_sampling import DefaultSampling
from mlxr.server.chat.learned.answer_form import Origin
from mlxr.server.chat.shown_form import family_of_templates
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.documents.ollama_answers import (
    LoadedOllamaModel,
    LoadedOllamaModels,
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaShow,
    OllamaVersion,
)
from mlxr.server.errors import bad_field
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.large_body_route import JsonRoute
from mlxr.server.ollama.answers import NEVER, written
from mlxr.server.ollama.named_models import own_name
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.pool.model_pool import FOREVER, ModelPool
from mlxr.server.pool.served_model import ServedModel
from mlxr.server.state import ServerState

router = APIRouter(route_class=JsonRoute)
_API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients look at it to know what they may ask."""
_NAMES = {"repetition_penalty": "repeat_penalty", "repetition_range": "repeat_last_n"}
_HOSTS_WITH_CARDS = ("metal", "cuda")


class ShowRequest(ApiModel):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: WithoutEffect = None
    system: WithoutEffect = None
    template: WithoutEffect = None
    options: WithoutEffect = None


@router.head("/", include_in_schema=False)
async def alive() -> Response:
    """Clients ask this to know whether there is a server."""
    return Response()


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", tags=["Ollama"], responses=answers(OllamaVersion))
async def version() -> Response:
    """The version of Ollama whose API this is, and the server's own."""
    return JsonAnswer(OllamaVersion(version=_API_VERSION, mlxr=VERSION))


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", tags=["Ollama"], responses=answers(OllamaModels))
async def tags(request: Request) -> Response:
    """All models, loaded or not."""
    models = ServerState.of(request).pool.models
    records = await asyncio.to_thread(lambda: [OllamaModel(**_record(model, _facts(model))) for model in models])
    return JsonAnswer(OllamaModels(models=records))


@router.get("/api/ps", tags=["Ollama"], responses=answers(LoadedOllamaModels))
async def running(request: Request) -> Response:
    """The models that are loaded."""
    pool = ServerState.of(request).pool
    forms = [model for model in pool.forms if model.loaded is not None]
    facts = await asyncio.to_thread(lambda: [_facts(model) for model in forms])
    records = [  # of those that were not unloaded meanwhile
        _running(pool, model, model.loaded, told)
        for model, told in zip(forms, facts, strict=True)
        if model.loaded is not None
    ]
    return JsonAnswer(LoadedOllamaModels(models=records))


@router.post("/api/show", tags=["Ollama"], responses=answers(OllamaShow))
async def show(body: ShowRequest, request: Request) -> Response:
    """One model. It is not loaded."""
    pool = ServerState.of(request).pool
    if (asked := body.model or body.name) is None:
        raise bad_field("model", "model is missing: it is required")
    model = pool.find(own_name(pool, asked))
    facts = await asyncio.to_thread(model.source.facts)
    told = OllamaShow(
        modelfile=f"FROM {model.name}\n",
        parameters="\n".join(parameters(facts.sampling)),
        template="" if facts.templates is None else facts.templates.text,
        details=_details(facts),
        model_info={
            "general.architecture": facts.family,
            "general.parameter_count": facts.num_parameters,
            f"{facts.family}.context_length": facts.context,
            f"{facts.family}.block_count": facts.num_layers,
            f"{facts.family}.vocab_size": facts.vocab_size,
        },
        capabilities=await asyncio.to_thread(_capabilities, model, facts),
        modified_at=written(model.created),
    )
    return JsonAnswer(told)


def parameters(sampling: DefaultSampling) -> list[str]:
    """A model's own sampling, as Ollama lists it: a line for each option, by Ollama's names."""
    lines = []
    for name, value in sampling.options.items():
        if name == "stop":
            lines += [f"{name:<30} {json.dumps(text)}" for text in value]
        elif name != "logit_bias":  # Ollama has no word for tokens that must not come
            lines.append(f"{_NAMES.get(name, name):<30} {value:g}")
    return lines


def _capabilities(model: ServedModel, facts: ModelFacts) -> list[str]:
    told = ["completion", *(["insert"] if model.source.fills_gaps() else [])]
    family = None if facts.templates is None else family_of_templates(facts.templates)
    if family is None:
        return told
    has_tools = family.form.origin is not Origin.OURS
    return [*told, *(["tools"] if has_tools else []), *(["thinking"] if family.thinks else [])]


def _facts(model: ServedModel) -> ModelFacts | None:
    """What a model is; None if that cannot be found out. Slow the first time."""
    try:
        return model.source.facts()
    except (MlxrError, OSError):
        return None  # whoever uses the model is told why


def _record(model: ServedModel, facts: ModelFacts | None) -> dict[str, Any]:
    """The fields of an `OllamaModel`."""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": written(model.created),
        "size": 0 if facts is None else facts.size_bytes,
        "digest": "" if facts is None else facts.digest,
        "details": _details(facts),
    }


def _running(pool: ModelPool, model: ServedModel, loaded: LoadedModel, facts: ModelFacts | None) -> LoadedOllamaModel:
    keep = pool.keep_alive if model.keep_alive is None else model.keep_alive
    idle = 0.0 if model.users else time.monotonic() - model.last_used
    on_card = loaded.engine.model.host.name in _HOSTS_WITH_CARDS
    own = {"model": model.base or model.name, "size": model.planned_bytes}
    return LoadedOllamaModel(
        **_record(model, facts) | own,
        expires_at=NEVER if model.pinned or keep == FOREVER else written(time.time() + keep - idle),
        size_vram=model.planned_bytes if on_card else 0,
        context_length=loaded.context,
    )


def _details(facts: ModelFacts | None) -> OllamaDetails:
    count = 0 if facts is None else facts.num_parameters
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    return OllamaDetails(
        parent_model="",
        format="" if facts is None else facts.format,
        family="" if facts is None else facts.family,
        families=[] if facts is None else [facts.family],
        parameter_size="" if facts is None else size,
        quantization_level="" if facts is None else facts.quantization,
    )
