"""What the handlers of requests share: the models and the settings."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from mlxr.server.errors import ApiError
from mlxr.server.inspector.known_facts import KnownFacts
from mlxr.server.metrics.server_metrics import ServerMetrics
from mlxr.server.openai.kept_responses import KeptResponses
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.pulls import Pulls
from mlxr.server.recent_requests import RecentRequests
from mlxr.server.settings import ServerSettings


@dataclass(frozen=True)
class ServerState:
    """The server's own objects.

    Attributes:
        pool: the models.
        settings: limits and times.
        metrics: what /metrics tells.
        pulls: models that are being fetched.
        responses: those that are kept.
        facts: what models are, loaded or not.
        recent: the newest requests to models.
    """

    pool: ModelPool
    settings: ServerSettings
    metrics: ServerMetrics
    pulls: Pulls
    responses: KeptResponses
    facts: KnownFacts = field(default_factory=KnownFacts)
    recent: RecentRequests = field(default_factory=RecentRequests)

    @staticmethod
    def of(request: Request) -> "ServerState":
        """The state of the server that got a request."""
        return cast(ServerState, request.app.state.server)

    def use(self, name: str | None) -> AbstractAsyncContextManager[LoadedModel]:
        """A model, loaded, while it is used.

        Args:
            name: of the model; None: the only one that is served.

        Raises:
            ApiError: no name, and several models are served; or what `ModelPool.use` raises.
        """
        return self.pool.use(self.only_name() if name is None else name)

    def only_name(self) -> str:
        """The name of the only model that is served.

        Raises:
            ApiError: there are several.
        """
        if len(self.pool.models) != 1:
            names = ", ".join(model.name for model in self.pool.models)
            message = f"model is missing: it is required where there are several: {names}"
            raise ApiError(400, message, param="model", code="missing_field")
        return self.pool.models[0].name

    def alive(self, name: str) -> bytes:
        """What a stream says while it has nothing to say: how far the model is, if it is being loaded."""
        progress = self.pool.find(name).progress
        return f": loading {progress}\n\n".encode() if progress else b": alive\n\n"
