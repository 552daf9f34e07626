"""The verifier of programs: the rules that the launches of every target must keep."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product

from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import Condition, KernelCall, Launch
from mlxr.compiler.artifact.library_call import CollectiveCall, HandoverCall, MatmulCall
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import Phase, Program
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import of_group
from mlxr.compiler.ir.tensor import ARENA_TOKEN, BatchDim, layer_buffer

_BATCH = frozenset(
    ("token_ids", "positions", "token_types", "query_start", "context_lens", "logit_rows", "query_tiles", "state_table")
)
_OF_ADAPTERS = frozenset(("adapter_ids", "adapter_scales"))
_TOKEN_OUT = "token_out"
"""The port of a kernel that makes the arena's next token, which has no place in activation memory."""

_Conditions = tuple[Condition | None, Condition | None, bool]
"""The conditions of a launch: `when`, `yields` and `needs_library`."""
_ALWAYS: _Conditions = (None, None, False)


def check_plan(plan: Plan) -> None:
    """Checks buffers, conditions and arena order of each program.

    1. A launch binds as many buffers as its kernel or function has ports, reads only buffers that were written before,
       writes only buffers that have a place or are returned, and binds the arena once.
    2. For every batch that reads a buffer, exactly one of the launches that write it runs, on hosts with MLX's
       functions and on hosts without them. Every buffer that is written is also read or returned.
    3. Every launch that binds the arena binds the token of the previous access, and makes the next token.
    4. A library call is marked as needing the library. It binds the same buffers as the kernels that yield to it, or
       buffers that are unpacked or cast from these, in the types of its ports. x, weight, norm and result of a matmul
       have one type.
    5. A batch-invariant program calls no function of MLX and has no step kernels: the order of their sums is not ours.

    Raises:
        PlanError: a rule is broken; the message names the target, the phase, the launch and the rule.
    """
    known: dict[str, DType | None] = dict.fromkeys((*_BATCH, *_OF_ADAPTERS, "dims", ARENA_TOKEN))
    known |= dict.fromkeys(layer_buffer(i) for i in range(plan.num_layers))
    weights: dict[str, DType | None] = {weight.name: weight.layout.dtype for weight in plan.weights}
    for target, program in plan.programs.items():
        own = dict.fromkeys(tensor.name for tensor in program.library.tensors) if program.library else weights
        for cast in program.casts:
            if cast.weight not in weights:
                raise PlanError(f"{cast.name!r} is cast from {cast.weight!r}, which is not a weight [target {target}]")
        casts = {cast.name: cast.dtype for cast in program.casts}
        stores = {allocation.name: allocation.dtype for allocation in program.arena.allocations}
        groups = range(len(program.arena.groups))
        blocks = dict.fromkeys(of_group(name, group) for name in ("slots", "block_tables") for group in groups)
        if program.batch_invariant and (program.step_kernels or _library_calls(program)):
            raise PlanError(f"steps are to be deterministic, but MLX or a step kernel runs some [target {target}]")
        for phase in program.phases:
            try:
                _check_phase(phase, program, known | own | casts | blocks, stores)
            except PlanError as error:
                raise PlanError(f"{error} [target {target}, phase {phase.name}]") from None


def _library_calls(program: Program) -> list[Launch]:
    return [launch for phase in program.phases for launch in phase.launches if launch.needs_library]


def _check_phase(phase: Phase, program: Program, known: Mapping[str, DType | None], stores: Collection[str]) -> None:
    kernels = {kernel.name: kernel for kernel in program.kernels}
    placed = {buffer.name for buffer in phase.buffers}.union(phase.outputs)
    makers: dict[str, list[Launch]] = {}
    last, before, last_op = ARENA_TOKEN, ARENA_TOKEN, ""
    for launch in phase.launches:
        who, inputs, outputs = _who(launch), _input_ports(launch, kernels), _output_ports(launch, kernels)
        if len(launch.inputs) != len(inputs) or len(launch.outputs) != len(outputs):
            raise PlanError(f"{who} binds the wrong number of buffers")
        for name in launch.inputs:
            if name not in known and name not in makers and name not in stores:
                raise PlanError(f"{who} reads {name!r}, which nothing made")
        results = dict(zip(outputs, launch.outputs, strict=True))
        for port, name in results.items():
            if port != _TOKEN_OUT and name not in placed:
                raise PlanError(f"{who} makes {name!r}, which has no place")
        bound_stores = [name for name in launch.inputs if name in stores]
        if len(bound_stores) != len(set(bound_stores)):
            raise PlanError(f"{who} binds a store twice")
        if bound_stores:
            if launch.op != last_op:  # launches of one op are alternatives: they take the same token
                before, last_op = last, launch.op
            bound = dict(zip(inputs, launch.inputs, strict=True)).get("token")
            if bound != before:
                raise PlanError(f"{who} accesses the arena with token {bound!r}; the last access made {before!r}")
            if _TOKEN_OUT not in results:
                raise PlanError(f"{who} accesses the arena but makes no token")
            last = results[_TOKEN_OUT]
        for name in launch.outputs:
            makers.setdefault(name, []).append(launch)
    for name in phase.outputs:
        if name not in makers:
            raise PlanError(f"the phase returns {name!r}, which no launch makes")
    if last != ARENA_TOKEN and last not in phase.outputs:
        raise PlanError(f"the phase does not return its last arena token {last!r}")
    _check_use(phase, makers)
    _check_library_calls(phase, program, known, kernels)


