"""Kernels that wait for their inputs by themselves in a step kernel: what they do before, and who comes to the wait."""

import re

import pytest

from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr_tests.few import few
from mlxr_tests.step_texts import text_of
from mlxr_tests.variants import VARIANTS, variant

WHOLE = [name for name, (spec, *_) in VARIANTS.items() if spec.parallel is None and not spec.model.is_encoder]
SHORT = [*WHOLE[::6], "codes-mma"]  # some of whose simdgroups have no columns
CALL = "MLXR_AWAIT_INPUTS()"
MADE = re.compile(r"\b(?:x|input|qkv|residual|times|added|second|gate)\[|\bload_\w+\((?:input|x|qkv)\b")
"""A read of a buffer that an earlier launch of the step has written, not a row's address."""
LOOP = re.compile(r"for \(uint (piece|block) = .*?; \1 < (\d+)u; \1 \+= (\d+)u?\) \{")


def awaiting(name: str) -> dict[str, str]:
    """The bodies of kernels that wait by themselves, by name."""
    text = text_of(variant(name), StepKernelSizes(512)).text
    parts = re.findall(r"^namespace (\w+) \{\n(.*?)^\}  // namespace \1$", text, re.DOTALL | re.MULTILINE)
    bodies = {
        kernel: part[part.index("void body(") : part.index("__noinline__")]
        for kernel, part in parts
        if kernel != "mlxr"
    }
    return {kernel: body for kernel, body in bodies.items() if CALL in body}


def test_projections_and_attention_wait_by_themselves() -> None:
    labels = {name.rsplit("_", 2)[0] for name in awaiting("q4_k_m")}
    assert {"qkv", "attend", "o", "gate_up", "down", "logits"} <= labels


@pytest.mark.parametrize("name", few(WHOLE, SHORT))
def test_they_read_no_results_before(name: str) -> None:
    for kernel, body in awaiting(name).items():
        begin = body.index(") {\n")
        assert not MADE.search(body, begin, body.index(CALL)), kernel


@pytest.mark.parametrize("name", few(WHOLE, SHORT))
def test_all_threads_come_to_it(name: str) -> None:
    """A loop that has the call runs at least once for each lane, or the call is there once more."""
    for kernel, body in awaiting(name).items():
        for at in (found.start() for found in re.finditer(re.escape(CALL), body)):
            for loop in LOOP.finditer(body, 0, at):
                inside = body.count("{", loop.end() - 1, at) > body.count("}", loop.end() - 1, at)
                spare = 31 if loop[1] == "block" else 0  # the last block of 32 pieces may have fewer
                always = int(loop[2]) + spare >= int(loop[3])
                assert not inside or always or CALL in body[at + len(CALL) :], kernel
