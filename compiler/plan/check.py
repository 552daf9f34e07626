"""The plan's verifier: what must hold of the launches, whatever made them."""

from mlxr.compiler.errors import PlanError
from mlxr.compiler.plan.plan import KernelEntry, Launch, Plan, Step
from mlxr.compiler.verify import ARENA_TOKEN

_ARENAS = ("k_arena", "v_arena")
_BATCH = frozenset(
    ("token_ids", "positions", "slots", "query_start", "context_lens", "block_tables", "logit_rows", "query_tiles")
)


def check_plan(plan: Plan) -> None:
    """Checks buffers, arena order and overlaps of both steps.

    Raises:
        PlanError: naming the step, the launch and the rule.
    """
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    known = {w.name for w in plan.weights} | _BATCH | {"dims", ARENA_TOKEN, *_ARENAS}
    known |= {f"layer.{i}" for i in range(plan.num_layers)}
    for step in plan.steps:
        try:
            _check_step(step, kernels, known)
        except PlanError as error:
            raise PlanError(f"{error} [step {step.name}]") from None


def _check_step(step: Step, kernels: dict[str, KernelEntry], known: set[str]) -> None:
    made: dict[str, list[Launch]] = {}
    last_tokens = {ARENA_TOKEN}
    last_op = ""
    for launch in step.launches:
        kernel = kernels[launch.kernel]
        if len(launch.inputs) != len(kernel.inputs) or len(launch.outputs) != len(kernel.outputs):
            raise PlanError(f"launch of {launch.kernel} for {launch.op} binds the wrong number of buffers")
        for name in launch.inputs:
            if name not in known and name not in made:
                raise PlanError(f"launch of {launch.kernel} for {launch.op} reads {name!r}, which nothing made")
        if set(_ARENAS) & set(launch.inputs):
            bound = [n for n, port in zip(launch.inputs, kernel.inputs, strict=True) if port.name == "token"]
            if launch.op != last_op and set(bound) != last_tokens:
                raise PlanError(
                    f"launch of {launch.kernel} for {launch.op} accesses the arena with token {bound}; "
                    f"the last access made {sorted(last_tokens)}"
                )
            tokens = {n for n, port in zip(launch.outputs, kernel.outputs, strict=True) if port.name == "token_out"}
            if not tokens:
                raise PlanError(f"launch of {launch.kernel} for {launch.op} accesses the arena but makes no token")
            last_tokens, last_op = tokens, launch.op
        for name in launch.outputs:
            for other in made.get(name, []):
                if not _exclusive(launch, other):
                    raise PlanError(f"launches of {launch.kernel} and {other.kernel} both make {name!r}")
            made.setdefault(name, []).append(launch)
    for name in step.outputs:
        if name not in made:
            raise PlanError(f"the step returns {name!r}, which no launch makes")


def _exclusive(a: Launch, b: Launch) -> bool:
    if a.when is None or b.when is None or a.when.dim != b.when.dim:
        return False
    first, second = sorted((a.when, b.when), key=lambda c: c.minimum)
    return first.maximum is not None and first.maximum < second.minimum
