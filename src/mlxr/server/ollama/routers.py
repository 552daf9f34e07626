"""All routes of Ollama's API."""

from mlxr.server.ollama import chat, embed, generate, management, models, pull

ROUTERS = (chat.router, generate.router, embed.router, models.router, management.router, pull.router)
