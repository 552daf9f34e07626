"""How many bytes a decode step has to read, which is what limits its speed."""

from mlxr.compiler.artifact import Plan


def weight_bytes(plan: Plan, host: str, rows: int = 1) -> int:
    """Bytes of weights that a decode step reads, each once, on a host that runs a target's kernels.

    Args:
        plan: of the artifact.
        host: `cpu` reads the cpu target's tensors; others those of the metal target.
        rows: sequences of the step; of the embedding table it reads their rows alone, unless it is the output too.
    """
    if host == "cpu" and plan.cpu is not None:
        sizes = {tensor.name: (tensor.size_bytes, tensor.shape[0]) for tensor in plan.cpu.tensors}
        launches = [(launch.kernel, launch.inputs) for launch in plan.cpu.step("decode").launches]
    elif plan.steps:
        sizes = {}
        for weight in plan.weights:
            elements = 1
            for size in weight.shape:
                elements *= size
            sizes[weight.name] = (elements * weight.dtype.size_bytes, weight.shape[0])
        launches = [(launch.kernel, launch.inputs) for launch in plan.step("decode").launches]
    else:
        return plan.memory.weights_bytes
    whole = {name for kernel, inputs in launches if not kernel.startswith("embed_") for name in inputs}
    table = {name for kernel, inputs in launches if kernel.startswith("embed_") for name in inputs} - whole
    read = sum(sizes[name][0] for name in whole if name in sizes)
    return read + sum(sizes[name][0] // sizes[name][1] * rows for name in table if name in sizes)


def cache_bytes(plan: Plan, tokens: int) -> int:
    """Bytes of K and V of so many tokens, in all layers."""
    arena = plan.arena
    return 2 * arena.num_layers * arena.num_kv_heads * arena.row_bytes * tokens
