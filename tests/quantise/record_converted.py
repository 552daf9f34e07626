"""Records llama.cpp's logits for folders that MLXR converted to GGUF: python tests/quantise/record_converted.py SERVER.

SERVER is its program llama-server. Recorded are the most probable tokens after a prompt, and their probabilities at a
temperature of 4, which spreads them.
"""

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from mlxr_tests.converted_models import CASES, PROMPT, RECORDED, TOP, convert, make_folder
from mlxr_tests.serve_process import wait_for


def served(program: str, path: Path) -> list[tuple[int, float]]:
    """What llama-server says of a file."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = f"-c 256 -t 1 -ctk f32 -ctv f32 -fa off --swa-full --no-warmup -np 1 --host 127.0.0.1 --port {port}"
    command = [program, "-m", str(path), *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = {"prompt": PROMPT, "n_predict": 1, "n_probs": TOP, "temperature": 4.0, "samplers": ["temperature"]}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(lambda: process.poll() is not None or _is_ready(client))
            answer: dict[str, Any] = {}
            seed = 0
            while "completion_probabilities" not in answer:  # the token that it chose was one that ends answers
                seed += 1
                answer = client.post("/completion", json=body | {"post_sampling_probs": True, "seed": seed}).json()
        return [(told["id"], told["prob"]) for told in answer["completion_probabilities"][0]["top_probs"]]
    finally:
        process.kill()
        process.wait()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    recorded = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as temporary:
            path = convert(make_folder(case, Path(temporary) / "in"), Path(temporary) / "out.gguf")
            recorded[case] = [[token, round(share, 9)] for token, share in served(sys.argv[1], path)]
    lines = [f"{json.dumps(case)}: {json.dumps(told)}" for case, told in recorded.items()]
    RECORDED.write_text("{\n " + ",\n ".join(lines) + "\n}\n")
