"""What is asked of the targets: activations that one cannot compute with, and what their programs share."""

import pytest

from mlxr.cli import main
from mlxr.compiler.targets.registry import TARGETS, refused_activations
from mlxr.compiler.targets.source_graph import leading
from mlxr_tests.specs import small_spec

REASON = "--activations bf16 is for target metal: target cpu computes with f32 ones"


@pytest.mark.parametrize(
    ("activations", "targets", "reason"),
    [
        ("bf16", ["cpu"], REASON),
        ("bf16", ["metal", "cpu"], None),
        ("bf16", ["metal"], None),
        ("f32", ["cpu"], None),
        (None, ["cpu"], None),
    ],
)
def test_only_targets_that_compute_with_other_types_refuse(
    activations: str | None, targets: list[str], reason: str | None
) -> None:
    assert refused_activations(activations, targets) == reason


def test_inspect_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "storyteller", "--target", "cpu", "--activations", "bf16"]) == 1
    assert capsys.readouterr().err == f"error: {REASON}\n"


def test_what_programs_share_has_the_types_of_the_target_that_comes_first_whatever_the_order() -> None:
    spec = small_spec()
    types = [target.types(spec, None) for target in TARGETS.values()]
    assert leading(types).target == leading(types[::-1]).target == "metal"
    assert leading(types[1:]).target == "cpu"
