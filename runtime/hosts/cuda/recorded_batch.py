"""The batch of recorded steps, at places that stay the same, and what the steps choose, where the CPU sees it.

    tokens, batch -> mlxr_place -> [recorded launches] -> mlxr_fetch -> tokens

MLX launches what stands before and after, so steps keep their place among all that it computes. Steps that follow
others of the batch need neither: `mlxr_renew` copies what is new, from memory that the CPU writes. The kernels are in
templates/hosts/recorded_on_cuda.cuh, which says what they do.
"""

import ctypes
import functools
from collections import deque
from collections.abc import Sequence
from importlib.resources import files

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import FUNCTIONS, Event, GraphLaunch, LaunchGraph
from mlxr.runtime.hosts.cuda.packed import BoundInputs, Steady
from mlxr.runtime.hosts.cuda.recorded_calls import Call, Operand
from mlxr.runtime.hosts.cuda.recorded_memory import MOST_STEPS
from mlxr.runtime.hosts.likeliest import NUM_ASKED, Asked
from mlxr.runtime.hosts.mlx.bindable import bindable_shape, of_shape

PLACE, CHOOSE, FETCH, FETCH_LOGITS = "mlxr_place", "mlxr_choose", "mlxr_fetch", "mlxr_fetch_logits"
RENEW = "mlxr_renew"
CHOOSE_THREADS = 1024
MOST_LAUNCHES = 4
"""More than launches that are under way: whoever starts one waits for the one that was so many before."""
_THREADS = 256
_MOST_BLOCKS = 512
_STATE = 8  # numbers
_CHOOSING_BLOCKS = 128

Outputs = Sequence[tuple[tuple[int, ...], mx.Dtype]]


