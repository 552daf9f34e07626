"""The verifier: the rules that a graph must keep at each stage of the pipeline.

Stages: `source` (as built), `fused` (between passes), `ordered` (ready for planning: arena accesses are chained).
In program order every value is written before it is read, so a verified graph has no cycle.
"""

from operator import is_

from mlxr.compiler.errors import GraphError
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.op_kind import Stage
from mlxr.compiler.ir.tensor import ARENA_TOKEN

Proven = dict[str, tuple[Op, list[Value]]]
"""Ops by name that have the ports of their kind, and whose shapes follow from its rule, with the values that they had:
passes leave most ops as they are."""


def verify(graph: OpGraph, stage: Stage, context: str = "", proven: Proven | None = None) -> None:
    """Checks every rule of a stage.

    Args:
        graph: the graph.
        stage: `source`, `fused` or `ordered`.
        context: the passes that ran before, for the message.
        proven: what earlier calls have found, and this one adds to: their ports and shapes are not checked again.

    Raises:
        GraphError: a rule is broken; the message names the op, the rule and the stage.
    """
    try:
        _check(graph, stage, {} if proven is None else proven)
    except GraphError as error:
        raise GraphError(f"{error} [stage {stage}{', after ' + context if context else ''}]") from None


def _check(graph: OpGraph, stage: Stage, proven: Proven) -> None:
    known = {v.name for v in graph.values if v.role not in ("activation", "token") or v.name == ARENA_TOKEN}
    for op in graph.ops:
        if stage not in op.attrs.stages:
            raise GraphError(f"op {op.name!r} of kind {op.kind!r} must not be left at this stage")
        before, had = proven.get(op.name, (None, []))
        if before is not op:
            _check_ports(op)
        for port, name in op.inputs.items():
            if name not in known:
                raise GraphError(f"op {op.name!r} reads {name!r} on port {port!r} before any op makes it")
        for name in op.outputs.values():
            if name in known:
                raise GraphError(f"op {op.name!r} makes {name!r}, which exists already")
            known.add(name)
        values = [graph.value(name) for name in (*op.inputs.values(), *op.outputs.values())]
        if before is not op or len(had) != len(values) or not all(map(is_, had, values)):
            _check_shapes(graph, op)
            proven[op.name] = op, values
    for name in graph.outputs:
        if name not in known:
            raise GraphError(f"the graph returns {name!r}, which no op makes")
    if stage == "ordered":
        check_arena_order(graph)


def _check_ports(op: Op) -> None:
    kind = op.attrs
    missing = [port for port in kind.inputs if port not in op.inputs]
    unknown = [port for port in op.inputs if port not in (*kind.inputs, *kind.optional)]
    wrong = [port for port in op.outputs if port not in (*kind.outputs, *kind.optional_outputs)]
    absent = [port for port in kind.outputs if port != "token" and port not in op.outputs]
    if missing or unknown or wrong or absent:
        raise GraphError(
            f"op {op.name!r} ({op.kind}) has wrong ports: missing {missing + absent}, unknown {unknown + wrong}"
        )
    if kind.accesses and op.layer is None:
        raise GraphError(f"op {op.name!r} ({op.kind}) accesses a store but is in no layer")


def _check_shapes(graph: OpGraph, op: Op) -> None:
    try:
        expected = op.attrs.infer({p: graph.value(n).tensor for p, n in op.inputs.items()})
    except RuleError as error:
        raise GraphError(f"op {op.name!r} ({op.kind}): {error}") from None
    for port, name in op.outputs.items():
        got, rule = graph.value(name).tensor, expected.get(port)
        if got != rule:
            raise GraphError(f"op {op.name!r} ({op.kind}) makes {got} on {port!r}; its rule says {rule or 'nothing'}")


def check_arena_order(graph: OpGraph) -> None:
    """Raises GraphError unless all accesses of stores form one chain of tokens.

    One chain in program order makes every reader depend on the last writer, and every writer on the readers before it,
    across layers, steps and chunks. A writer must wait because its block may have belonged to another sequence.
    """
    last = ARENA_TOKEN
    for op in graph.ops:
        if not op.attrs.accesses:
            continue
        if op.inputs.get("token") != last:
            raise GraphError(
                f"op {op.name!r} ({op.kind}) accesses the arena with token {op.inputs.get('token')!r}; "
                f"the last access made {last!r}, so MLX may reorder them"
            )
        if "token" not in op.outputs:
            raise GraphError(f"op {op.name!r} ({op.kind}) accesses the arena but makes no token for the next access")
        last = op.outputs["token"]
    if last != ARENA_TOKEN and last not in graph.outputs:
        raise GraphError(
            f"the graph does not return its last arena token {last!r}, so the next step cannot wait for it"
        )
