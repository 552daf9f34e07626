"""The verifier of programs: what must hold of the launches of any target."""

from itertools import product

from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import BatchDim, Condition, Launch
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import Phase, Program
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.buffers import ARENA_TOKEN, ARENAS, layer_buffer

_BATCH = frozenset(
    ("token_ids", "positions", "slots", "query_start", "context_lens", "block_tables", "logit_rows", "query_tiles")
)
_TOKEN_OUT = "token_out"
"""The port of a kernel that makes the arena's next token, which has no place in activation memory."""


def check_plan(plan: Plan) -> None:
    """Checks buffers, conditions and arena order of each program.

    1. A launch binds as many buffers as its kernel has, reads only what was made before it, makes only what has a place
       or is returned, and binds the arena once.
    2. Launches that make one buffer exclude each other and together run for every batch; all that is made is used.
    3. Every launch that binds the arena binds the token of the access before it, and makes the next one.
    4. What MLX ops take instead of a launch is made before it by one launch that feeds them, under the same conditions,
       and which makes nothing else, save what the launch makes too. All launches of an op under these conditions take
       the same; and what they take for a weight is unpacked from that weight.

    Raises:
        PlanError: naming the target, the phase, the launch and the rule.
    """
    known = _BATCH | {"dims", ARENA_TOKEN, *ARENAS} | {layer_buffer(i) for i in range(plan.num_layers)}
    weights = {weight.name for weight in plan.weights}
    for target, program in plan.programs.items():
        own = {tensor.name for tensor in program.library.tensors} if program.library else weights
        for phase in program.phases:
            try:
                _check_phase(phase, program, known | own)
            except PlanError as error:
                raise PlanError(f"{error} [target {target}, phase {phase.name}]") from None


def _check_phase(phase: Phase, program: Program, known: frozenset[str]) -> None:
    kernels = {kernel.name: kernel for kernel in program.kernels}
    placed = {buffer.name for buffer in phase.buffers}.union(phase.outputs)
    made: dict[str, list[Launch]] = {}
    last, before, last_op = ARENA_TOKEN, ARENA_TOKEN, ""
    for launch in phase.launches:
        kernel = kernels[launch.kernel]
        who = f"launch of {launch.kernel} for {launch.op}"
        if len(launch.inputs) != len(kernel.inputs) or len(launch.outputs) != len(kernel.outputs):
            raise PlanError(f"{who} binds the wrong number of buffers")
        for name in launch.inputs:
            if name not in known and name not in made:
                raise PlanError(f"{who} reads {name!r}, which nothing made")
        makes = dict(zip((port.name for port in kernel.outputs), launch.outputs, strict=True))
        for port, name in makes.items():
            if port != _TOKEN_OUT and name not in placed:
                raise PlanError(f"{who} makes {name!r}, which has no place")
        arenas = [name for name in launch.inputs if name in ARENAS]
        if len(arenas) != len(set(arenas)):
            raise PlanError(f"{who} binds an arena twice")
        if arenas:
            if launch.op != last_op:  # launches of one op are alternatives: they take the same token
                before, last_op = last, launch.op
            bound = dict(zip((port.name for port in kernel.inputs), launch.inputs, strict=True)).get("token")
            if bound != before:
                raise PlanError(f"{who} accesses the arena with token {bound!r}; the last access made {before!r}")
            if _TOKEN_OUT not in makes:
                raise PlanError(f"{who} accesses the arena but makes no token")
            last = makes[_TOKEN_OUT]
        if launch.feeds_mlx:
            continue
        for name in launch.outputs:
            made.setdefault(name, []).append(launch)
    _check_feeds(phase, kernels)
    for name in phase.outputs:
        if name not in made:
            raise PlanError(f"the phase returns {name!r}, which no launch makes")
    if last != ARENA_TOKEN and last not in phase.outputs:
        raise PlanError(f"the phase does not return its last arena token {last!r}")
    readers: dict[str, list[Launch]] = {}
    for launch in phase.launches:
        for name in launch.inputs:
            readers.setdefault(name, []).append(launch)
    for name, makers in made.items():
        if name not in readers and name not in phase.outputs:
            raise PlanError(f"launch of {makers[0].kernel} makes {name!r}, which nothing reads")
        _check_makers(name, makers, readers.get(name, []))


