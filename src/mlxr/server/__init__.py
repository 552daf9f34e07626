"""The server: models as a service behind the APIs of OpenAI, Anthropic and Ollama."""
