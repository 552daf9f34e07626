"""The card's memory that recorded steps have to themselves: known before a model is loaded, so that the arena fits.

Results of launches lie where the plan places the activations of a phase; MLX has others for what it launches. Steps of
prompts have their numbers before these, and behind them what matrix products need beside buffers.
"""

from heapq import nlargest

from mlxr.compiler.artifact import ARENA_TOKEN, MatmulCall, Phase, Plan, StepKernelEntry
from mlxr.runtime.hosts.cuda.matrix_library import WORKSPACE_BYTES
from mlxr.runtime.hosts.cuda.packed import DecodeInputs
from mlxr.runtime.hosts.cuda.recorded_calls import NORMED, SUMS, WORKSPACE
from mlxr.runtime.hosts.cuda.recorded_products import beside_bytes
from mlxr.runtime.hosts.cuda.traces import MOST
from mlxr.runtime.hosts.mlx.padding import all_table_columns

MOST_STEPS = 96
"""Steps whose numbers a batch has room for: those of a launch, and as many that have not been read before."""
_ALIGNMENT = 256  # bytes, as MLX has it
_TOKEN_BYTES = 32
_SMALL_ARRAYS = 6
"""Arrays of about a number a sequence that do not move: where queries begin, rows of logits, tables of states, ..."""
_PADDING, _GAP = 8, 3  # numbers between arrays of a batch, and between those of a step that is ahead
_BY_TOKEN = ("positions", "slots", "token_types", "adapter_ids")
_MOST_NODES = 3  # of a matrix product of a prompt, with what stands around it
_MORE_PROMPTS = 32
_NODE_BYTES = 2304
"""What the driver takes for a launch of a graph: 1.6 to 2.2 KiB with 120 to 400 of them (H200, driver 580)."""

Places = dict[str, int]
"""The first byte of each result, by the plan's names."""


def is_recorded(plan: Plan) -> bool:
    """Whether steps of a plan may be recorded at all: of a whole model, of which the CPU writes no weight."""
    return not (plan.is_part or any(weight.is_of_adapters for weight in plan.weights))


def places_of_launches(phase: Phase) -> tuple[Places, int]:
    """Where the results of a phase's launches lie, for batches of any size, and how much memory that is."""
    places = {buffer.name: buffer.offset_bytes for buffer in phase.buffers}
    tokens = dict.fromkeys(name for launch in phase.launches for name in launch.outputs if name not in places)
    end = phase.activation_bytes
    for name in (ARENA_TOKEN, *tokens):
        places[name] = end
        end += _ALIGNMENT
    return places, end


