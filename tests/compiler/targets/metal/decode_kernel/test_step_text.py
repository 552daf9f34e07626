"""The text of a step kernel: what does not fit a block is refused, and its name is of its content."""

import pytest

from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import NotOneKernelError
from mlxr_tests.mma_variants import BLOCKS, FOUR
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_texts import text_of


def test_kernels_that_do_not_fit_a_block_are_refused() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    with pytest.raises(NotOneKernelError, match="threads"):
        text_of(artifact, StepKernelSizes(threads=32))


def test_tiles_are_refused() -> None:
    """They are no part of a threadgroup's memory, so threadgroups side by side would write over each other's."""
    sizes = {"mma_outputs": 32, "mma_wide_outputs": 32, "mma_wide_simdgroups": 4, "mma_wide_stages": 2}
    cache = FOUR["cache"] | {"max_sequences": 9}
    spec = small_spec(**BLOCKS, weights={"default": "bf16"}, activation_dtype="bf16", cache=cache)
    artifact = compiled(spec, Geometry.of(mma_min_rows=2, mma_wide_rows=16, **sizes))
    with pytest.raises(NotOneKernelError, match="tiles"):
        text_of(artifact, StepKernelSizes(threads=512), range(9, 10))
    assert text_of(artifact, StepKernelSizes(threads=512), range(2, 3))


def test_a_kernel_is_named_by_its_content() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    same = [text_of(artifact, StepKernelSizes(threads=512)) for _ in range(2)]
    assert same[0] == same[1] and same[0].name != text_of(artifact, StepKernelSizes(threads=512, blocks=2)).name
    assert same[0].text.count(same[0].name) == 2 and "@" not in same[0].text
