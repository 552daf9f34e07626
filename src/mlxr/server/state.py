"""What the handlers of requests share: the models and the settings."""

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from mlxr.server.inspector.known_facts import KnownFacts
from mlxr.server.metrics.server_metrics import ServerMetrics
from mlxr.server.openai.kept_responses import KeptResponses
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.pulls import Pulls
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
    """

    pool: ModelPool
    settings: ServerSettings
    metrics: ServerMetrics
    pulls: Pulls
    responses: KeptResponses
    facts: KnownFacts = field(default_factory=KnownFacts)

    @staticmethod
    def of(request: Request) -> "ServerState":
        """The state of the server that got a request."""
        return cast(ServerState, request.app.state.server)

    def alive(self, name: str) -> bytes:
        """What a stream says while it has nothing to say: how far the model is, if it is being loaded."""
        progress = self.pool.find(name).progress
        return f": loading {progress}\n\n".encode() if progress else b": alive\n\n"
