"""All routes of Ollama's API."""

from fastapi import APIRouter

from mlxr.server.ollama import chat, generate, management, models

router = APIRouter()
for _part in (chat, generate, models, management):
    router.include_router(_part.router)
