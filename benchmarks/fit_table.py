"""Writes the table of docs/models.md, of what models take on machines that nobody has here: mlxr fit, on paper.

    PYTHONPATH=src:tests/support python benchmarks/fit_table.py

The configs are those of tests/data/published_configs.json, with weights of 4 bits in groups of 64, as mlx-lm has them.
"""

from collections.abc import Iterator
from pathlib import Path

from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.text import size
from mlxr.fit.fit import Fit, fit
from mlxr.fit.machine import Machine, machine_with
from mlxr.loading.options import NO_OPTIONS
from mlxr_tests.published_configs import config_of, spec_of

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
_BEGIN, _END = "<!-- python benchmarks/fit_table.py writes this table -->\n", "<!-- end of the table -->\n"
MODELS = (
    *("Qwen3-0.6B", "Llama-3.2-3B-Instruct", "Qwen3-4B", "Mistral-7B-Instruct-v0.3", "Llama-3.1-8B-Instruct"),
    *("gemma-2-9b-it", "phi-4", "DeepSeek-V2-Lite", "Qwen3-30B-A3B", "Qwen3-32B", "Llama-3.3-70B-Instruct"),
    "Qwen3-Coder-Next",
)
_WEIGHTS = "affine4_g64_bf16"


def machines() -> tuple[Machine, ...]:
    """The machines of the table."""
    return machine_with("m1"), machine_with("m4-max", 64 << 30), machine_with("rtx-4090")


def fit_page() -> str:
    """The text of the page, with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return before + _BEGIN + "\n".join(_lines()) + "\n" + _END + rest.partition(_END)[2]


def four_bits(name: str) -> ModelSpec:
    """The spec of a published model, in 4 bits."""
    data = spec_of(config_of(name)).model_dump(mode="json") | {"name": name, "weights": {"default": _WEIGHTS}}
    return parse_spec(dump_spec(ModelSpec.model_validate(data)))


def _lines() -> Iterator[str]:
    columns = machines()
    yield f"| model, in 4 bits | memory | {' | '.join(machine.title for machine in columns)} |"
    yield f"|---|---|{'---|' * len(columns)}"
    for name in MODELS:
        spec = four_bits(name)
        told = [fit(spec, machine, NO_OPTIONS) for machine in columns]
        yield f"| {name} | {size(told[0].planned_bytes)} | {' | '.join(map(_cell, told))} |"


def _cell(told: Fit) -> str:
    if told.speed is None:
        return "does not fit"
    return f"{told.longest_context:,}; {told.sequences}; {told.speed.decode_tokens_per_second:.0f}"


if __name__ == "__main__":
    PAGE.write_text(fit_page(), encoding="utf-8")
