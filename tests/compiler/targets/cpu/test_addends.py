"""What a rank adds to a sum stays where it is until the other ranks of its stage have read it; see links.h.

They have when they have come to the next sum, or have ended the step.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.artifact.launch import Launch
from mlxr.compiler.artifact.program import Phase
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.parallel import Parallel
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few

SPLITS: dict[str, dict[str, Any]] = {
    "tensor 2": {"tensor": 2},
    "tensor 3": {"tensor": 3},
    "2 x 2": {"tensor": 2, "pipeline": 2},
}
OUTPUTS = ("logits", "hidden")


def compiled(name: str, parallel: dict[str, Any], output: str) -> Artifact:
    spec = family_spec(name, model__tensor_names="canonical", output=output)
    return compile_spec(spec.model_copy(update={"parallel": Parallel(**parallel)}), targets=["cpu"]).artifact


def spoiled_addends(phase: Phase, sums: set[str], rows: int) -> Iterator[tuple[str, str]]:
    """Each op that writes over an addend that others may be reading, with the addend; rows: that the batch wants."""
    places = {
        buffer.name: range(buffer.offset_bytes, buffer.offset_bytes + buffer.size_bytes) for buffer in phase.buffers
    }
    addend = ""
    for launch in phase.launches:
        if not _may_run(launch, rows):
            continue
        if addend:
            for out in launch.outputs:
                if out in places and _overlap(places[out], places[addend]):
                    yield launch.op, addend
        if launch.op in sums:
            addend = launch.inputs[0]
            assert not _overlap(places[launch.outputs[0]], places[addend])


def _may_run(launch: Launch, rows: int) -> bool:
    parts = launch.when.parts if launch.when is not None else ()
    return all(part.holds({"rows": rows}) for part in parts if part.dim == "rows")


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


SHORT = [("plain", "tensor 2", "logits"), ("olmo-like", "tensor 2", "hidden"), ("gpt-oss-like", "2 x 2", "hidden")]


@pytest.mark.parametrize(("name", "split", "output"), few(itertools.product(ALL_SPECS, SPLITS, OUTPUTS), SHORT))
def test_nothing_overwrites_an_addend_that_others_may_read(name: str, split: str, output: str) -> None:
    if name == "layer-vectors" and "pipeline" in SPLITS[split]:
        return  # stages do not send each other two values
    try:
        artifact = compiled(name, SPLITS[split], output)
    except PlanError as error:
        assert split == "tensor 3" and "recurrent.o of" in str(error) and "cannot be divided among 3" in str(error)
        return
    checked = 0
    for rank in range(4 if split == "2 x 2" else SPLITS[split]["tensor"]):
        own = artifact.of_rank(rank)
        (program,) = own.plan.programs.values()
        for phase in program.phases:
            sums = {op.name for op in own.graph("source").ops if op.kind == "all_sum"}
            checked += len(sums)
            for rows in (0, 1):
                assert not list(spoiled_addends(phase, sums, rows))
    assert checked
