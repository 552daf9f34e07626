"""Products of many tokens by experts: the tokens of an expert share a read of its weight.

Choices are ordered by expert, and a threadgroup multiplies a tile of them by rows of their expert's weight. A token
alone is better multiplied by itself, which takes no order and no sum of its own: `tiles_from` says where tiles begin.
Tiles of decode steps are small, since few of their tokens have an expert in common.
"""

from dataclasses import replace

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct, ExpertProjection, RoutedProjection
from mlxr.compiler.schedule.geometry import ExpertTiles, MatrixTiles, UnpackedTiles
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts, facts_of
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows, ProjectionKernel
from mlxr.compiler.targets.metal.kernels.expert_codes import ExpertCodesKernel, codes_choice, expert_codes
from mlxr.compiler.targets.metal.kernels.expert_numbers import numbers_of
from mlxr.compiler.targets.metal.kernels.expert_order import order_choices
from mlxr.compiler.targets.metal.kernels.expert_sum import ExpertSumKernel
from mlxr.compiler.targets.metal.kernels.expert_wide import ExpertWideKernel, expert_wide
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_COLUMNS, gemm
from mlxr.compiler.targets.metal.kernels.gemm_mma import gemm_mma
from mlxr.compiler.targets.metal.kernels.matmul_mma import MatmulMmaKernel, expert_mma
from mlxr.compiler.targets.metal.kernels.normalise import normalise
from mlxr.compiler.targets.metal.lowering import MetalLowering, num_columns


