"""Host cuda runs decode steps as one kernel each. Needs no GPU: sim runs the kernel's launches one after the other."""

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.hosts.cuda import step_kernel
from mlxr.runtime.hosts.cuda.build import prelude, with_prelude
from mlxr.runtime.hosts.cuda.decode_steps import AS_LAUNCHES
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.occupancy import Residency
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import TINY, tiny_spec

AS_ONE = Geometry.of(partition=16, step_threads=512, step_sequences=3)
CACHE = {"mode": "paged", "block_size": 4, "max_sequences": 3}


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "spec", few(["small", "experts-shared-gate", "gemma-like", "gpt-oss-like", "olmo-like"], ["small"])
)
def test_a_program_gives_the_references_logits(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    artifact = compiled(small_spec(cache=CACHE) if spec == "small" else family_spec(spec), AS_ONE)
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    pair = HostPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    a, b = pair.add(), pair.add()
    pair.step([(a, [3, 1, 4, 1, 5]), (b, [9])])
    as_one = 0
    for token in range(16):  # over the borders of blocks and of the first partition
        pair.step([(a, [token])])
        as_one += 1
        if token % 8 == 0:
            pair.step([(b, [token]), (a, [token + 7])])
            as_one += 1
    names = [name for name in pair.host.launches if name.startswith("step_")]
    assert sum(pair.host.launches[name] for name in names) == as_one and not pair.host.notes
    assert set(names) == {entry.name for entry in pair.plan.first.step_kernels if {1, 2} & {*entry.counts}}


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_tokens_and_counts_are_those_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for geometry in (None, Geometry.of(step_threads=256)):
        artifact = compile_spec(tiny_spec(), geometry, ("metal",)).artifact
        use_card(monkeypatch, artifact, SimLauncher(artifact))
        model = mlxr.load(artifact, TINY, host="cuda")
        (answer,) = model.start([[1, 403, 27]], max_tokens=6, ignore_eos=True).finish()
        counts = {k: n for k, n in model.host.launches.items() if not k.startswith("step_")}
        found.append((answer.token_ids, int(model.arena.token[0]), counts))
        assert model.host.launches.total() - sum(counts.values()) == (0 if geometry is None else 6 - 1)
    assert found[0] == found[1]


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("geometry", "card", "why"),
    [
        (Geometry.of(step_threads=64), Residency(3, 2), "a block of the step has 64"),
        (Geometry.of(step_threads=512), Residency(3, 0), "no block of 512 threads"),
    ],
)
def test_what_does_not_fit_is_launches_and_says_so(
    monkeypatch: pytest.MonkeyPatch, geometry: Geometry, card: Residency, why: str
) -> None:
    artifact = compiled(small_spec(cache=CACHE), geometry)
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    monkeypatch.setattr(step_kernel, "residency", lambda *_: card)
    pair = HostPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    (note,) = pair.host.notes
    assert why in note
    a = pair.add()
    for token in range(4):
        pair.step([(a, [token])])
    assert pair.host.launches[AS_LAUNCHES] == 4


def test_an_old_card_is_told() -> None:
    built = step_kernel.build_steps(compiled(small_spec(), AS_ONE), "sm_75")
    assert not built.images and built.failures[0][0] == range(1, 2)
    assert all("sm_75" in str(error) for _, error in built.failures)


def test_the_prelude_stands_between_a_steps_macros_and_its_kernels() -> None:
    artifact = compiled(small_spec(), AS_ONE)
    text = with_prelude(artifact.files[artifact.plan.first.step_kernels[0].file])
    before, after = text.split(prelude())
    assert "#define MLXR_THREADGROUP" in before and "namespace" in after and "#include" not in before + after
