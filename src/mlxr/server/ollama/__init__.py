"""Ollama's API: chat, generate, embeddings, and what there is to know of models."""

from mlxr.server.ollama import chat, embed, generate, management, models, pull

OLLAMA_ROUTERS = (chat.router, generate.router, embed.router, models.router, management.router, pull.router)
"""All routes."""
