"""OpenAI's API: chat, completions, models; and vLLM's further fields of these."""