class RecordedBatch:
    """A place for batches of so many sequences and numbers.

    Attributes:
        memory: int32, all of it.
        numbers: [16] u32, what the kernels need to know of it.
        begins: the element at which each array begins, by the plan's buffer names.
        pinned: memory that the CPU sees. Graphs that write there keep it until they have ended.
        chosen: what its last steps have chosen, for the card.
        count: its steps until now.
    """

    def __init__(self, dims: Dims, inputs: BoundInputs, width: int) -> None:
        """Allocates it.

        Args:
            dims: of a step; its sequences have one token and one row of logits each.
            inputs: of a step.
            width: columns of the logits.
        """
        rows, num_moving, num_steady = dims["rows"], len(inputs.moving.numbers), len(inputs.steady.packed.numbers)
        sizes = (rows, num_moving, num_steady, MOST_STEPS * num_moving, _STATE, 2 * rows)
        begins = [0]
        for size in sizes:
            begins.append(begins[-1] + -(-size // 8) * 8)
        self._rows, self._num_moving, self.width = rows, num_moving, width
        self.memory = on_device(mx.zeros((begins[-1],), mx.int32))
        self.numbers = _numbers([*sizes[:3], *begins[1:5], width, MOST_STEPS, rows * width, begins[5]])
        self.pinned = PinnedMemory(4 * 2 * MOST_STEPS * rows)
        numbers = (ctypes.c_int32 * (2 * MOST_STEPS * rows)).from_address(self.pinned.address)
        self._seen = np.ctypeslib.as_array(numbers).reshape(2, MOST_STEPS, rows)
        self.chosen, self.count = self.pinned.seen, 0
        self.begins = {"token_ids": 0}
        self.begins |= {name: begins[1] + at.start for name, at in inputs.moving.places.items()}
        self.begins |= {name: begins[2] + at.start for name, at in inputs.steady.packed.places.items()}
        self._place_blocks = -(-max(*sizes[:4], 8) // _THREADS)
        self._steady: Steady | None = None  # what is there, and stays the same
        self._places = [begin - begins[1] + _STATE for begin in begins[1:4]]
        self._renewals = self._make_renewals(_STATE + begins[4] - begins[1], -(-max(*sizes[1:4], 8) // _THREADS))
        self._nothing = _numbers([])
        # Of each step its number, here for good: to make it when a step comes would wait for what the card computes.
        self._steps = on_device(mx.array(np.arange(MOST_STEPS, dtype=np.uint32)[:, None] + np.zeros(16, np.uint32)))

    @functools.cached_property
    def asked(self) -> PinnedMemory:
        """How rows draw their tokens in each step of the ring, for steps that do; see `Asked`."""
        return PinnedMemory(4 * NUM_ASKED * MOST_STEPS * self._rows)

    @functools.cached_property
    def _asked(self) -> Asked:
        numbers = (ctypes.c_uint32 * (NUM_ASKED * MOST_STEPS * self._rows)).from_address(self.asked.address)
        return np.ctypeslib.as_array(numbers).reshape(MOST_STEPS, self._rows, NUM_ASKED)

    @property
    def of_machine(self) -> list[PinnedMemory]:
        """The memory that the card reads and writes, and the CPU too."""
        return [self.pinned, *([self.asked] if "asked" in vars(self) else ())]

    def ask(self, asked: Asked) -> None:
        """Notes how rows draw their tokens in steps that are started next."""
        begin, count = self.count % MOST_STEPS, len(asked)
        whole = min(count, MOST_STEPS - begin)
        self._asked[begin : begin + whole] = asked[:whole]
        self._asked[: count - whole] = asked[whole:]

    def place(
        self, tokens: mx.array, moving: mx.array, inputs: BoundInputs, token: mx.array, turn: mx.array | None
    ) -> list[mx.array]:
        """Copies a batch there.

        Args:
            tokens: ids, [seqs] int32.
            moving: what moves of the first step.
            inputs: the others.
            token: the arena's.
            turn: of a step kernel.

        Returns:
            What comes before the step, and what moves in the step after it if each number is one more; lazy.
        """
        ahead, count = inputs.ahead, self._nothing
        if ahead is None:
            ahead = self._nothing
        else:
            count = _count(ahead.size)
        self._steady = inputs.steady
        turn, step = self._nothing if turn is None else turn, self._steps[self.count % MOST_STEPS]
        return _launch(
            PLACE,
            [tokens, moving, inputs.steady.on_gpu, ahead, count, step, self.numbers, token, turn, self.memory],
            [((8,), mx.uint32), (moving.shape, mx.int32)],
            self._place_blocks,
        )

    def _make_renewals(self, size: int, blocks: int) -> "deque[tuple[npt.NDArray[np.int32], LaunchGraph]]":
        """Of each launch under way, so many numbers that the CPU writes, and the graph that copies them."""
        given = PinnedMemory(4 * MOST_LAUNCHES * size)
        memory, numbers = np.array(address_table([self.memory, self.numbers])).tolist()[:2]
        written = np.ctypeslib.as_array((ctypes.c_int32 * (MOST_LAUNCHES * size)).from_address(given.address))
        function, found = FUNCTIONS.of(RENEW, recorded_image()), deque[tuple[npt.NDArray[np.int32], LaunchGraph]]()
        for i in range(MOST_LAUNCHES):
            launch = GraphLaunch(function, (blocks, 1, 1), _THREADS, [given.seen + 4 * i * size, numbers, memory])
            graph = LaunchGraph([launch], [self.memory, self.numbers, given])
            found.append((written[i * size : (i + 1) * size], graph))
        return found

    def renew(self, inputs: BoundInputs, stream: int, end: Event) -> None:
        """Copies what is new in the next steps there; they begin with the tokens that the last one has chosen.

        The launch that was `MOST_LAUNCHES` before has ended.

        Args:
            inputs: of the steps.
            stream: where they are started.
            end: after them.

        Raises:
            HostError: the driver refuses.
        """
        is_there = inputs.steady is self._steady
        if is_there and not inputs.new:
            return
        self._renewals.rotate()
        given, graph = self._renewals[0]
        moving, steady, ahead = self._places
        rows = inputs.rows_at_once
        given[:_STATE] = (self.count % MOST_STEPS, 0, len(rows) * self._num_moving, 0, not is_there, 0, 0, 0)
        given[moving : moving + self._num_moving] = inputs.moving.numbers
        if not is_there:
            numbers = inputs.steady.packed.numbers
            given[steady : steady + len(numbers)] = numbers
        if len(rows):
            given[ahead : ahead + len(rows) * self._num_moving].reshape(len(rows), -1)[...] = rows
        graph.launch(stream, end)
        self._steady = inputs.steady

    def fetch(self, token: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """What the next step has there: tokens, and what moves; and the arena's token after the steps. Lazy.

        Args:
            token: the arena's, before the steps.
        """
        shapes = [bindable_shape((self._rows,)), (self._num_moving,)]
        outputs = [*((shape, mx.int32) for shape in shapes), ((8,), mx.uint32)]
        blocks = -(-max(self._rows, self._num_moving, 8) // _THREADS)
        tokens, moving, last = _launch(FETCH, [self.memory, self.numbers, token], outputs, blocks)
        return of_shape(tokens, (self._rows,)), moving, last

    def read(self, first: int, steps: int) -> npt.NDArray[np.int32]:
        """What some of the last steps have chosen, once they have ended: [2, steps, rows], see `mlxr_choose`.

        Later steps write there.
        """
        begin = first % MOST_STEPS
        if begin + steps <= MOST_STEPS:
            return self._seen[:, begin : begin + steps]
        return self._seen[:, [step % MOST_STEPS for step in range(first, first + steps)]]

    def fetch_logits(self, logits: mx.array, token: mx.array) -> tuple[mx.array, mx.array]:
        """A step's logits, [rows, width] f32, given the arena's token before it; and the token after it. Lazy."""
        return fetch_logits(logits, self.numbers, token, (self._rows, self.width))


def fetch_logits(
    logits: mx.array, numbers: mx.array, token: mx.array, shape: tuple[int, int]
) -> tuple[mx.array, mx.array]:
    """See `RecordedBatch.fetch_logits`; `numbers` is that of `numbers_of_logits` or of a batch."""
    outputs = [(bindable_shape(shape), mx.float32), ((8,), mx.uint32)]
    blocks = max(1, min(_MOST_BLOCKS, -(-shape[0] * shape[1] // _THREADS)))
    out, last = _launch(FETCH_LOGITS, [logits, numbers, token], outputs, blocks)
    return of_shape(out, shape), last


def numbers_of_logits(rows: int, width: int) -> mx.array:
    """What `fetch_logits` needs to know, where there is no batch for decode steps."""
    return _numbers([rows, *[0] * 6, width, MOST_STEPS, rows * width])


def numbers_of_choice(width: int) -> tuple[mx.array, int]:
    """The same for `CHOOSE` of one row that is in no batch; and how many numbers of zero are in its place."""
    state, words = 8, 8 + _STATE
    return _numbers([1, 0, 0, *[words] * 3, state, width, 1, width, words]), words + 8


def choosing_grid(rows: int, width: int) -> tuple[int, int, int]:
    """The threadgroups of `CHOOSE`: rows, and parts of a row, each at least a number for each of a block's threads."""
    return rows, max(1, min(_CHOOSING_BLOCKS // rows, width // (4 * CHOOSE_THREADS))), 1


def choose_call(operands: Sequence[Operand], rows: int, width: int, *, waits: bool) -> Call:
    """The launch of `CHOOSE`; `waits` is as `GraphLaunch` has it."""
    return Call(CHOOSE, recorded_image(), choosing_grid(rows, width), CHOOSE_THREADS, operands, waits=waits)


@functools.cache
def recorded_image() -> bytes:
    """The image of the kernels.

    Raises:
        HostError: they do not compile.
    """
    text = files("mlxr.templates").joinpath("hosts/recorded_on_cuda.cuh").read_text("utf-8")
    return build_cubin("mlxr_recorded", text, architecture())


def _launch(name: str, inputs: list[mx.array], outputs: Outputs, blocks: int) -> list[mx.array]:
    return mx.fast.precompiled_cuda_kernel(
        name=name,
        compiled_source=recorded_image(),
        inputs=inputs,
        output_shapes=[shape for shape, _ in outputs],
        output_dtypes=[dtype for _, dtype in outputs],
        scalars=[],
        grid=(blocks * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        ensure_row_contiguous=False,
    )


def _numbers(numbers: list[int]) -> mx.array:
    return on_device(mx.array(np.array(numbers + [0] * (16 - len(numbers)), np.uint32)))


@functools.lru_cache(maxsize=256)
def _count(count: int) -> mx.array:
    """Lazy: nobody waits for it."""
    return mx.array(np.array([count] + [0] * 15, np.uint32)) | 0
