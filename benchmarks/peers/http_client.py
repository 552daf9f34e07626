"""A client of OpenAI's /v1/completions that takes next to no time: many streams in one loop, and no JSON is parsed."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from serving.arrivals import Answer, Arrival

_DATA = b"data: {"
_COMPLETED = re.compile(rb'"completion_tokens":\s*(\d+)')


async def answer_all(
    port: int, arrivals: Sequence[Arrival], model: str, more: dict[str, Any], prompts: Sequence[str] | None = None
) -> list[Answer]:
    """Sends requests when they are due, and takes the time of each chunk of their answers.

    Args:
        port: of a server on this machine.
        arrivals: the requests.
        model: what it calls the model.
        more: further fields of the requests' bodies.
        prompts: texts to send in place of the token ids.

    Raises:
        RuntimeError: a request failed.
    """
    start = time.perf_counter() + 0.01

    async def ask(number: int, arrival: Arrival) -> Answer:
        prompt = list(arrival.prompt) if prompts is None else prompts[number]
        body = {"model": model, "prompt": prompt, "max_tokens": arrival.tokens, "temperature": 0, "stream": True}
        body |= {"stream_options": {"include_usage": True}} | more
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        await asyncio.sleep(max(0.0, start + arrival.at - time.perf_counter()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        try:
            writer.write(head.encode() + data)
            told = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in told.split(b"\r\n", 1)[0]:
                raise RuntimeError(f"the server says {(told + await reader.read()).decode(errors='replace')[:500]}")
            return await _chunks(reader, start)
        finally:
            writer.close()

    return await asyncio.gather(*[ask(number, arrival) for number, arrival in enumerate(arrivals)])


async def _chunks(reader: asyncio.StreamReader, start: float) -> Answer:
    times: list[float] = []
    tail = b""
    while data := await reader.read(1 << 16):
        now = time.perf_counter() - start
        times += [now] * data.count(_DATA)
        tail = (tail + data)[-2000:]
    completed = _COMPLETED.findall(tail)
    if not completed:
        raise RuntimeError(f"the stream ended without its usage: {tail[-300:]!r}")
    del times[-1]  # the chunk with the usage
    return Answer(times, int(completed[-1]))
