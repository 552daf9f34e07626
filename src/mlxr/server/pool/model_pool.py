"""The models of a server: loaded once when they are asked for, unloaded when nobody asks or another needs the memory.

One event loop owns the pool. Nothing is loaded that does not fit by the plan's numbers; a model that is in use, or
pinned, is never unloaded.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from mlxr.compiler.artifact import size
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.compiler.spec.adapters import Adapters
from mlxr.loading.adapter_paths import AdapterPath
from mlxr.loading.planned_memory import PlannedMemory
from mlxr.runtime.memory.free_memory import MachineMemory
from mlxr.server.cache_owner import owner
from mlxr.server.errors import ApiError, without_folders
from mlxr.server.pool.chosen_adapter import name_adapter
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.pool.model_source import ModelSource
from mlxr.server.pool.served_model import Catalog, ServedModel
from mlxr.server.request_record import RECORD, note_warning

FOREVER = float("inf")
_LOOK_SECONDS = 0.5
_DRAIN_SECONDS = 0.02
_LOG = logging.getLogger("mlxr.server")


def free_bytes() -> int:
    """Memory of this machine that is free now."""
    return MachineMemory().read().free_bytes


class ModelPool:
    """Models by their names.

    Attributes:
        keep_alive: seconds after its last request at which a model is unloaded, unless the model has its own.
        on_load: is called with each model that has been loaded, in the event loop.
    """

    def __init__(
        self,
        sources: Iterable[ModelSource],
        *,
        memory_bytes: int | None = None,
        keep_alive: float = 300.0,
        load_seconds: float = 600.0,
        pinned: Iterable[str] = (),
        catalog: Catalog | None = None,
        free: Callable[[], int] = free_bytes,
    ) -> None:
        """Loads nothing yet.

        Args:
            sources: the models.
            memory_bytes: most bytes of all loaded models; None: what the machine has free.
            keep_alive: seconds after its last request at which a model is unloaded; `FOREVER`: never.
            load_seconds: how long a request waits for a model that is being loaded.
            pinned: names of models that are never unloaded once they are loaded, nor are their forms for embeddings.
            catalog: further models, which may change; None: there are none.
            free: tells the bytes of memory that are free.
        """
        self._pinned = frozenset(pinned)
        self._models = {source.name: ServedModel(source, source.name in self._pinned) for source in sources}
        self._memory_bytes, self.keep_alive, self._load_seconds = memory_bytes, keep_alive, load_seconds
        self._free, self._catalog = free, catalog
        self.on_load: Callable[[LoadedModel], object] = lambda loaded: None
        self._fixed = frozenset(self._models)
        self._embedders: dict[str, ServedModel] = {}
        self._retired: list[ServedModel] = []  # their names mean other models now; requests may still use them
        self._changing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._ending = self._closing = False

    @property
    def models(self) -> list[ServedModel]:
        """All models, loaded or not; not their forms that give embeddings."""
        self._look()
        return list(self._models.values())

    @property
    def fixed(self) -> list[ServedModel]:
        """The models that the server was started with; not those of the catalog."""
        return [self._models[name] for name in self._models if name in self._fixed]

    @property
    def forms(self) -> list[ServedModel]:
        """All models, their forms that give embeddings, and models whose names mean others now, while they are used.

        So a name may come twice: the first is what it means.
        """
        self._look()
        return self._all

    @property
    def listed(self) -> list[ServedModel]:
        """All models, loaded or not, and those of their forms that give embeddings that are not cold."""
        return [*self.models, *(form for form in self._embedders.values() if form.state != "cold")]

    def find_form(self, name: str) -> ServedModel:
        """A model, or its form that gives embeddings, by its name.

        Raises:
            ApiError: there is none.
        """
        form = next((form for form in self._embedders.values() if form.name == name), None)
        return self.find(name) if form is None else form

    @property
    def _all(self) -> list[ServedModel]:
        """All that may be loaded."""
        return [*self._models.values(), *self._embedders.values(), *self._retired]

    @property
    def is_closing(self) -> bool:
        """Whether the server is ending."""
        return self._ending or self._closing

    @property
    def num_users(self) -> int:
        """Requests that use a model now, or wait for one."""
        return sum(model.users for model in self._all)

    def end(self) -> None:
        """Refuses all new requests; those that are here already go on until `close`."""
        self._ending = True

    def start(self) -> None:
        """Begins to unload models that nobody uses."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Unloads all models; requests that wait for one get an error."""
        self._closing = True
        if self._watching is not None:
            self._watching.cancel()
        for model in self._all:
            if model.loading is not None:
                with suppress(Exception):
                    await asyncio.shield(model.loading)
        async with self._changing:
            for model in self._all:
                await self._unload(model)

    def find(self, name: str) -> ServedModel:
        """A model by its name.

        Raises:
            ApiError: there is none.
        """
        return self.resolve(name)[0]

    def resolve(self, name: str) -> tuple[ServedModel, str | None]:
        """A model, and the adapter that its name names: MODEL, MODEL:ADAPTER, or ADAPTER where no model is called so.

        Raises:
            ApiError: there is none.
        """
        if name not in self._fixed:
            self._look()
        if (model := self._models.get(name)) is not None:
            return model, None
        base, _, adapter = name.rpartition(":")
        if base in self._models and adapter in self._models[base].adapters:
            return self._models[base], adapter
        model = next((model for model in self._models.values() if name in model.adapters), None)
        if model is None:
            known = ", ".join(self._models) or "none"
            raise ApiError(
                404, f"there is no model {name!r} here; this server has: {known}", code="model_not_found", param="model"
            )
        return model, name

    def has_adapter(self, name: str, adapter: AdapterPath, places: Adapters) -> None:
        """A model has loaded an adapter, which it loads again whenever it is loaded itself."""
        model, _ = self.resolve(name)
        model.source = model.source.with_adapter(adapter, places)

    def lost_adapter(self, name: str, adapter: str) -> None:
        """A model has unloaded an adapter."""
        model, _ = self.resolve(name)
        model.source = model.source.without_adapter(adapter)
        model.source.adapter_scales.pop(adapter, None)

    def forget_adapter(self, name: str, adapter: str) -> bool:
        """Unloads an adapter of a model that is not loaded, which could not be loaded if the adapter's file is gone.

        Returns:
            Whether it did; False: the model is loaded, or has no such adapter.
        """
        model, _ = self.resolve(name)
        if model.state != "cold" or model.loading is not None or adapter not in model.adapters:
            return False
        self.lost_adapter(name, adapter)
        return True

    @asynccontextmanager
    async def use(
        self, name: str, keep_alive: float | None = None, *, embeds: bool = False, context: int | None = None
    ) -> AsyncGenerator[LoadedModel]:
        """A model for the time of a request; it is loaded first if need be.

        Args:
            name: the model's.
            keep_alive: seconds after this request at which it may be unloaded; None: as before.
            embeds: whether it is to give embeddings; else it generates. These are loaded apart from each other, but for
                encoders, which have one form.
            context: the longest sequence that the request counts on. A model that was loaded with less is loaded again,
                as soon as nobody uses it; if it or memory has no room for that, the answer warns of it.

        Raises:
            ApiError: there is no such model, it cannot be loaded, or not in time, or the server is ending.
        """
        if self._ending:
            raise _ending()
        model, adapter = self.resolve(name)
        if embeds and adapter is not None:
            raise ApiError(400, "embeddings use no adapter: name the model alone", code="adapter", param="model")
        name_adapter(adapter)
        name = model.name
        if (record := RECORD.get()) is not None:
            record.model, record.owner = model.name, owner()
        if embeds and not await asyncio.to_thread(model.source.is_encoder):
            if name not in self._embedders:
                self._embedders[name] = ServedModel(model.source.for_embeddings(), model.pinned, base=name)
            model = self._embedders[name]
        model.users += 1  # from now on nobody unloads it
        try:
            if keep_alive is not None:
                model.keep_alive = keep_alive
            if context is not None:
                context = await self._possible(model, context)
            begun = time.perf_counter()
            loaded = await self._loaded(model, context)
            if record is not None:
                record.loading += time.perf_counter() - begun
            model.answering += 1
            try:
                yield loaded
            finally:
                model.answering -= 1
        finally:
            model.users -= 1
            model.last_used = time.monotonic()

    async def unload(self, name: str) -> bool:
        """Unloads a model that nobody uses, in both forms; returns whether it is unloaded now."""
        forms = [model for model in (self.find(name), self._embedders.get(name)) if model is not None]
        async with self._changing:
            for model in forms:
                if model.users == 0:
                    await self._unload(model)
        return all(model.state == "cold" for model in forms)

    def admit(self, name: str) -> None:
        """Serves a model that the catalog has just got."""
        if self._catalog is not None:
            self._catalog.admit(name)
            self._look()

    def _look(self) -> None:
        """Takes models that the catalog has got, and drops those that it has lost and that nobody has loaded.

        Of a name that means another model now, the model before answers the requests that it has got, and no others.
        """
        if self._catalog is None:
            return
        versions = self._catalog.versions()
        for name, version in versions.items():
            if name in self._fixed or (name in self._models and self._models[name].version == version):
                continue
            forms = (self._models.pop(name, None), self._embedders.pop(name, None))
            self._retired += [form for form in forms if form is not None]
            self._models[name] = ServedModel(self._catalog.source(name), name in self._pinned, version=version)
        for name in self._models.keys() - self._fixed - versions.keys():
            if _is_unused(self._models[name]):
                del self._models[name]
            else:
                self._models[name].pinned = False  # so that it goes in time
        self._retired = [model for model in self._retired if not _is_unused(model)]
        for model in self._retired:
            model.pinned = False

    async def _possible(self, model: ServedModel, context: int) -> int | None:
        """As much of a context as a model can have; None, if that is not known: whoever loads it is told why."""
        try:
            longest = await asyncio.to_thread(model.source.longest_context)
        except (MlxrError, OSError):
            return None
        if context > longest:
            note_warning(f"a context of {context:,} was asked for, and {model.name} has at most {longest:,}")
        return min(context, longest)

    async def _loaded(self, model: ServedModel, context: int | None = None) -> LoadedModel:
        is_longer = False
        while True:
            if self._closing:
                raise _ending()
            if model.loading is None and model.state == "loaded" and model.loaded is not None:
                if (reason := model.loaded.engine.health()) is not None:
                    await self._replace(model, model.loaded, reason)
                    continue
                if context is None or context <= model.loaded.context:
                    if is_longer:
                        note_warning(f"{model.name} was loaded again, with a context of {model.loaded.context:,}")
                    return model.loaded
                if model.lacking is not None and context >= model.lacking:
                    note_warning(
                        f"a context of {context:,} was asked for, and memory has no room for it: {model.name} has "
                        f"{model.loaded.context:,}"
                    )
                    return model.loaded
                is_longer = True
                model.loading = asyncio.create_task(self._load_longer(model, context))
                model.loading.add_done_callback(_noticed)
            if model.loading is None:
                model.loading = asyncio.create_task(self._load(model, context))
                model.loading.add_done_callback(_noticed)
            try:
                await asyncio.wait_for(asyncio.shield(model.loading), self._load_seconds)
            except TimeoutError:
                raise ApiError(
                    503,
                    f"{model.name} is still being loaded after {self._load_seconds:g} s ({model.progress}): try again",
                    "server_error",
                    "model_loading",
                    headers={"Retry-After": "5"},
                ) from None
            except MlxrError as error:
                raise ApiError(
                    500, f"{model.name} cannot be loaded: {without_folders(error)}", "server_error", "model_failed"
                ) from error

    async def _load(self, model: ServedModel, context: int | None) -> None:
        try:
            async with self._changing:
                source = model.source
                if context is not None and (source.set_context or context) < context:
                    source = source.with_context(context)
                try:
                    await self._fill(model, source)
                except ApiError:
                    if source is model.source:
                        raise
                    model.lacking = context
                    await self._fill(model, model.source)
        finally:
            model.loading = None
            if model.loaded is None:
                model.state, model.progress = "cold", ""

    async def _load_longer(self, model: ServedModel, context: int) -> None:
        """Loads a model again, with a longer context, if there is room; whoever comes meanwhile waits for that."""
        source, keep_alive = model.source.with_context(context), model.keep_alive
        try:
            model.progress = "waiting for answers to end"
            while model.answering and not self._closing:
                await asyncio.sleep(_DRAIN_SECONDS)
            async with self._changing:
                if self._closing or model.loaded is None:
                    return
                memory = await asyncio.to_thread(source.planned_memory)
                idle = sum(other.planned_bytes for other in self._all if other.is_idle)
                if self._room() + model.planned_bytes + idle < memory.least:
                    model.lacking = context
                    return
                await self._unload(model)
                model.keep_alive = keep_alive
                await self._fill(model, source)
        finally:
            model.loading, model.progress = None, ""
            if model.loaded is None:
                model.state = "cold"

    async def _fill(self, model: ServedModel, source: ModelSource) -> None:
        """Loads a cold model from a source of it."""
        model.state, model.progress = "loading", "making a plan"
        memory = await asyncio.to_thread(source.planned_memory)
        model.planned_bytes = await self._make_room(model, memory)

        def tell(what: str, done: int, total: int) -> None:
            model.progress = f"{what} {100 * done // max(1, total)} %"

        most_bytes = model.planned_bytes if model.planned_bytes < memory.full else None
        model.loaded = await asyncio.to_thread(source.load, tell, most_bytes)
        model.state, model.progress = "loaded", ""
        source.meter.loads += 1
        model.last_used = time.monotonic()
        self.on_load(model.loaded)

    async def _make_room(self, wanted: ServedModel, memory: PlannedMemory) -> int:
        """Unloads models that nobody uses, the least recently used first, until there is room; returns for how much."""
        while (room := self._room()) < memory.full:
            idle = [model for model in self._all if model.is_idle]
            if room + sum(model.planned_bytes for model in idle) < memory.least:
                raise self._no_room(wanted, memory.least, room)  # and none has gone in vain
            if not idle or room >= memory.good:
                return room  # its arena will be smaller
            await self._unload(min(idle, key=lambda model: model.last_used))
        return memory.full

    def _room(self) -> int:
        free = self._free() - sum(model.loaded.unused() for model in self._all if model.loaded is not None)
        if self._memory_bytes is None:
            return free
        used = sum(model.planned_bytes for model in self._all if model.state == "loaded")
        return min(self._memory_bytes - used, free)

    def _no_room(self, wanted: ServedModel, needed: int, room: int) -> ApiError:
        """Says which models would have to go; where even that is not enough, that clients need not try again."""
        loaded = [model for model in self._all if model.state == "loaded"]
        kept = [model for model in loaded if not model.is_idle]
        takes = f"{wanted.name} takes {size(needed)} of memory"
        limit = "" if self._memory_bytes is None else f" of {size(self._memory_bytes)} for models"
        free = room + sum(model.planned_bytes for model in loaded)
        remedy = "a smaller --context" if self._memory_bytes is None else "more --memory or a smaller --context"
        if free < needed:
            free_then = f"{size(max(0, free))}{limit} would be free if all others were unloaded"
            message = f"{takes}, and {free_then}; start the server with {remedy}"
            return ApiError(503, message, "server_error", "no_memory")
        free -= sum(model.planned_bytes for model in kept)
        names = ", ".join(
            f"{model.name} ({size(model.planned_bytes)}, {'pinned' if model.pinned else 'in use'})" for model in kept
        )
        return ApiError(
            503,
            f"{takes}, and {size(max(0, free))}{limit} can be made free; the models that would have to go are in use "
            f"or pinned: {names}. Try again later, or start the server with {remedy}",
            "server_error",
            "no_memory",
            headers={"Retry-After": "10"},
        )

    async def _replace(self, model: ServedModel, dead: LoadedModel, reason: str) -> None:
        """Drops a model whose engine has ended, so that it is loaded again."""
        async with self._changing:
            if model.loaded is dead:
                model.progress = without_folders(reason)
                await self._unload(model)

    async def _unload(self, model: ServedModel) -> None:
        if model.loaded is None:
            return
        model.state, loaded = "unloading", model.loaded
        model.loaded = None
        try:
            await asyncio.to_thread(_close, loaded)
        finally:
            model.state, model.keep_alive, model.lacking = "cold", None, None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            for model in self._all:
                keep = self.keep_alive if model.keep_alive is None else model.keep_alive
                if model in self._retired:
                    keep = 0.0
                if model.is_idle and now - model.last_used >= keep:
                    async with self._changing:
                        if model.is_idle:
                            try:
                                await self._unload(model)
                            except Exception as error:  # it must not end what unloads the others
                                _LOG.error("%s was unloaded, with an error: %s", model.name, error, exc_info=error)


def _is_unused(model: ServedModel) -> bool:
    return model.state == "cold" and model.loading is None and not model.users


def _noticed(load: "asyncio.Task[None]") -> None:
    """Takes the error of a load for which nobody waits any more."""
    if not load.cancelled():
        load.exception()


def _ending() -> ApiError:
    return ApiError(503, "the server is ending", "server_error", "shutting_down", headers={"Retry-After": "5"})


def _close(loaded: LoadedModel) -> None:
    loaded.engine.close()
    if loaded.chat_format is not None:
        with suppress(HostError, OSError):
            loaded.chat_format.close()
