"""What kernels read before they wait for the launch before: launches of a graph overlap, see templates/README.md."""

import re
from collections.abc import Iterator
from itertools import product

from mlxr.compiler.artifact import Artifact, KernelCall, Launch, Phase
from mlxr.runtime.hosts.cuda.build import AWAIT


def early_ports(artifact: Artifact, kernel: str) -> dict[str, bool]:
    """Inputs whose numbers a kernel reads before it waits, and whether that is past the first-level cache."""
    entry, (_, body) = artifact.kernel_entry(kernel), artifact.kernel_sections(kernel)
    body = re.sub(rf"if \([^\n]*\) {{\s*{re.escape(AWAIT)}\s*}}", "", body)  # others go on without a wait
    early = re.sub(r"//[^\n]*", "", body.partition(AWAIT)[0]) if AWAIT in body else ""
    found: dict[str, bool] = {}
    for port in entry.inputs:
        name = rf"(?<![.\w]){port.name}\b"
        pointers = re.findall(rf"\n([^\n]*\b(\w+)(?:\[\w+\])? = (?:\([^()]*\*\))?{name}(?: \+[^\n]*)?;)", early)
        rest = early
        for line, _ in pointers:
            rest = rest.replace(line, "")
        read = [line for line, pointer in pointers if re.search(rf"\b{pointer}\b(?!\[\d+\];)", rest)]
        if read or re.search(name, rest):
            found[port.name] = not re.search(name, rest) and all("volatile" in line for line in read)
    return found


def running(phase: Phase, tokens: int, context: int) -> list[Launch]:
    """The kernels of a step in which each sequence has one token, in order."""
    dims = {"tokens": tokens, "seqs": tokens, "rows": tokens, "tiles": tokens, "context": context, "copies": 0}
    launches = [launch for launch in phase.launches if isinstance(launch.body, KernelCall)]
    return [launch for launch in launches if launch.when is None or launch.when.holds(dims)]


def reads_of_steps(artifact: Artifact) -> Iterator[tuple[str, str, int, bool]]:
    """Kernel, port, by how many launches before it is made, and `early_ports`' answer, for all that a step makes.

    Launches in a row that let the next one in early do not count.
    """
    program, ports = artifact.plan.first, {}
    for entry in program.kernels:
        ports[entry.name] = early_ports(artifact, entry.name)
    counts, contexts = range(1, artifact.plan.arena.max_sequences + 1), (1, artifact.plan.arena.context)
    for phase in program.phases:
        for tokens, context in product(counts, contexts):
            made: dict[str, int] = {}
            leads = 0  # such launches right before this one
            for at, launch in enumerate(running(phase, tokens, context)):
                entry = program.kernel(launch.kernel)
                for port, buffer in zip(entry.inputs, launch.inputs, strict=True):
                    if port.name in ports[entry.name] and buffer in made:
                        yield entry.label, port.name, at - made[buffer] - leads, ports[entry.name][port.name]
                made |= dict.fromkeys(launch.outputs, at)
                leads = leads + 1 if "MLXR_LEADS" in artifact.kernel_text(entry.name) else 0
