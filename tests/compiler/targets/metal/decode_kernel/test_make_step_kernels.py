"""What the artifact says of its step kernels: which steps, in which files, and which steps cannot be one kernel."""

import json
from pathlib import Path

import pytest

from mlxr.compiler.artifact import INCLUDE, LAYERS, PEERS, Artifact, decode_dims, load_artifact
from mlxr.compiler.artifact.step_kernel_entry import SCRATCH
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import make_step_program
from mlxr_tests.specs import compiled, small_spec

CACHE = {"mode": "paged", "block_size": 4, "max_sequences": 5}
SIZES = {"partition": 16, "attend_many": 3, "step_threads": 512, "step_blocks": 2}


def step_files(artifact: Artifact) -> list[str]:
    return [name for name in artifact.files if name.startswith("steps/")]


def test_a_step_has_the_addresses_of_weights_that_the_cpu_does_not_write() -> None:
    spec = small_spec(cache=CACHE, adapters={"rank": 8, "slots": 2})
    artifact = compiled(spec, Geometry.of(**SIZES))
    (entry,) = artifact.plan.first.step_kernels
    of_adapters = {weight.name for weight in artifact.plan.weights if weight.is_of_adapters}
    assert {*entry.weights} == {weight.name for weight in artifact.plan.weights} - of_adapters
    assert of_adapters and of_adapters <= {*entry.inputs}
    assert ", ".join(entry.weights) in artifact.files[entry.file], "the text names them"


@pytest.mark.parametrize("sequences", [1, 4, 20])
def test_steps_of_as_many_sequences_as_wanted_are_kernels_with_a_file_each(sequences: int) -> None:
    artifact = compiled(small_spec(cache=CACHE), Geometry.of(**SIZES, step_sequences=sequences))
    plan = artifact.plan
    counts = [count for entry in plan.first.step_kernels for count in entry.counts]
    assert counts == list(range(1, min(sequences, 5) + 1)) and not plan.first.steps_as_launches
    assert len(plan.first.step_kernels) == (1 if sequences == 1 else 3), "1, 2 and more sequences take other kernels"
    assert [entry.file for entry in plan.first.step_kernels] == step_files(artifact)
    logits, token = plan.first.phase("decode").outputs
    for entry in plan.first.step_kernels:
        text = artifact.files[entry.file]
        assert text.count(INCLUDE) == 1 and "half8" not in text, "the host puts the prelude there"
        assert f"__launch_bounds__(512, 2) {entry.name}(" in text and (entry.threads, entry.blocks) == (512, 2)
        assert entry.outputs == (logits, token, SCRATCH) and LAYERS in entry.inputs
        assert [entry.takes(decode_dims(count, 9)) for count in range(1, 7)] == [n in entry.counts for n in range(1, 7)]
    first = plan.first.step_kernels[0]
    assert first.conditions and first.mask(decode_dims(1, 16)) != first.mask(decode_dims(1, 17)), "one whole, one split"


def test_what_nobody_asks_for_is_not_there() -> None:
    for artifact in (
        compiled(small_spec(cache=CACHE)),
        compile_spec(small_spec(), Geometry.of(**SIZES), ("cpu",)).artifact,
    ):
        assert (
            not artifact.plan.first.step_kernels
            and not artifact.plan.first.steps_as_launches
            and not step_files(artifact)
        )


def test_steps_that_cannot_be_one_kernel_are_named_with_the_reason() -> None:
    artifact = compiled(small_spec(cache=CACHE), Geometry.of(**SIZES | {"step_threads": 64}, step_sequences=5))
    plan = artifact.plan
    assert not plan.first.step_kernels and not step_files(artifact)
    assert [count for steps in plan.first.steps_as_launches for count in steps.counts] == [1, 2, 3, 4, 5]
    assert all("a block of the step has 64" in steps.because for steps in plan.first.steps_as_launches)


def test_a_rank_sums_inside_its_step_and_gathers_after_it() -> None:
    spec = small_spec(cache=CACHE, parallel={"tensor": 2})
    artifact = compiled(spec, Geometry.of(partition=16, step_rank_threads=512, step_sequences=5)).of_rank(1)
    program = artifact.plan.first
    assert [n for entry in program.step_kernels for n in entry.counts] == [1, 2, 3, 4, 5] and program.step_kernels[1:]
    for entry in program.step_kernels:
        step = make_step_program(program, entry.counts)
        follows = list(zip(step.launches, step.launches[1:], strict=False))
        sums = [(launch, after) for launch, after in follows if launch.kernel.label == "all_sum"]
        assert len(sums) == 1 + 2 * artifact.plan.num_layers and all(a.waits and b.waits for a, b in sums)
        assert PEERS in entry.inputs and entry.outputs[0] == "logits.own"
        text = artifact.files[entry.file]
        assert "#define RANK 1\n" in text and ("dims[0] * " in text) == (len(entry.counts) > 1)
    stages = compiled(small_spec(cache=CACHE, parallel={"pipeline": 2}), Geometry.of(**SIZES)).of_rank(0).plan.first
    assert not stages.step_kernels and "exchange rows" in stages.steps_as_launches[0].because


def test_an_artifact_without_the_text_of_a_step_is_refused(tmp_path: Path) -> None:
    artifact = compiled(small_spec(cache=CACHE), Geometry.of(**SIZES))
    (file,) = step_files(artifact)
    artifact.write(tmp_path / "whole")
    assert load_artifact(tmp_path / "whole").files[file] == artifact.files[file]
    Artifact({name: text for name, text in artifact.files.items() if name != file}).write(tmp_path / "part")
    with pytest.raises(ArtifactError, match=f"lacks {file}"):
        load_artifact(tmp_path / "part")
    assert file not in json.loads((tmp_path / "part/manifest.json").read_text())["files"]