def _check_feeds(phase: Phase, kernels: dict[str, KernelEntry]) -> None:
    """Raises PlanError unless rule 4 holds."""
    unpacked: dict[tuple[tuple[Condition, ...], str], str] = {}
    made: dict[tuple[Condition, ...], set[str]] = {}
    used: dict[tuple[Condition, ...], set[str]] = {}
    taken: dict[tuple[str, tuple[Condition, ...]], set[str]] = {}
    for launch in phase.launches:
        who = f"launch of {launch.kernel} for {launch.op}"
        if launch.feeds_mlx:
            if not launch.mlx or launch.when is not None:
                raise PlanError(f"{who} feeds MLX ops, so its conditions must be theirs")
            before = made.setdefault(launch.mlx, set())
            if twice := before & set(launch.outputs):
                raise PlanError(f"{who} makes {sorted(twice)} for MLX ops, as a launch before it does")
            before.update(launch.outputs)
            weights = _weights_of(launch, kernels)
            unpacked |= {(launch.mlx, out): weight for weight, out in zip(weights, launch.outputs, strict=False)}
        elif launch.mlx:
            names = {name for _, name in launch.mlx_inputs}
            if unmade := names - made.get(launch.mlx, set()):
                raise PlanError(f"{who} gives MLX ops {sorted(unmade)}, which nothing made for them")
            for name in (name for port, name in launch.mlx_inputs if port == "weight"):
                if [unpacked.get((launch.mlx, name))] != _weights_of(launch, kernels):
                    raise PlanError(f"{who} gives MLX ops {name!r}, which is not unpacked from its weight")
            before = taken.setdefault((launch.op, launch.mlx), names)
            if before != names:
                raise PlanError(f"{who} gives MLX ops {sorted(names)}, and a launch before it {sorted(before)}")
            used.setdefault(launch.mlx, set()).update(names, launch.outputs)
    for mlx, names in made.items():
        if unread := names - used.get(mlx, set()):
            raise PlanError(f"no MLX op takes {sorted(unread)}, which was made for one")


def _weights_of(launch: Launch, kernels: dict[str, KernelEntry]) -> list[str]:
    """What a launch binds as weights; one that unpacks makes as many outputs, in their order."""
    ports = (port.name for port in kernels[launch.kernel].inputs)
    return [name for port, name in zip(ports, launch.inputs, strict=True) if port.startswith("weight")]


def _check_makers(name: str, makers: list[Launch], readers: list[Launch]) -> None:
    """Raises PlanError unless exactly one of the makers runs whenever a reader does."""
    conditions = [launch.when for launch in makers]
    if len(conditions) == 1 and (conditions[0] is None or (readers and all(r.when == conditions[0] for r in readers))):
        return
    parts = [part for one in conditions if one for part in one.parts]
    # Where a number of some dim changes what runs. Without rows of logits nothing runs that makes or reads them.
    borders: dict[BatchDim, set[int]] = {part.dim: {1} for part in parts}
    for part in parts:
        borders[part.dim] |= {max(1, part.minimum)} | ({part.maximum + 1} if part.maximum is not None else set())
    for numbers in product(*(sorted(borders[dim]) for dim in borders)):
        dims = dict(zip(borders, numbers, strict=True))
        running = [launch for launch in makers if launch.when is None or launch.when.holds(dims)]
        if len(running) > 1:
            raise PlanError(f"launches of {', '.join(launch.kernel for launch in running)} both make {name!r}")
        if not running:
            raise PlanError(f"no launch makes {name!r} for {', '.join(f'{dims[dim]} {dim}' for dim in dims)}")
