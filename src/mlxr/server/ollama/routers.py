"""All routes of Ollama's API."""

from mlxr.server.ollama import chat, generate, management, models

ROUTERS = (chat.router, generate.router, models.router, management.router)