def places_of_kernel(entry: StepKernelEntry, width: int, rows: int) -> tuple[Places, int]:
    """The same of a step kernel whose logits have so many columns, for so many sequences."""
    logits, token, scratch = entry.outputs
    sizes = {"turn": 0, "turn_out": 0, token: 0, scratch: entry.scratch_bytes, logits: 4 * rows * width}
    places, end = Places(), 0
    for name, size in sizes.items():
        places[name] = end
        end += -(-max(size, _TOKEN_BYTES) // _ALIGNMENT) * _ALIGNMENT
    places[ARENA_TOKEN] = places[token]
    return places, end


def result_bytes(plan: Plan) -> int:
    """Memory for the results of any recorded step of a plan; they run one after the other."""
    program = plan.program("metal")
    sizes = [places_of_launches(program.phase("decode"))[1]]
    sizes += [places_of_kernel(entry, plan.own_columns, entry.last_count)[1] for entry in program.step_kernels]
    return max(sizes)


def batch_bytes(plan: Plan) -> int:
    """Memory for the batches of as many recorded steps as are kept, of the largest ones."""
    launches = plan.program("metal").phase("decode").launches
    read = [name.partition(".")[0] for name in {name for launch in launches for name in launch.inputs}]
    moving = sum(name == "slots" or name in DecodeInputs.MOVING for name in read)
    columns, tables = all_table_columns(plan.arena.max_blocks_per_sequence), read.count("block_tables")

    def numbers(rows: int, width: int) -> int:
        of_one, ahead = 3 + moving + _SMALL_ARRAYS, MOST_STEPS * moving * (rows + _GAP)
        return (rows + _PADDING) * of_one + ahead + tables * (rows * width + _PADDING)

    counts = range(1, plan.arena.max_sequences + 1)
    return 4 * sum(nlargest(MOST, (numbers(rows, width) for rows in counts for width in columns)))


def prompt_numbers(plan: Plan) -> int:
    """The most numbers that a step of prompts reads of its batch."""
    launches = plan.program("metal").phase("prefill").launches
    read = [name.partition(".")[0] for name in {name for launch in launches for name in launch.inputs}]
    by_token = 1 + sum(name in _BY_TOKEN for name in read)
    seqs, widest = plan.arena.max_sequences, plan.arena.max_blocks_per_sequence
    tables = read.count("block_tables") * widest + (plan.arena.state_columns or 0) + _SMALL_ARRAYS
    tiles = -(-plan.max_tokens // plan.query_tile) + seqs
    by_row = plan.max_rows + _PADDING  # which tokens give logits or hidden rows: of an encoder all of them
    return by_token * (plan.max_tokens + _PADDING) + by_row + 2 * tiles + (seqs + _PADDING) * tables


def places_of_prompt(plan: Plan) -> tuple[Places, int]:
    """Where the results of a recorded step of prompts lie, for batches of any size, and how much memory that is."""
    program = plan.program("metal")
    phase, begin = program.phase("prefill"), _aligned(4 * prompt_numbers(plan))
    places, end = places_of_launches(phase)
    multiplies = any(isinstance(launch.body, MatmulCall) for each in program.phases for launch in each.launches)
    sizes = (*beside_bytes(phase, plan.max_tokens), WORKSPACE_BYTES if multiplies else 0)
    for name, size in zip((NORMED, SUMS, WORKSPACE), sizes, strict=True):
        places[name] = _aligned(end)
        end = places[name] + size
    return {name: begin + place for name, place in places.items()}, begin + end


def context_borders(phase: Phase) -> list[int]:
    """The contexts from which on another condition of a phase's launches holds, or one holds no longer."""
    parts = [part for launch in phase.launches for part in launch.conditions if part.dim == "context"]
    ends = [part.maximum + 1 for part in parts if part.maximum is not None]
    return sorted({*ends, *(part.minimum for part in parts)})


def graph_bytes(plan: Plan) -> int:
    """Memory that the driver takes for graphs of steps that are kept: of decode with tokens chosen, and without."""
    program = plan.program("metal")
    phase = program.phase("decode")
    as_one = {count for entry in program.step_kernels for count in entry.counts}
    counts = range(1, plan.arena.max_sequences + 1)
    nodes = (
        2 if count in as_one else len(phase.launches) + 1 for count in counts for _ in (0, *context_borders(phase))
    )
    return _NODE_BYTES * 2 * sum(nlargest(MOST, nodes)) + prompt_graph_bytes(plan)


def prompt_graph_bytes(plan: Plan) -> int:
    """The same for graphs of prompts alone."""
    launches = plan.program("metal").phase("prefill").launches
    nodes = sum(_MOST_NODES if isinstance(launch.body, MatmulCall) else 1 for launch in launches)
    return _NODE_BYTES * nodes * most_prompts(plan)


def most_prompts(plan: Plan) -> int:
    """How many steps of prompts are kept as graphs: one of each padded size, and some that came twice."""
    return len(plan.padded_sizes) + _MORE_PROMPTS


def recorded_bytes(plan: Plan) -> int:
    """All of it, at most; 0: no step of the plan is recorded."""
    if not is_recorded(plan):
        return 0
    return result_bytes(plan) + batch_bytes(plan) + places_of_prompt(plan)[1] + graph_bytes(plan)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
