"""The routes of the inspector: what models have compiled to, and what their engines do now.

Only `load` loads a model, and only `unload` unloads one. The others answer 409 for one that is not loaded, so that
looking at models unloads none.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Query, Request

from mlxr.compiler.chips.catalog import find_chip, known_chips
from mlxr.compiler.errors import ArtifactError, PlanError
from mlxr.compiler.spec.record import Record
from mlxr.diff.model_diff import ModelDiff, model_diff
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.server.errors import ApiError
from mlxr.server.inspector.arena_view import ArenaView, arena_view
from mlxr.server.inspector.graph_view import GraphsView
from mlxr.server.inspector.history import HistoryView
from mlxr.server.inspector.kernel_view import KernelView
from mlxr.server.inspector.model_view import ModelView, model_view
from mlxr.server.inspector.op_view import OpView
from mlxr.server.inspector.watched import watched
from mlxr.server.sse import unless_gone
from mlxr.server.state import ServerState

router = APIRouter(prefix="/inspector", tags=["Inspector"])
_Chip = Annotated[str, Query(description="the chip that times are predicted for; empty: the artifact's own")]


class ServerView(Record):
    """What the server allows: whether it fetches models from the hub."""

    allow_pull: bool


class ChipView(Record):
    """A chip that times can be predicted for: its name, and its title for people."""

    name: str
    title: str


@router.get("/models")
async def models(request: Request) -> list[ModelView]:
    """All models, with how far their loading is; their forms that give embeddings while they are loaded."""
    state = ServerState.of(request)
    listed = state.pool.listed
    await state.facts.look(model for model in listed if model.base is None)
    return [model_view(model, state.facts.of(model)) for model in listed]


@router.get("/server")
async def server(request: Request) -> ServerView:
    """What the server allows."""
    return ServerView(allow_pull=ServerState.of(request).settings.allow_pull)


@router.post("/load")
async def load(model: str, request: Request) -> ModelView:
    """Loads a model, if it is not loaded, and answers when it is."""
    state = ServerState.of(request)
    pool = state.pool
    form = pool.find_form(model)

    async def loaded() -> ModelView:
        async with pool.use(form.base or model, embeds=form.base is not None):
            served = pool.find_form(model)
            return model_view(served, state.facts.of(served))

    return await unless_gone(request, loaded())


@router.post("/unload")
async def unload(model: str, request: Request) -> list[ModelView]:
    """Unloads a model in both of its forms, if nobody uses it; answers with all models.

    Raises:
        ApiError: it is pinned, or in use.
    """
    pool = ServerState.of(request).pool
    name = pool.find_form(model).base or model
    if pool.find(name).pinned:
        raise ApiError(409, f"{name} is pinned: this server never unloads it", code="pinned", param="model")
    if not await pool.unload(name):
        raise ApiError(409, f"{name} is in use: wait until its answers have ended", code="in_use", param="model")
    return await models(request)


@router.get("/chips")
async def chips() -> list[ChipView]:
    """The chips whose figures are known."""
    return [ChipView(name=name, title=chip.title) for name, chip in known_chips().items() if chip.figures is not None]


@router.get("/graphs")
async def graphs(model: str, request: Request) -> GraphsView:
    """The op graphs of a model before and after fusion, placed."""
    inspector = watched(_engine(request, model)).inspector()
    return await asyncio.to_thread(lambda: inspector.graphs)


@router.get("/op")
async def op(model: str, graph: str, name: str, request: Request, chip: _Chip = "") -> OpView:
    """An op with its launches."""
    engine = _engine(request, model)
    target = engine.model.host.target

    def view() -> OpView:
        counts = {} if target is None else {target: engine.launch_counts()}
        return inspector.op(graph, name, counts, watched(engine).timed)

    with _not_found():
        inspector = watched(engine).inspector(chip)
        return await asyncio.to_thread(view)


@router.post("/measure")
async def measure(model: str, request: Request) -> dict[str, float]:
    """Times each call of the C program of a model on host cpu, which takes seconds; `op` tells them from then on.

    The program is compiled with a clock for that, and runs apart. The answer has the microseconds of all calls of a
    step together, by phase.
    """
    _engine(request, model)
    state = ServerState.of(request)
    form = state.pool.find_form(model)

    async def measured() -> dict[str, float]:
        async with state.pool.use(form.base or model, embeds=form.base is not None) as loaded:  # so that it stays
            watched_ = watched(loaded.engine)
            await watched_.measure()
            return {phase: sum(timed.times_us) for phase, timed in watched_.timed.items()}

    return await unless_gone(request, measured())


@router.get("/kernel")
async def kernel(model: str, target: str, name: str, request: Request) -> KernelView:
    """A kernel with its source."""
    inspector = watched(_engine(request, model)).inspector()
    with _not_found():
        return await asyncio.to_thread(inspector.kernel, target, name)


@router.get("/arena")
async def arena(model: str, request: Request) -> ArenaView:
    """The blocks of a model's arena, and whose they are, now."""
    engine = _engine(request, model)
    return await asyncio.to_thread(arena_view, engine)


@router.get("/history")
async def history(model: str, request: Request, since: float = 0.0) -> HistoryView:
    """What a model's engine did, since it was loaded, or since a time in seconds since 1970."""
    return watched(_engine(request, model)).history.since(since)


@router.get("/diff")
async def diff(a: str, b: str, request: Request, chip: _Chip = "") -> ModelDiff:
    """What differs between what two models compiled to."""
    first, second = (watched(_engine(request, name)).artifact for name in (a, b))
    with _not_found():
        chosen = find_chip(chip) if chip else None
        return await asyncio.to_thread(lambda: model_diff(first, second, chosen, lines=True))


def _engine(request: Request, name: str) -> EngineThread:
    """The engine of a model.

    Raises:
        ApiError: there is no such model, or it is not loaded.
    """
    model = ServerState.of(request).pool.find_form(name)
    if model.loaded is None:
        raise ApiError(
            409,
            f"{name} is not loaded: load it first (POST /inspector/load?model=...)",
            code="not_loaded",
            param="model",
        )
    return model.loaded.engine


@contextmanager
def _not_found() -> Iterator[None]:
    """What an artifact or the catalog of chips does not have is answered with 404."""
    try:
        yield
    except (ArtifactError, PlanError) as error:
        raise ApiError(404, str(error), code="not_found") from error