def tiles_from(lowering: MetalLowering, op: Op) -> int | None:
    """The fewest tokens of a step that are multiplied in tiles; None: none are.

    All ops of a choice of experts have the same answer. Deterministic programs have one arithmetic for all steps, in
    which each token is multiplied by itself.
    """
    attrs = op.attrs_as(ExpertProduct)
    choice = lowering.table.choose(Site.of_choice(attrs.num_experts, attrs.top_k, lowering.value(op, "x").dtype))
    if lowering.deterministic:
        return None
    if lowering.phase == "decode":
        return _tiles_of_decode(lowering, op, choice.geometry.many_rows.experts)
    rows = choice.geometry.many_rows.experts.min_rows
    if not rows:
        return None
    columns = [lowering.layouts[reader.inputs["weight"]].columns for reader in _readers(lowering, op)]
    tokens = max(2, -(-rows * attrs.num_experts // attrs.top_k))
    fits = all(count % GEMM_COLUMNS == 0 for count in columns)
    return tokens if fits and tokens <= lowering.limits["tokens"] else None


def _tiles_of_decode(lowering: MetalLowering, op: Op, sizes: ExpertTiles) -> int | None:
    """`tiles_from` of a decode step: where all products of a choice have the kernel, and make nothing else."""
    tokens, readers = max(2, sizes.mma_tokens), _readers(lowering, op)
    if not sizes.mma_tokens or tokens > lowering.limits["tokens"]:
        return None
    if any("gate_weight" in reader.inputs for reader in readers):
        return None
    if any(isinstance(reader.attrs, RoutedProjection) and reader.attrs.weighs for reader in readers):
        return None
    kernels = [_few(lowering, reader, _facts(lowering, reader, of_tokens=_is_first(reader))) for reader in readers]
    return tokens if all(kernels) else None


def _is_first(op: Op) -> bool:
    return isinstance(op.attrs, ExpertProjection)


def _few(lowering: MetalLowering, op: Op, facts: ProjectionFacts) -> ExpertCodesKernel | MatmulMmaKernel | None:
    """The kernel of a decode step for an op's product."""
    attrs = op.attrs_as(ExpertProduct)
    rows = ExpertRows(attrs.num_experts, attrs.top_k, _is_first(op), "weights" in op.inputs)
    return expert_codes(lowering, op, facts, rows) or expert_mma(facts, rows)


def _many(
    lowering: MetalLowering, op: Op, facts: ProjectionFacts, rows: ExpertRows
) -> ExpertCodesKernel | ExpertWideKernel | None:
    """The kernel of a prompt for an op's product, of those that decode codes as they multiply."""
    sizes = codes_choice(lowering, op, facts).geometry.many_rows.matrix
    return expert_wide(facts, sizes, rows) or expert_codes(lowering, op, facts, rows)


def first_of_decode(lowering: MetalLowering, op: Op) -> tuple[ProjectionFacts, int]:
    """The facts of a choice's first product in a decode step with tiles, and the most choices of a tile."""
    facts = _facts(lowering, op, of_tokens=True)
    kernel = _few(lowering, op, facts)
    assert kernel is not None, "decode steps have tiles where there is the kernel"
    return facts, kernel.tile


def multiply_tiles(
    lowering: MetalLowering, op: Op, *, of_tokens: bool, tokens: int, normalised: str | None = None
) -> str:
    """Adds the launches of an op's product by tiles; returns the buffer of its results, one for each choice.

    Args:
        lowering: of the phase.
        op: the op.
        of_tokens: whether x has a row for each token, and the results are the op's own.
        tokens: see `tiles_from`.
        normalised: the buffer of x after its norm; None: it is made here.
    """
    attrs, when = op.attrs_as(ExpertProduct), Condition(dim="tokens", minimum=tokens)
    facts = _facts(lowering, op, of_tokens=of_tokens)
    unpacked = facts.many_rows.unpacked
    with_mma = bool(unpacked.mma) and facts.activation.is_16_bit
    rows = ExpertRows(attrs.num_experts, attrs.top_k, of_tokens, "weights" in op.inputs)
    few = _few(lowering, op, facts) if lowering.phase == "decode" else _many(lowering, op, facts, rows)
    kernel: ProjectionKernel = few or (gemm_mma(facts, rows) if with_mma else gemm(facts, rows))
    count = len(lowering.pending)
    ordered = order_choices(lowering, _readers(lowering, op), kernel.tile, when)
    if isinstance(kernel, ExpertCodesKernel) and not of_tokens and len(lowering.pending) == count:
        kernel = replace(kernel, early=True)
    buffers = {"order": ordered.order, "tiles": ordered.tiles, "out": op.out}
    if with_mma or few:
        buffers["x"] = normalised or normalise(lowering, op, facts, kernel.tile, when)
    if isinstance(kernel, ExpertWideKernel):
        buffers |= numbers_of(lowering, op, kernel, buffers["x"], when)
    if not of_tokens:
        buffers["out"] = f"{op.name}.of_choices"
        shape = ("tokens", attrs.top_k * facts.out_features)
        lowering.scratch.append(Scratch(buffers["out"], shape, facts.epilogue.out))
    grid = (Extent(times=kernel.threadgroups), ordered.grid)
    chosen = facts.choice.sizes(UnpackedTiles, without=UnpackedTiles.names("min_rows"))
    if few:
        of_codes = isinstance(few, ExpertCodesKernel | ExpertWideKernel)
        choice = codes_choice(lowering, op, facts) if of_codes else facts.choice
        chosen = choice.sizes(MatrixTiles, without=MatrixTiles.names("min_rows", "max_rows"))
    lowering.emit(op, kernel, grid, buffers, when=when, chosen=chosen)
    return buffers["out"]


def sum_choices(lowering: MetalLowering, op: Op, results: str, tokens: int, total: str) -> None:
    """Adds the launch that sums the results of each token's choices, into the buffer `total`."""
    attrs, out = op.attrs_as(ExpertProduct), lowering.graph.value(op.out)
    epilogue = replace(lowering.epilogue_of(op), bias=None)
    skips = attrs.routed(lowering.graph.use(op)) > attrs.num_experts
    kernel = ExpertSumKernel("expert_sum", num_columns(out), attrs.top_k, skips, out.dtype, epilogue)
    grid = (Extent(times=kernel.threadgroups), Extent(dim="tokens"))
    lowering.emit(op, kernel, grid, {"x": results, "out": total}, when=Condition(dim="tokens", minimum=tokens))


def _facts(lowering: MetalLowering, op: Op, *, of_tokens: bool) -> ProjectionFacts:
    """The facts of an op's product with the weight of one expert; what follows its sum is left to the sum's launch."""
    attrs, facts = op.attrs_as(ExpertProduct), facts_of(lowering, op)
    epilogue = facts.epilogue if of_tokens else replace(facts.epilogue, residual=False, residual_scale=1.0)
    out = facts.layout.rows // epilogue.halves // attrs.num_experts
    label = "experts" if of_tokens else "experts_down"
    choice = lowering.table.choose(Site.of_weight(label, facts.layout, attrs.num_experts))
    return replace(facts, label=label, out_features=out, epilogue=epilogue, choice=choice)


def _readers(lowering: MetalLowering, op: Op) -> list[Op]:
    """The products of the choice of experts that an op reads or makes, in order."""
    graph, choice = lowering.graph, op.inputs.get("experts") or op.outputs["experts"]
    return [own for own in (graph.producer(choice), *graph.consumers(choice)) if own and "weight" in own.inputs]