def _who(launch: Launch) -> str:
    body = launch.body
    if isinstance(body, KernelCall):
        return f"launch of {body.kernel} for {launch.op}"
    whose = "" if isinstance(body, CollectiveCall | HandoverCall) else "MLX's "
    return f"the call of {whose}{body.function} for {launch.op}"


def _input_ports(launch: Launch, kernels: Mapping[str, KernelEntry]) -> tuple[str, ...]:
    body = launch.body
    ports = kernels[body.kernel].inputs if isinstance(body, KernelCall) else body.ports
    return tuple(port.name for port in ports)


def _output_ports(launch: Launch, kernels: Mapping[str, KernelEntry]) -> tuple[str, ...]:
    body = launch.body
    return tuple(port.name for port in kernels[body.kernel].outputs) if isinstance(body, KernelCall) else ("out",)


def _check_use(phase: Phase, makers: Mapping[str, Sequence[Launch]]) -> None:
    """Raises PlanError unless rule 2 holds."""
    readers: dict[str, list[Launch]] = {}
    for launch in phase.launches:
        for name in launch.inputs:
            readers.setdefault(name, []).append(launch)
    checked: set[tuple[object, ...]] = set()  # layers are alike
    for name, launches in makers.items():
        if name not in readers and name not in phase.outputs:
            raise PlanError(f"{_who(launches[0])} makes {name!r}, which nothing reads")
        kinds = {_conditions(launch): launch for launch in readers.get(name, ())}
        always = name in phase.outputs or _ALWAYS in kinds
        key = (*map(_conditions, launches), None if always else frozenset(kinds))
        if key not in checked:
            _check_makers(name, launches, None if always else list(kinds.values()))
            checked.add(key)


def _conditions(launch: Launch) -> _Conditions:
    return launch.when, launch.yields, launch.needs_library


def _check_makers(name: str, makers: Sequence[Launch], readers: Sequence[Launch] | None) -> None:
    """Raises PlanError unless exactly one of the makers runs whenever a reader does; None: something always reads."""
    conditions = [_conditions(launch) for launch in makers]
    if conditions == [_ALWAYS]:
        return
    if len(makers) == 1 and readers is not None and all(_conditions(launch) == conditions[0] for launch in readers):
        return
    parts = [part for launch in (*makers, *(readers or ())) for part in launch.conditions]
    # The values of each dim at which other launches run. Without rows of logits, nothing writes or reads them.
    borders: dict[BatchDim, set[int]] = {part.dim: {1} for part in parts}
    for part in parts:
        borders[part.dim] |= {max(1, part.minimum)} | ({part.maximum + 1} if part.maximum is not None else set())
    for library, numbers in product((False, True), product(*(sorted(borders[dim]) for dim in borders))):
        dims = dict(zip(borders, numbers, strict=True))
        running = [launch for launch in makers if launch.applies(dims, library=library)]
        if len(running) > 1:
            raise PlanError(f"{' and '.join(map(_who, running))} both make {name!r}")
        if not running and (readers is None or any(reader.applies(dims, library=library) for reader in readers)):
            where = " for " + ", ".join(f"{dims[dim]} {dim}" for dim in dims) if dims else ""
            raise PlanError(f"no launch makes {name!r}{where}" + " on hosts with MLX's functions" * library)


def _check_library_calls(
    phase: Phase, program: Program, known: Mapping[str, DType | None], kernels: Mapping[str, KernelEntry]
) -> None:
    """Raises PlanError unless rule 4 holds."""
    types = {**known, **{buffer.name: buffer.dtype for buffer in phase.buffers}}
    sources = {cast.name: cast.weight for cast in program.casts}
    yielding: dict[str, list[Launch]] = {}
    for launch in phase.launches:
        if launch.yields is not None:
            yielding.setdefault(launch.outputs[0], []).append(launch)
        if launch.needs_library and isinstance(launch.body, KernelCall):
            ports = zip(_input_ports(launch, kernels), launch.inputs, strict=True)
            weights = [name for port, name in ports if port.startswith("weight")]
            sources |= dict(zip(launch.outputs, weights, strict=False))
    for launch in phase.launches:
        body, who = launch.body, _who(launch)
        if isinstance(body, KernelCall | CollectiveCall | HandoverCall):
            continue
        if not launch.needs_library:
            raise PlanError(f"{who} would run on hosts that have no such function")
        for port, name in zip(body.ports, launch.inputs, strict=True):
            if types[name] not in (None, port.dtype):
                raise PlanError(f"{who} takes {port.name} {name!r} of {types[name]} as {port.dtype}")
            if isinstance(body, MatmulCall) and port.name in _OF_ONE_TYPE and port.dtype is not body.dtype:
                raise PlanError(f"{who} multiplies {port.name} of {port.dtype} for a result of {body.dtype}")
            for other in yielding.get(launch.outputs[0], ()):
                bound = dict(zip(_input_ports(other, kernels), other.inputs, strict=True)).get(port.name)
                if bound not in (None, name, sources.get(name)):
                    raise PlanError(f"{who} takes {name!r}, which is not {bound!r}, nor unpacked or cast from it")


_OF_ONE_TYPE = ("x", "weight", "norm", "norm_bias")
"""Ports of a matmul that have the type of its result."""
