"""Ollama's API: chat, generate, embeddings, and what there is to know of models."""
