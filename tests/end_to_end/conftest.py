"""The bundled model, compiled and loaded once, and what was recorded of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr_tests.storyteller import BF16, GOLDEN, Q8_0, TOKENIZER, storyteller_spec

WEIGHTS = {"bf16": BF16, "q8_0": Q8_0}


@pytest.fixture(autouse=True)
def _compiled_as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the hosts' own flags; other short tests optimise less."""
    for variable in ("MLXR_CPU_CFLAGS", "MLXR_SIM_CFLAGS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Three prompts with the tokens that fp32 arithmetic gives."""
    recorded: list[dict[str, Any]] = json.loads((GOLDEN / "storyteller-golden.json").read_text())
    assert len(recorded) == 3
    return recorded


@pytest.fixture(scope="session")
def storyteller() -> Callable[[str, str], mlxr.Model]:
    """A loaded storyteller, of three sequences at once, for a host and a kind of weights; each made once.

    `cpu-vnni`, say, is host cpu held to that instruction set.
    """
    artifact = compile_spec(storyteller_spec(cache={"max_sequences": 3}, compute="exact")).artifact
    loaded: dict[tuple[str, str], mlxr.Model] = {}

    def load(host: str, weights: str) -> mlxr.Model:
        if (host, weights) not in loaded:
            name, _, isa = host.partition("-")
            with pytest.MonkeyPatch.context() as environment:
                if isa:
                    environment.setenv("MLXR_CPU_ARCH", isa)
                loaded[host, weights] = mlxr.load(artifact, WEIGHTS[weights], host=name, tokenizer=TOKENIZER)
        return loaded[host, weights]

    return load
