"""How long a large request keeps a server from answering others: python benchmarks/server_stalls.py URL MODEL.

Of a server that runs, and may take bodies of 16 MB (--max-body 16MB). A thread asks /health in a loop while another
client sends each request; the longest wait is printed, beside that of a time without one. A machine that does something
else makes all waits longer.
"""

import sys
import threading
import time
from typing import Any

import httpx

_TEXT = "the fox said to the hen, 'come out and play'. "


def requests() -> dict[str, tuple[str, dict[str, Any]]]:
    """The requests by what is large in them: path and body."""
    hi = {"role": "user", "content": "hi"}
    schema = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(3000)}}
    form = {"type": "json_schema", "json_schema": {"name": "large", "schema": schema}}
    return {
        "nothing": ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        "a text of 4 MB": ("/tokenize", {"prompt": _TEXT * 85_000}),
        "a text of 8 MB": ("/tokenize", {"prompt": _TEXT * 170_000}),
        "1,000,000 token ids": ("/detokenize", {"tokens": [1] * 1_000_000}),
        "2,700,000 token ids": ("/detokenize", {"tokens": [1] * 2_700_000}),
        "100,000 messages": ("/v1/chat/completions", {"messages": [hi] * 100_000}),
        "16,000 messages": ("/v1/chat/completions", {"messages": [hi] * 16_000}),
        "a schema of 3,000 properties": ("/v1/chat/completions", {"messages": [hi], "response_format": form}),
    }


def longest_wait(url: str, path: str, body: dict[str, Any]) -> tuple[float, float, int]:
    """Seconds of the longest wait for /health while a request is answered, of that request, and its status."""
    waits: list[float] = []
    has_ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=120) as other:
            while not has_ended.is_set():
                begin = time.perf_counter()
                other.get("/health").raise_for_status()
                waits.append(time.perf_counter() - begin)
                time.sleep(0.002)

    asking = threading.Thread(target=ask)
    asking.start()
    while not waits and asking.is_alive():
        time.sleep(0.01)
    waits.clear()
    time.sleep(0.2)
    begin = time.perf_counter()
    status = httpx.post(url + path, json=body, timeout=120).status_code
    seconds = time.perf_counter() - begin
    has_ended.set()
    asking.join()
    return max(waits, default=seconds), seconds, status


def main(url: str, model: str) -> None:
    """Prints a line for each request."""
    for name, (path, body) in requests().items():
        wait, seconds, status = longest_wait(url, path, body | {"model": model})
        print(f"{name:<30} {status}  {seconds:6.2f} s  longest wait of others {1000 * wait:6.0f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
