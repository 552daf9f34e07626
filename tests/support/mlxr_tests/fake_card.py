"""A fake NVIDIA GPU: host cuda runs on any machine, and sim executes its launches."""

import ctypes
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import ATTENDED, Artifact, decode_dims
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import make_step_program, step_classes
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram
from mlxr.runtime.hosts.cuda import (
    address_table,
    decode_steps,
    drawing,
    launch_graph,
    prompt_choice,
    recorded_batch,
    recorded_products,
    recorded_prompts,
    recorded_step,
    recording,
    step_kernel,
)
from mlxr.runtime.hosts.cuda import host as cuda_host
from mlxr.runtime.hosts.cuda.cleared_memory import Clearing
from mlxr.runtime.hosts.cuda.drawing import DRAW, cluster_of
from mlxr.runtime.hosts.cuda.launch_graph import GraphLaunch
from mlxr.runtime.hosts.cuda.matrix_library import WORKSPACE_BYTES, ProductLaunch
from mlxr.runtime.hosts.cuda.occupancy import Residency
from mlxr.runtime.hosts.cuda.recorded_batch import CHOOSE, FETCH, FETCH_LOGITS, PLACE, RENEW
from mlxr.runtime.hosts.cuda.recorded_products import FINISH, NORM
from mlxr.runtime.hosts.likeliest import NUM_ASKED
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.fake_products import beside, multiply
from mlxr_tests.kernel_host import sim_kernel

_WORKED_BYTES = 1 << 16
"""Of the memory that products may work in; enough to reach what begins there by mistake."""
_STORES = (*ATTENDED, CONV_STATES, STATES)


