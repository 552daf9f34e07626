"""A kernel's Metal file is, to the byte, what MLX generates from its header, its body and the plan's ports.

`metal_kernel` inside `export_function` prints its Metal text on any platform; so this holds without a Mac.
"""

import re

import mlx.core as mx
import pytest

from mlxr.runtime.hosts.metal import metal_kernel
from mlxr_tests.specs import MLX_DTYPES
from mlxr_tests.variants import VARIANTS, variant


def printed_by_mlx(artifact, entry, path, capfd):
    """What MLX makes of a kernel, its own name for the function replaced by ours."""
    kernel = metal_kernel(artifact, entry)
    outputs = [MLX_DTYPES[str(port.dtype)] for port in entry.outputs]

    def launch(*inputs):
        return kernel(
            inputs=list(inputs),
            grid=(entry.threads, 1, 1),
            threadgroup=(entry.threads, 1, 1),
            output_shapes=[(8,)] * len(outputs),
            output_dtypes=outputs,
            verbose=True,
        )

    capfd.readouterr()
    # Inputs of 8 elements: smaller ones would be in another address space.
    mx.export_function(str(path), launch, *(mx.zeros((8,), MLX_DTYPES[str(port.dtype)]) for port in entry.inputs))
    printed = capfd.readouterr().out
    code = printed.split("```")[1].removeprefix("\n")
    return re.sub(rf"\[\[kernel\]\] void \w*{entry.name}\w*\(", f"[[kernel]] void {entry.name}(", code)


@pytest.mark.parametrize("name", VARIANTS)
def test_mlx_generates_the_same(name, tmp_path, capfd):
    artifact = variant(name)
    for entry in artifact.plan.kernels:
        header, kernel = artifact.kernel_text(entry.name).split("// ---- header\n")[1].split("// ---- kernel\n")
        printed = printed_by_mlx(artifact, entry, tmp_path / "k.mlxfn", capfd)
        assert f"[[kernel]] void {entry.name}(" in printed
        # MLX ends a body with a line break of its own.
        ours, theirs = ((text.rstrip().removesuffix("}").rstrip()) for text in (header + kernel, printed))
        assert ours == theirs, entry.name


@pytest.mark.parametrize("name", VARIANTS)
def test_ports_match_the_text(name):
    """The plan's ports are the buffers of the text, in order."""
    artifact = variant(name)
    for entry in artifact.plan.kernels:
        found = re.findall(r"(const )?device (\w+)\* (\w+) \[\[buffer\((\d+)\)\]\]", artifact.kernel_text(entry.name))
        ports = [*(("const ", p) for p in entry.inputs), *(("", p) for p in entry.outputs)]
        expected = [(const, p.dtype.metal, p.name, str(i)) for i, (const, p) in enumerate(ports)]
        assert found == expected, entry.name


def test_a_wrong_signature_differs(tmp_path, capfd):
    """An attribute that the body uses but the file does not declare is a difference."""
    artifact = variant("contiguous-f32")
    entry = artifact.kernel_entry("embed")
    text = artifact.kernel_text(entry.name)
    attribute = "  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],\n"
    assert attribute in text and attribute in printed_by_mlx(artifact, entry, tmp_path / "k.mlxfn", capfd)
