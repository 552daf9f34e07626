"""A third target needs one folder and one line in the registry: the toy target, whose programs are NumPy."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact, load_artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.check import check_plan
from mlxr.compiler.targets.registry import TARGETS
from mlxr.inspect.report import report
from mlxr.inspect.text_table import Ink
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.specs import floats, random_weights, small_spec
from mlxr_tests.tolerances import check_logits
from mlxr_tests.toy_target.target import ToyTarget

ONE_SEQUENCE = {"cache__max_sequences": 1}
PROMPT = [5, 60, 7, 8, 1, 0, 33]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "toy", ToyTarget())


class ToyHost:
    """Runs the programs of the toy target, for one sequence."""

    def __init__(self, artifact: Artifact, weights: dict[str, Any]) -> None:
        self.program = artifact.plan.program("toy")
        self.functions = {}
        for kernel in self.program.kernels:
            scope: dict[str, Any] = {}
            exec(artifact.kernel_text(kernel.name, "toy"), scope)
            self.functions[kernel.name] = scope[kernel.name]
        self.weights = {name: floats(weight) for name, weight in weights.items()}
        arena = self.program.arena
        cache = arena.cache_of(0)
        self.k, self.v = np.zeros((2, arena.num_layers, arena.context, cache.num_kv_heads, cache.head_dim), np.float32)
        self.length = 0

    def step(self, tokens: list[int]) -> np.ndarray:
        positions = np.arange(self.length, self.length + len(tokens))
        self.length += len(tokens)
        batch = SimpleNamespace(token_ids=tokens, positions=positions, rows=[-1], k=self.k, v=self.v)
        phase = self.program.phase("decode" if len(tokens) == 1 else "prefill")
        buffers = dict(self.weights)
        for launch in phase.launches:
            inputs = (buffers[name] for name in launch.inputs)
            outputs = self.functions[launch.kernel](batch, launch.layer, *inputs)
            buffers |= dict(zip(launch.outputs, outputs, strict=True))
        return buffers[phase.outputs[0]]


def test_its_program_gives_the_logits_of_the_reference(tmp_path: Path) -> None:
    compile_spec(small_spec(**ONE_SEQUENCE), targets=("toy",)).artifact.write(tmp_path / "artifact")
    artifact = load_artifact(tmp_path / "artifact")
    assert artifact.plan.targets == ("toy",)
    weights = random_weights(artifact.plan)
    toy, reference = ToyHost(artifact, weights), ReferenceHost(artifact, weights, Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    sequence = pager.add_sequence()
    for tokens in (PROMPT, [3], [44], [2, 9]):
        request = BatchRequest(sequence, tokens, pager.length(sequence), "last")
        want = floats(reference.step(Batch.build([request], pager, artifact.plan.query_tile)))
        check_logits(f"{len(tokens)} tokens", toy.step(tokens), want, "f32")


def test_it_stands_beside_the_other_targets() -> None:
    artifact = compile_spec(small_spec(**ONE_SEQUENCE)).artifact
    plan = artifact.plan
    assert plan.targets == ("metal", "cpu", "toy")
    check_plan(plan)
    toy = plan.programs["toy"]
    assert [phase.name for phase in toy.phases] == ["decode", "prefill"] and toy.library is None
    assert set(toy.files) == {path for path in artifact.files if path.startswith("toy/")}
    assert [launch.layer for launch in toy.phase("decode").launches if launch.op.endswith("attended")] == [0, 0, 1, 1]
    sizes = {buffer.name: buffer.size_bytes for buffer in toy.phase("prefill").buffers}
    assert sizes["logits"] == 4 * plan.max_rows * plan.vocab_size, "logits have a place like any other buffer"
    text = report(artifact, 120, Ink(False), target="toy")
    assert all(kernel.name in text for kernel in toy.kernels)
    without = compile_spec(small_spec(**ONE_SEQUENCE), targets=("metal", "cpu")).artifact
    assert all(artifact.files[path] == without.files[path] for path in without.files if path != "plan.json")


def test_what_it_has_no_kernel_for_is_refused() -> None:
    changes = {"model__norm": {"kind": "rms", "placement": "post"}, "model__tensor_names": "canonical"}
    with pytest.raises(PlanError, match=r"\(norm\) has no kernel in phase prefill; was it not fused\?"):
        compile_spec(small_spec(**changes), targets=("toy",))


def test_targets_whose_kernels_fix_different_tiles_of_queries_cannot_share_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower = ToyTarget.lower
    monkeypatch.setattr(ToyTarget, "lower", lambda *args: replace(lower(*args), query_tile=3))
    assert compile_spec(small_spec(**ONE_SEQUENCE), targets=("toy",)).artifact.plan.query_tile == 3
    with pytest.raises(PlanError, match=r"tiles of queries: \d+ for metal, 3 for toy; compile each of them alone"):
        compile_spec(small_spec(**ONE_SEQUENCE))