def use_card(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, launch: Any) -> None:
    """Makes MLX look as if it had a card that runs launches with `launch`."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    info = {"architecture": "sm_90", "compute_capability_major": 9, "compute_capability_minor": 0}
    monkeypatch.setattr(mx, "device_info", lambda *_: info)
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", launch)

    def build(sources: dict[str, str], architecture: str, _: Any) -> dict[str, bytes]:
        assert architecture == "sm_90a"
        for name, text in sources.items():
            header, body = artifact.kernel_sections(name)
            assert header in text and body in text, "the card must get the artifact's text"
        return dict.fromkeys(sources, b"")

    def build_step(name: str, text: str, architecture: str) -> bytes:
        assert name in text and architecture == "sm_90a"
        return b""

    monkeypatch.setattr(address_table, "build_cubin", lambda *_: b"")
    monkeypatch.setattr(cuda_host, "build_cubins", build)
    monkeypatch.setattr(cuda_host, "activated", None)
    monkeypatch.setattr(step_kernel, "build_cubin", build_step)
    monkeypatch.setattr(decode_steps, "why_unknown", lambda: None)
    monkeypatch.setattr(step_kernel, "residency", lambda *_: Residency(3, 2))


class SimLauncher:
    """Stands in for `mx.fast.precompiled_cuda_kernel`; sim executes launches at once."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.uploads = 0
        self.uploaded = list[int]()
        self.recorded: Counter[str] = Counter()
        self.overlapping: Counter[str] = Counter()
        self._by_address: dict[int, mx.array] = {}

    def __call__(
        self,
        *,
        name: str,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[Any],
        ensure_row_contiguous: bool,
        **_: Any,
    ) -> list[mx.array]:
        assert not ensure_row_contiguous, "a contiguous copy of the arena would swallow its writes"
        if name == address_table.NAME:
            mx.eval(*inputs)
            addresses = {SimBuffer.of(array, writable=False).address: array for array in inputs}
            self._by_address |= addresses
            return [mx.array(np.array([SimBuffer.of(array, writable=False).address for array in inputs], np.uint64))]
        if name in (PLACE, FETCH, FETCH_LOGITS):
            self.recorded[name] += 1
            results = self._beside_recorded(name, inputs)
            return [mx.array(np.resize(array, shape)) for array, shape in zip(results, output_shapes, strict=True)]
        if name.startswith("step_"):
            return self._step(inputs, output_shapes, output_dtypes)
        kernel = sim_kernel(self.artifact.kernel_text(name))
        outputs = [mx.full(shape, 7, dtype=dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        mx.eval(*inputs, *outputs)
        buffers = [
            SimBuffer.of(array, writable=i >= len(inputs) or param.name in _STORES, name=param.name)
            for i, (array, param) in enumerate(zip([*inputs, *outputs], kernel.params, strict=True))
        ]
        groups = tuple(g // t for g, t in zip(grid, threadgroup, strict=True))
        kernel.launch(buffers, (groups[0], groups[1], groups[2]), threadgroup)
        return outputs

    def record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes steps recorded ones, whose graph sim runs when it is launched."""
        names: list[str] = []

        def function(_: object, name: str, image: bytes, pool: int = 0, cluster: int = 1) -> int:
            names.append(name)
            return len(names) - 1

        uploaded = self.uploaded

        def graph(
            launches: Sequence[GraphLaunch | ProductLaunch], _: object, clearing: Clearing | None = None
        ) -> SimpleNamespace:
            has_products = any(isinstance(launch, ProductLaunch) for launch in launches)
            assert clearing is not None or not has_products, "the driver would clear memory between products"
            return SimpleNamespace(launch=lambda stream, end: run(launches), upload=uploaded.append)

        def run(launches: Sequence[GraphLaunch | ProductLaunch]) -> None:
            for launch in launches:
                if isinstance(launch, ProductLaunch):
                    self.recorded["product"] += 1
                    self._work(launch)
                    multiply(launch)
                    continue
                function, grid, threads, addresses, *_ = launch
                self.recorded[names[function]] += 1
                self.overlapping[names[function]] += launch.waits
                if names[function].startswith((NORM, FINISH)):
                    beside(names[function], grid[0], addresses)
                elif names[function] == CHOOSE:
                    arrays = [self._array_at(address) for address in addresses[:3]]
                    choose(*arrays, pinned[addresses[3]], grid[0])
                elif names[function] == DRAW:
                    arrays = [self._array_at(address) for address in addresses[:3]]
                    rows = grid[0] // cluster_of(int(arrays[1][0]))
                    draw(*arrays, pinned[addresses[3]], pinned[addresses[4]].reshape(-1, rows, NUM_ASKED))
                elif names[function] == RENEW:
                    begin = max(begin for begin in pinned if begin <= addresses[0])
                    renew(pinned[begin][(addresses[0] - begin) // 4 :], *map(self._array_at, addresses[1:]))
                elif names[function].startswith("step_"):
                    self._recorded_step(names[function], addresses)
                else:
                    kernel = sim_kernel(self.artifact.kernel_text(names[function]))
                    buffers = [
                        self._at(address, param.name, addresses)
                        for address, param in zip(addresses, kernel.params, strict=True)
                    ]
                    kernel.launch(buffers, grid, (threads, 1, 1))

        pinned: dict[int, np.ndarray] = {}

        def pin(size_bytes: int) -> SimpleNamespace:
            numbers = np.zeros(size_bytes // 4, np.uint32)
            pinned[numbers.ctypes.data] = numbers
            return SimpleNamespace(address=numbers.ctypes.data, seen=numbers.ctypes.data)

        class Sent:
            def __init__(self, count: int) -> None:
                self.count = count

            def send(self, numbers: np.ndarray, address: int, stream: int) -> None:
                assert len(numbers) <= self.count
                ctypes.memmove(address, numbers.ctypes.data, numbers.nbytes)

        event = SimpleNamespace(record=lambda stream: None, wait=lambda: None, has_ended=False)
        for module in (recorded_batch, prompt_choice):
            monkeypatch.setattr(module, "PinnedMemory", pin)
        for module in (recorded_step, recorded_prompts, prompt_choice):
            monkeypatch.setattr(module, "Event", lambda: event)
        for module in (recorded_step, recorded_prompts):
            monkeypatch.setattr(module, "mlx_stream", lambda: 1)
        for module in (recorded_batch, recorded_step, recorded_prompts, prompt_choice):
            monkeypatch.setattr(module, "LaunchGraph", graph)
        monkeypatch.setattr(recorded_prompts, "SentNumbers", Sent)
        monkeypatch.setattr(recorded_products, "products_image", lambda _: b"")
        for module in (recorded_batch, drawing):
            monkeypatch.setattr(module, "build_cubin", lambda *_: b"")
        for module in (recorded_step, recording):
            monkeypatch.setattr(module, "overlap", lambda: True)
        monkeypatch.setattr(launch_graph.Functions, "of", function)

    def _work(self, launch: ProductLaunch) -> None:
        """Writes where the library may work, which is memory of its own: no operand of the product lies there."""
        end, room = launch.workspace + WORKSPACE_BYTES, self._at(launch.workspace, "", ())
        assert room.size_bytes >= WORKSPACE_BYTES, "all of it is in an array"
        assert not any(launch.workspace <= place < end for place in launch[1:-1]), "the library may write there"
        ctypes.memset(launch.workspace, 0xFF, _WORKED_BYTES)  # NaN

    def _at(self, address: int, name: str, addresses: Sequence[int]) -> SimBuffer:
        """Memory from an address on, to the next of a launch's addresses or the end of the array that it is of."""
        begin = max(begin for begin in self._by_address if begin <= address)
        whole = SimBuffer.of(self._by_address[begin], writable=True, name=name)
        end = min(begin + whole.size_bytes, *(other for other in addresses if other > address), 1 << 63)
        assert address < end, "it is in an array"
        return SimBuffer(address, end - address, True, name, whole)

    def _array_at(self, address: int) -> np.ndarray:
        """The same as numbers of 32 bits."""
        buffer = self._at(address, "", ())
        return np.ctypeslib.as_array((ctypes.c_uint32 * (buffer.size_bytes // 4)).from_address(address))

    def _recorded_step(self, name: str, addresses: Sequence[int]) -> None:
        """Runs a step kernel whose results are at given addresses."""
        (entry,) = (entry for entry in self.artifact.plan.first.step_kernels if entry.name == name)
        count = len(entry.inputs) + bool(entry.weights)
        inputs = [self._at(address, "", addresses) for address in addresses]
        sizes = [buffer.size_bytes for buffer in inputs]
        program = make_step_program(self.artifact.plan.first, entry.counts)
        table = self._array_at(addresses[len(entry.inputs)]).view(np.uint64)
        rows = int(self._array_at(addresses[entry.inputs.index("dims")])[0]) if "dims" in entry.inputs else 1
        places = dict(zip(entry.inputs, inputs, strict=False))
        for weight, address in zip(entry.weights, table.tolist(), strict=False):
            places[weight] = self._at(address, weight, ())
        places |= dict(zip(entry.outputs, inputs[count + 3 :], strict=False))
        assert len(sizes) == count + 3 + len(entry.outputs) + 1, "gate, mask, turn; the next turn"
        for launch in program.running(int(self._array_at(addresses[count + 1])[0])):
            self._run_inside(launch, launch.threadgroups(decode_dims(rows, 1)), places)

    def _beside_recorded(self, name: str, inputs: Sequence[mx.array]) -> list[mx.array]:
        """What the kernels of recorded_on_cuda.cuh do before and after the graph."""
        mx.eval(*inputs)
        arrays = [np.array(array, copy=False).reshape(-1) for array in inputs]
        if name == PLACE:
            tokens, moving, steady, ahead, num_ahead, step, numbers, token, _, batch = arrays
            state = np.array([step[0], 0, num_ahead[0], *[0] * 5], np.int32)
            places = [(0, tokens, numbers[0]), (numbers[3], moving, numbers[1]), (numbers[4], steady, numbers[2])]
            for begin, part, count in (*places, (numbers[5], ahead, num_ahead[0]), (numbers[6], state, 8)):
                assert len(part) >= count
                batch[begin : begin + count] = part[:count].view(np.int32)
            assert len(moving) == numbers[1]
            return [mx.array(token), mx.array(moving + 1)]
        if name == FETCH_LOGITS:
            logits, numbers, token = arrays
            return [mx.array(logits[: numbers[9]]), mx.array(token)]
        batch, numbers, token = arrays
        return [mx.array(batch[: numbers[0]]), mx.array(batch[numbers[3] :][: numbers[1]]), mx.array(token)]

    def _step(
        self, inputs: Sequence[mx.array], output_shapes: Sequence[tuple[int, ...]], output_dtypes: Sequence[Any]
    ) -> list[mx.array]:
        """Runs the program of a step kernel, one launch after the other."""
        rows = output_shapes[0][0]
        program = self._program_of(rows)
        entry = next(entry for entry in self.artifact.plan.first.step_kernels if rows in entry.counts)
        *bound, gate, mask, turn = inputs
        if entry.weights:
            *bound, table = bound
            bound += [self._by_address[int(address)] for address in np.array(table)[: len(entry.weights)]]
        names = (*entry.inputs, *entry.weights)
        results = [
            np.full(s, 7, np.uint32 if d == mx.uint32 else np.float32)
            for s, d in zip(output_shapes, output_dtypes, strict=True)
        ]
        mx.eval(*inputs)
        assert gate.size and len(bound) == len(names) and len(results) == len(program.outputs) + 1
        assert {*names} == {*program.inputs}, "each is given, or its address"
        memory: dict[str, Any] = dict(zip((*names, *program.outputs), [*bound, *results], strict=False))
        for launch in program.running(int(mask[0])):
            self._run_inside(launch, launch.threadgroups(decode_dims(rows, 1)), memory)
        results[-1][...] = np.array(turn) + 1
        return [mx.array(array) for array in results]

    def _program_of(self, rows: int) -> StepProgram:
        plan = self.artifact.plan
        (counts,) = (counts for counts in step_classes(plan.first, plan.arena.max_sequences) if rows in counts)
        return make_step_program(plan.first, counts)

    def _run_inside(self, launch: StepLaunch, grid: tuple[int, int, int], memory: dict[str, Any]) -> None:
        kernel = sim_kernel(self.artifact.kernel_text(launch.kernel.name))
        buffers = []
        for i, (place, param) in enumerate(zip(launch.operands, kernel.params, strict=True)):
            whole = memory[place.argument]
            if not isinstance(whole, SimBuffer):
                whole = SimBuffer.of(whole, writable=True, name=param.name)
            size = min(place.size_bytes, whole.size_bytes - place.offset_bytes)
            writable = i >= launch.num_inputs or place.argument in _STORES
            buffers.append(SimBuffer(whole.address + place.offset_bytes, size, writable, param.name, whole))
        kernel.launch(buffers, grid, (launch.kernel.threads, 1, 1))


def choose(logits: np.ndarray, numbers: np.ndarray, batch: np.ndarray, chosen: np.ndarray, rows: int) -> None:
    """What mlxr_choose does."""
    words = batch[numbers[10] :][: 2 * rows]
    assert len(words) == 2 * rows and not words.any(), "nothing else lies where rows have their greatest logits"
    by_row = logits[: rows * numbers[7]].view(np.float32).reshape(rows, -1)
    _take(by_row.argmax(1), by_row, numbers, batch, chosen)


def draw(logits: np.ndarray, numbers: np.ndarray, batch: np.ndarray, chosen: np.ndarray, asked: np.ndarray) -> None:
    """What mlxr_draw does; weights take the place of logits."""
    rows, most = asked.shape[1], int(numbers[8])
    assert len(asked) == most, "one of each step that has room"
    by_row = logits[: rows * numbers[7]].view(np.float32).reshape(rows, -1)
    drawn = [drawn_of(row, *of_row) for row, of_row in zip(by_row, asked[batch[numbers[6]] % most], strict=True)]
    greatest = by_row.copy()
    by_row[...] = 0
    _take(np.array(drawn), greatest, numbers, batch, chosen)


def drawn_of(
    logits: np.ndarray,
    uniform: np.uint32,
    temperature: np.uint32,
    min_p: np.uint32,
    top_p: np.uint32,
    top_k: np.uint32,
    is_greedy: np.uint32,
    *_: np.uint32,
) -> int:
    """The token that mlxr_draw draws of a row of logits, by the numbers of `Asked`."""
    if is_greedy or not np.isfinite(logits.max()):
        return int(logits.argmax())
    uniform, temperature, min_p, top_p = np.array([uniform, temperature, min_p, top_p], np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits.max()) / temperature)
    weights[weights < min_p] = 0
    falling = np.argsort(-weights, kind="stable")
    weights[falling[top_k or len(weights) :]] = 0
    sums = _whole(weights[falling]).cumsum()
    if top_p < 1:
        enough = max(1, int(np.ceil(float(top_p) * float(sums[-1]))))
        weights[falling[int((sums < enough).sum()) + 1 :]] = 0
    sums = _whole(weights).cumsum()
    return int((sums > min(int(float(uniform) * float(sums[-1])), int(sums[-1]) - 1)).argmax())


def _whole(weights: np.ndarray) -> np.ndarray:
    return (weights.astype(np.float64) * 2.0**44).astype(np.uint64)


def _take(tokens: np.ndarray, by_row: np.ndarray, numbers: np.ndarray, batch: np.ndarray, chosen: np.ndarray) -> None:
    """What the last launch of a step does once it has chosen tokens."""
    rows, (num_moving, moving_at, ahead_at, state_at, most) = len(tokens), (int(numbers[i]) for i in (1, 3, 5, 6, 8))
    state, moving = batch[state_at:], batch[moving_at:][:num_moving]
    batch[:rows] = tokens
    chosen = chosen.reshape(2, most, rows)
    chosen[0, state[0] % most], chosen[1, state[0] % most] = batch[:rows], by_row.max(1).view(np.uint32)
    state[0], state[3] = state[0] + 1, state[3] + 1
    is_ahead = (state[3] + 1) * num_moving <= state[2]
    moving[:] = batch[ahead_at + state[3] * num_moving :][:num_moving] if is_ahead else moving + 1


def renew(given: np.ndarray, numbers: np.ndarray, batch: np.ndarray) -> None:
    """What mlxr_renew does."""
    num_moving, num_steady, moving, steady, ahead, state = (int(number) for number in numbers[1:7])
    for begin, count in ((moving, num_moving), (steady, num_steady * given[4]), (ahead, given[2])):
        batch[begin : begin + count] = given[8 + begin - moving :][:count]
    batch[state : state + 8] = given[:8]


class Sums:
    """Stands in for `mx.fast.precompiled_cuda_kernel`: launches are lazy sums, which MLX may trace.

    Attributes:
        calls: names of the kernels that were launched or traced.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, *, name: str, inputs: Any, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        """Launches a kernel."""
        self.calls.append(name)
        return sums(inputs, output_shapes, output_dtypes)


def sums(inputs: Sequence[mx.array], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> list[mx.array]:
    """The outputs of a launch, filled with the sum of its inputs' first numbers.

    `mx.compile` must not fuse any two of these ops, because MLX runs a C++ compiler for each new chain of fused ops.
    """
    firsts = [x.reshape(-1)[:1].astype(mx.float32) for x in inputs]
    total = mx.sum(mx.concatenate([*firsts, mx.zeros(1)]))
    as_types = [mx.contiguous(total.astype(dtype)) for dtype in dtypes]
    return [mx.contiguous(mx.broadcast_to(x, shape)) for x, shape in zip(as_types, shapes, strict=True)]
