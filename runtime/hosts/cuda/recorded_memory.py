"""The card's memory that recorded steps have to themselves: known before a model is loaded, so that the arena fits.

Results of launches lie where the plan places the activations of a decode step; MLX has others for what it launches.
"""

from heapq import nlargest

from mlxr.compiler.artifact import ARENA_TOKEN, Phase, Plan, StepKernelEntry
from mlxr.runtime.hosts.cuda.packed import DecodeInputs
from mlxr.runtime.hosts.cuda.traces import MOST
from mlxr.runtime.hosts.mlx.padding import all_table_columns

MOST_STEPS = 16
"""Steps whose numbers a batch has room for."""
_ALIGNMENT = 256  # bytes, as MLX has it
_TOKEN_BYTES = 32
_SMALL_ARRAYS = 6
"""Arrays of about a number a sequence that do not move: where queries begin, rows of logits, tables of states, ..."""
_PADDING = 8

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
        of_one = 1 + (1 + MOST_STEPS) * moving + _SMALL_ARRAYS
        return (rows + _PADDING) * of_one + tables * (rows * width + _PADDING)

    counts = range(1, plan.arena.max_sequences + 1)
    return 4 * sum(nlargest(MOST, (numbers(rows, width) for rows in counts for width in columns)))


def recorded_bytes(plan: Plan) -> int:
    """All of it, at most; 0: no step of the plan is recorded."""
    return result_bytes(plan) + batch_bytes(plan) if is_recorded(plan) else 0
