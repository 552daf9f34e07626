"""A kernel of an artifact with its source, highlighted."""

from collections.abc import Mapping

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.spec.record import Record
from mlxr.inspect.c_report import c_function
from mlxr.inspect.highlight import highlight_html


class SizeView(Record):
    """A size of launch geometry that was chosen; `because` is empty where it is the default."""

    name: str
    value: int
    because: str = ""


class BufferView(Record):
    """A buffer parameter of a kernel."""

    name: str
    dtype: str


class KernelView(Record):
    """A kernel.

    Attributes:
        target: whose program has it.
        name, label: its unique name, and its purpose.
        language: `metal` or `c`.
        file: the file of the artifact that holds it.
        threads: threads of a threadgroup; 0 where the host chooses.
        threadgroup_bytes: memory that they share.
        site: the launches that its geometry was chosen for; null if there was nothing to choose.
        sizes: what was chosen.
        chip: for which chip.
        source: its text, as it is.
        html: the same, highlighted: spans with pygments' classes in `<div class="highlight"><pre>`.
        num_lines: its lines.
    """

    target: str
    name: str
    label: str
    language: str
    file: str
    threads: int
    threadgroup_bytes: int
    inputs: tuple[BufferView, ...]
    outputs: tuple[BufferView, ...]
    site: str | None
    sizes: tuple[SizeView, ...]
    chip: str
    source: str
    html: str
    num_lines: int


def kernel_view(artifact: Artifact, target: str, name: str) -> KernelView:
    """A kernel with its source.

    Args:
        artifact: whose kernel.
        target: `metal` or `cpu`.
        name: its full name, or its label if only one kernel has that.

    Raises:
        ArtifactError: there is no such target or kernel, or several kernels match.
    """
    program = artifact.plan.program(target)
    if program.library is not None:
        described, source = c_function(artifact, name, target)
        entry, language = program.kernel(str(described["name"])), "c"
    else:
        entry, language = program.find_kernel(name), "metal"
        source = artifact.files[entry.file]
    return KernelView(
        target=target,
        name=entry.name,
        label=entry.label,
        language=language,
        file=entry.file,
        threads=entry.threads,
        threadgroup_bytes=entry.threadgroup_bytes,
        inputs=tuple(BufferView(name=port.name, dtype=str(port.dtype)) for port in entry.inputs),
        outputs=tuple(BufferView(name=port.name, dtype=str(port.dtype)) for port in entry.outputs),
        site=entry.chosen.site if entry.chosen else None,
        sizes=sizes_of(entry.chosen),
        chip=artifact.chip.title,
        source=source,
        html=highlight_html(source, language),
        num_lines=len(source.splitlines()),
    )


def sizes_of(chosen: ChosenGeometry | None) -> tuple[SizeView, ...]:
    """The sizes that were chosen, each with its reason."""
    if chosen is None:
        return ()
    why: Mapping[str, str] = chosen.why
    return tuple(SizeView(name=name, value=value, because=why.get(name, "")) for name, value in chosen.sizes.items())
