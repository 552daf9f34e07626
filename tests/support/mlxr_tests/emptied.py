"""An artifact with one kernel that does nothing, which the kernel's tests must notice."""

from mlxr.compiler.artifact import Artifact, KernelEntry


def emptied(artifact: Artifact, entry: KernelEntry) -> Artifact:
    """The artifact with an empty function for one kernel."""
    _, body = artifact.kernel_sections(entry.name)
    text = artifact.kernel_text(entry.name)
    assert text.endswith(body + "}\n"), "a kernel's text ends with its body"
    return Artifact({**artifact.files, entry.file: text.removesuffix(body + "}\n") + "}\n"})
