"""A kernel's Metal file is, to the byte, what MLX generates from its header, its body and the plan's ports.

`metal_kernel` inside `export_function` prints its Metal text on any platform; so this holds without a Mac.
"""

import difflib
import re

import mlx.core as mx
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.metal.host import metal_kernel
from mlxr_tests.tolerances import Mismatch
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


def check_same(text, printed):
    """Checks that a kernel's file is what MLX printed; MLX ends a body with a line break of its own."""
    header, kernel = text.split("// ---- header\n")[1].split("// ---- kernel\n")
    ours, theirs = ((part.rstrip().removesuffix("}").rstrip()) for part in (header + kernel, printed))
    if ours != theirs:
        raise Mismatch("\n".join(difflib.unified_diff(theirs.splitlines(), ours.splitlines(), "MLX", "ours", n=1)))


@pytest.mark.parametrize("name", VARIANTS)
def test_mlx_generates_the_same(name, tmp_path, capfd):
    artifact = variant(name)
    for entry in artifact.plan.first.kernels:
        printed = printed_by_mlx(artifact, entry, tmp_path / "k.mlxfn", capfd)
        assert f"[[kernel]] void {entry.name}(" in printed
        check_same(artifact.kernel_text(entry.name), printed)


@pytest.mark.parametrize("name", VARIANTS)
def test_ports_match_the_text(name):
    """The plan's ports are the buffers of the text, in order."""
    artifact = variant(name)
    for entry in artifact.plan.first.kernels:
        found = re.findall(r"(const )?device (\w+)\* (\w+) \[\[buffer\((\d+)\)\]\]", artifact.kernel_text(entry.name))
        ports = [*(("const ", p) for p in entry.inputs), *(("", p) for p in entry.outputs)]
        expected = [(const, p.dtype.metal, p.name, str(i)) for i, (const, p) in enumerate(ports)]
        assert found == expected, entry.name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],\n", ""),
        ("uint thread_index_in_threadgroup [[", "ushort thread_index_in_threadgroup [["),
        ("const device int32_t* token_ids [[buffer(0)]]", "const device uint32_t* token_ids [[buffer(0)]]"),
        ("const device int32_t* token_ids [[buffer(0)]]", "device int32_t* token_ids [[buffer(0)]]"),
        ("device float* out [[buffer(", "device half* out [[buffer("),
    ],
)
def test_a_wrong_signature_differs(tmp_path, capfd, old, new):
    """An attribute that the body uses and the file does not declare, and a type that is not the port's."""
    true = variant("contiguous-f32")
    entry = true.kernel_entry("embed")
    text = true.kernel_text(entry.name)
    assert text.count(old) == 1, "the mistake must be possible"
    wrong = Artifact({**true.files, entry.file: text.replace(old, new)})
    check_same(text, printed_by_mlx(true, entry, tmp_path / "k.mlxfn", capfd))
    with pytest.raises(Mismatch):
        check_same(wrong.kernel_text(entry.name), printed_by_mlx(wrong, entry, tmp_path / "w.mlxfn", capfd))
