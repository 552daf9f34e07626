"""Records what llama.cpp answers for the real models: python tests/real/record.py LLAMA_CPP, its folder of programs.

The weights are turned into f32 first (llama-quantize), so that llama.cpp rounds no activation: what is recorded is the
model, not a way to compute it. For each prompt: its token ids, the greedy tokens that follow, and for each of these how
much more probable it was than the second one, in nats. For the text: llama-perplexity's value for windows of 512.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from mlxr_tests.real_files import GEMMA3, SMOLLM2, RealFiles, real_file
from mlxr_tests.serve_process import wait_for
from mlxr_tests.storyteller import VALID

DATA = Path(__file__).parent / "data"
TEXT_BYTES = 20_000
TOKENS = 48
PROMPTS: dict[RealFiles, list[str]] = {
    SMOLLM2: [
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nAnswer in one sentence.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "def fibonacci(n):\n    if n < 2:\n        return n\n",
        "The three largest cities in Germany are",
        "Zwei Äpfel kosten 1,50 €. Drei Äpfel kosten",
    ],
    GEMMA3: [
        "The three largest cities in Germany are",
        "def fibonacci(n):\n    if n < 2:\n        return n\n",
        "Once upon a time, in a small house at the edge of the forest,",
        "La capitale de la France est",
        "Water boils at 100 degrees Celsius. In Fahrenheit that is",
    ],
}
"""Prompts in which special tokens stand for themselves."""


@contextmanager
def _server(programs: Path, model: Path) -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [programs / "llama-server", "-m", model, "-c", "2048", "-np", "1", "-t", "1", "--port", str(port)]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            wait_for(lambda: _is_ready(client))
            yield client
    finally:
        process.kill()
        process.wait()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


def _answer(client: httpx.Client, prompt: str) -> dict[str, Any]:
    ids = client.post("/tokenize", json={"content": prompt, "add_special": True, "parse_special": True}).json()[
        "tokens"
    ]
    fields = {
        "prompt": ids,
        "n_predict": TOKENS,
        "n_probs": 2,
        "return_tokens": True,
        "samplers": ["top_k"],
        "top_k": 1,
    }
    answer = client.post("/completion", json=fields).json()
    rows = [row["top_logprobs"] for row in answer["completion_probabilities"]]
    assert answer["tokens"] == [row[0]["id"] for row in rows], "there is no row for half a character: change the prompt"
    margins = [round(first["logprob"] - second["logprob"], 3) for first, second in rows]
    return {"prompt": prompt, "ids": ids, "tokens": answer["tokens"], "margins": margins}


def _perplexity(programs: Path, model: Path, text: Path) -> float:
    command = [programs / "llama-perplexity", "-m", model, "-f", text, "-c", "512", "-t", "1"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    assert found, done.stderr[-2000:]
    return float(found[1])


def record(programs: Path, file: RealFiles) -> dict[str, Any]:
    """What llama.cpp says of a model."""
    with tempfile.TemporaryDirectory() as folder:
        exact, text = Path(folder) / "f32.gguf", Path(folder) / "text.txt"
        quantize = [programs / "llama-quantize", "--allow-requantize", real_file(file, ".gguf"), exact, "f32"]
        subprocess.run(list(map(str, quantize)), check=True, capture_output=True)
        text.write_bytes(VALID.read_bytes()[:TEXT_BYTES])
        with _server(programs, exact) as client:
            answers = [_answer(client, prompt) for prompt in PROMPTS[file]]
        return {"answers": answers, "perplexity": _perplexity(programs, exact, text)}


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for real in PROMPTS:
        written = json.dumps(record(Path(sys.argv[1]), real), indent=1, ensure_ascii=False)
        lists = re.compile(r"\[\s+([^\[\]{}\"]*?)\s+\]")
        (DATA / f"{real.name}.json").write_text(lists.sub(lambda m: f"[{' '.join(m[1].split())}]", written) + "\n")
