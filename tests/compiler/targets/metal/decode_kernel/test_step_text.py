"""The text of a step kernel: what does not fit a block is refused, and its name is of its content."""

import pytest

from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import NotOneKernelError
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_texts import text_of


def test_kernels_that_do_not_fit_a_block_are_refused() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    with pytest.raises(NotOneKernelError, match="threads"):
        text_of(artifact, StepKernelSizes(threads=32))


def test_a_kernel_is_named_by_its_content() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    same = [text_of(artifact, StepKernelSizes(threads=512)) for _ in range(2)]
    assert same[0] == same[1] and same[0].name != text_of(artifact, StepKernelSizes(threads=512, blocks=2)).name
    assert same[0].text.count(same[0].name) == 2 and "@" not in same[0].text
