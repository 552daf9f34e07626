"""The calls of a step's launches, for graphs that are recorded."""

import functools
from collections import Counter
from collections.abc import Sequence

from mlxr.compiler.artifact import Launch, MatmulCall
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.cleared_memory import CLEAR, Clearing
from mlxr.runtime.hosts.cuda.launch_graph import FUNCTIONS, overlap
from mlxr.runtime.hosts.cuda.recorded_batch import recorded_image
from mlxr.runtime.hosts.cuda.recorded_calls import Call, ProductCall
from mlxr.runtime.hosts.cuda.recorded_products import NORM, product_calls
from mlxr.runtime.hosts.mlx.host import MlxHost


def recording_of(
    host: MlxHost, launches: Sequence[Launch], dims: Dims
) -> tuple[list[Call | ProductCall], Counter[str]]:
    """The calls of launches, all of which call kernels or MLX's matmul.

    Returns:
        The calls, in order; and under which names hosts count the launches, and how often.

    Raises:
        HostError: there is no way to do what a product needs beside it.
    """
    entries = {entry.name: entry for entry in host.program.kernels}
    calls, counts = list[Call | ProductCall](), Counter[str]()
    for launch in launches:
        if isinstance(launch.body, MatmulCall):
            calls += product_calls(launch.body, launch, dims)
            counts[launch.body.label] += 1
            continue
        kernel = host.launcher.kernel(launch.kernel)
        assert isinstance(kernel, functools.partial), "host cuda's kernels are images"
        image, pool = kernel.keywords["compiled_source"], kernel.keywords["shared_memory"]
        operands, entry = (*launch.inputs, *launch.outputs), entries[launch.kernel]
        grid = launch.kernel_call.grid(dims)
        cluster = entry.cluster if overlap() else 1
        calls.append(Call(entry.name, image, grid, entry.threads, operands, pool, overlap(), cluster))
        counts[launch.kernel] += 1
    return calls, counts


def clearing_of(calls: Sequence[Call | ProductCall]) -> Clearing:
    """What clears the memory that products among some calls want cleared."""
    norms = [call for call in calls if isinstance(call, Call) and call.name.startswith(NORM)]
    found = {FUNCTIONS.of(call.name, call.image): len(call.operands) for call in norms}
    return Clearing(FUNCTIONS.of(CLEAR, recorded_image()), found)
