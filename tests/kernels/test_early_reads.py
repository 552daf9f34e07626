"""What kernels read before they wait is there: launches of a graph overlap, see templates/README.md."""

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.early_reads import early_ports, reads_of_steps
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.variants import VARIANTS, variant


@pytest.mark.parametrize("name", few([*VARIANTS, *ALL_SPECS], ["attention-mma"]))
def test_only_what_is_there_is_read_before_the_wait(name: str) -> None:
    """What the launch before makes is not there; what the one before that makes is read past the first-level cache."""
    artifact = (
        variant(name) if name in VARIANTS else compiled(family_spec(name), Geometry.of(partition=16, matvec_leads=1))
    )
    assert all(launches > 1 and is_volatile for *_, launches, is_volatile in reads_of_steps(artifact))
    early = [early_ports(artifact, entry.name) for entry in artifact.plan.first.kernels]
    assert any("weight" in ports or "k_arena" in ports for ports in early)


@pytest.mark.parametrize("threadgroups", [0, 4])
def test_what_a_norm_multiplies_by_is_read_before_the_wait(threadgroups: int) -> None:
    """It comes from memory, as the weight does; of one row, by one tile of outputs and by several."""
    artifact = compiled(small_spec(), Geometry.of(matvec_threadgroups=threadgroups))
    for label in ("qkv", "gate_up", "logits"):
        assert {"norm", "weight"} <= set(early_ports(artifact, artifact.kernel_entry(label).name))


def test_attention_of_prompts_reads_the_batch_alone_before_the_wait() -> None:
    """Those threadgroups that have no tokens of anybody wait at another place."""
    artifact = variant("prefill-tiles")
    early = set(early_ports(artifact, artifact.kernel_entry("attend_prefill_tiles_mma").name))
    assert {"query_tiles", "positions", "query_start"} <= early
    assert not early & {"qkv", "k_arena", "v_arena", "token"}
