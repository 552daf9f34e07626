"""Ollama's API: chat, generate, and what there is to know of models."""
