"""Streams an answer from a server, by OpenAI's own client. mlxr serve storyteller; python examples/openai_client.py."""

import os

import openai

client = openai.OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Who lives in the forest?"}]
options = {"stream_options": {"include_usage": True}, "max_tokens": 30, "stream": True, "seed": 1}
for chunk in client.chat.completions.create(model=model, messages=messages, **options):
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n[{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out]")
