"""Activations that a target cannot compute with are refused, and the message says where they have an effect."""

import pytest

from mlxr.cli import main
from mlxr.compiler.targets.registry import refused_activations

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
