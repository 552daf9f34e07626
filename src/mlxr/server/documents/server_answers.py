"""Answers of the server's own paths."""

from typing import Literal

from mlxr.server.documents.answers import Told


class ModelState(Told):
    """A model and whether it is loaded."""

    name: str
    state: Literal["cold", "loading", "loaded", "unloading"]
    progress: str
    requests: int
    context: int | None
    memory: str | None
    bytes: int
    pinned: bool


class Status(Told):
    """Of /status."""

    version: str
    state: Literal["serving", "ending"]
    models: list[ModelState]


class Health(Told):
    """Of /health and /ready."""

    status: str


class Version(Told):
    """Of /version."""

    version: str


class ServerInfo(Version):
    """Of /server_info. The name of the model is there if there is only one."""

    served_model_name: str | None = None


class ListedAdapter(Told):
    """An adapter of /lora-adapters; its scale is that for requests that say nothing of adapters."""

    id: int
    name: str
    path: str
    scale: float
    rank: int
