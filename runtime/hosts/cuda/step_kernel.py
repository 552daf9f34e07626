"""Step kernels, each of which runs a whole decode step of certain numbers of sequences, and their launch.

The artifact has their texts; what depends on the card is decided here. The blocks of a step kernel wait for each other,
so all of them must be on the GPU at once. As many are launched as fit, by the driver's count. Two step kernels must not
run at the same time, since each could wait for a place that the other occupies. So every step kernel of this process
takes a `turn` and makes the next one, which puts them in order.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakSet

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import LAYERS, Artifact, CollectiveCall, Plan, StepKernelEntry
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.hosts.binding import Dims, grid_of
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.build import build_cubin, with_prelude
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.occupancy import residency
from mlxr.runtime.hosts.mlx.bindable import bindable_shape
from mlxr.runtime.hosts.mlx.launcher import MlxKernel

LauncherOf = Callable[[str, bytes, int], MlxKernel]

OLDEST = 80
"""Oldest compute capability (times ten) that step kernels run on."""


@dataclass(frozen=True)
class StepImage:
    """A compiled step kernel: its entry in the plan, and the image that the driver loads."""

    entry: StepKernelEntry
    content: bytes


class StepKernel:
    """A decode step in one launch.

    Mutable state: `turn`, which the caller replaces with each step.

    Attributes:
        entry: its entry in the plan; its launches are counted under its name.
        width: columns of the logits that it makes.
        blocks: the blocks of its grid.
        image: the compiled kernel.
        turn: u32[8], the output of the last step kernel of this process; the next one takes it.
        order: the lock to be held from taking a turn until the next turn is stored. Who fails in between forgets turns.
        models: the step kernels of each model of this process.
    """

    models: ClassVar[WeakSet[object]] = WeakSet()
    turn: ClassVar[mx.array | None] = None
    order: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, entry: StepKernelEntry, plan: Plan, launch: MlxKernel, blocks: int, image: bytes) -> None:
        """Allocates what a step needs besides the host's arrays.

        Args:
            entry: its entry in the plan.
            plan: the plan whose decode step it runs.
            launch: launches the kernel.
            blocks: the blocks of its grid, all of which are on the GPU at once.
            image: the compiled kernel.
        """
        self.entry = entry
        self._launches, self.width = plan.program("metal").phase("decode").launches, plan.own_columns
        self._launch, self.blocks, self.image = launch, blocks, image
        self._gate = on_device(mx.zeros((8,), dtype=mx.uint32))
        self._masks: dict[int, mx.array] = {}
        self._table: list[mx.array] = []

    def hold(self, arrays: Mapping[str, mx.array]) -> None:
        """Notes where the weights are that it is not given in each step. They stay there as long as anybody has them.

        Args:
            arrays: weights, by the plan's buffer names; the caller keeps them until no step runs any more.
        """
        if self.entry.weights:
            self._table = [address_table([arrays[name] for name in self.entry.weights])]

    @classmethod
    def load(cls, image: StepImage, plan: Plan, launcher: LauncherOf) -> "StepKernel":
        """A compiled kernel, ready to launch on this GPU.

        Args:
            image: the compiled kernel.
            plan: the plan whose decode step it runs.
            launcher: makes a launcher from a name, an image and the shared memory that a launch asks for.

        Raises:
            NoStepKernelError: it does not fit the GPU.
        """
        blocks = resident_blocks(image)
        launch = launcher(image.entry.name, image.content, image.entry.pool_bytes)
        return cls(image.entry, plan, launch, blocks, image.content)

    def takes(self, dims: Dims) -> bool:
        """Whether it runs a decode step of these dims."""
        return self.entry.takes(dims)

    @classmethod
    def take_turn(cls) -> mx.array:
        """The turn that the last step kernel made, for the next one to bind."""
        if cls.turn is None:
            cls.turn = on_device(mx.zeros((8,), dtype=mx.uint32))
        return cls.turn

    def run(self, arrays: Mapping[str, mx.array], layers: mx.array, dims: Dims, turn: mx.array) -> tuple[mx.array, ...]:
        """Launches the kernel.

        Args:
            arrays: arena, batch and weights, by the plan's buffer names.
            layers: [layers, 8] u32, the constants of all layers.
            dims: the dims of the batch.
            turn: the turn of the last step kernel.

        Returns:
            Logits [rows, vocab] f32, the arena's new token and the next turn.
        """
        entry = self.entry
        inputs = [arrays[each] if isinstance(each, str) else each for each in self.inputs(layers, dims)]
        logits, token, _, after = self._launch(
            inputs=[*inputs, turn],
            grid=(self.blocks * entry.threads, 1, 1),
            threadgroup=(entry.threads, 1, 1),
            output_shapes=[
                bindable_shape((dims["rows"], self.width)),
                (8,),
                bindable_shape((entry.scratch_bytes // 4,)),
                (8,),
            ],
            output_dtypes=[mx.float32, mx.uint32, mx.float32, mx.uint32],
        )
        return logits, token, after

    @classmethod
    def give_turn(cls, turn: mx.array) -> None:
        """Stores what a step kernel made. It is started if others may take it: another thread cannot start it."""
        if len(cls.models) > 1:
            start_computing([turn])
        cls.turn = turn

    def inputs(self, layers: mx.array, dims: Dims) -> list[str | mx.array]:
        """All that it takes before the turn, in order: the plan's name of a buffer, or an array that stays the same.

        Args:
            layers: [layers, 8] u32, the constants of all layers.
            dims: the dims of the batch.
        """
        entry = self.entry
        assert len(self._table) == bool(entry.weights), "a step kernel knows its weights before it runs"
        named = [layers if name == LAYERS else name for name in entry.inputs]
        return [*named, *self._table, self._gate, self._mask(entry.mask(dims))]

    def counts(self, dims: Dims) -> Counter[str]:
        """The launches of a step, by name: the step kernel, and each kernel that runs inside it."""
        counts = Counter([self.entry.name])
        for launch in self._launches:
            if isinstance(launch.body, CollectiveCall):
                counts[launch.body.label] += 1
                if launch.body.function == "all_sum":
                    counts[f"peer_sum_{launch.body.dtype}"] += 1
            elif grid_of(launch, dims) is not None:
                counts[launch.kernel] += 1
        return counts

    def _mask(self, mask: int) -> mx.array:
        if mask not in self._masks:
            self._masks[mask] = on_device(mx.array(np.array([mask] + [0] * 7, np.uint32)))
        return self._masks[mask]


class NoStepKernelError(HostError):
    """A step cannot run as one kernel here; the host launches its kernels one by one instead."""


@dataclass(frozen=True)
class StepImages:
    """The step kernels of a plan.

    Attributes:
        images: the compiled kernels.
        failures: numbers of sequences for which the geometry asks for a step kernel, and why there is none.
    """

    images: tuple[StepImage, ...] = ()
    failures: tuple[tuple[range, NoStepKernelError], ...] = ()


def has_step_kernels(architecture: str) -> bool:
    """Whether GPUs of an architecture (`sm_90a`) run them."""
    return int(architecture.removeprefix("sm_").rstrip("a")) >= OLDEST


def build_steps(artifact: Artifact, architecture: str) -> StepImages:
    """Compiles the step kernels of an artifact, if it has any; touches no GPU.

    Args:
        artifact: the compiled model.
        architecture: the architecture of the GPU (`sm_90a`).

    Raises:
        HostError: a text does not compile.
    """
    program = artifact.plan.program("metal")
    if not has_step_kernels(architecture):
        why = NoStepKernelError(f"the GPU is {architecture}, and the step kernel is made for sm_{OLDEST} and newer")
        return StepImages(
            failures=tuple((steps.counts, why) for steps in (*program.step_kernels, *program.steps_as_launches))
        )
    with ThreadPoolExecutor() as pool:
        building = [
            pool.submit(build_cubin, entry.name, with_prelude(artifact.files[entry.file]), architecture)
            for entry in program.step_kernels
        ]
        images = [StepImage(entry, cubin.result()) for entry, cubin in zip(program.step_kernels, building, strict=True)]
    failures = [(steps.counts, NoStepKernelError(steps.because)) for steps in program.steps_as_launches]
    return StepImages(tuple(images), tuple(failures))


def resident_blocks(image: StepImage) -> int:
    """Blocks of the grid: on each multiprocessor as many as the plan asks for, or fewer if they do not fit.

    Raises:
        NoStepKernelError: not even one fits, or the driver cannot be asked.
    """
    entry = image.entry
    try:
        resident = residency(entry.name, image.content, entry.threads, 0, entry.pool_bytes)
    except HostError as error:
        raise NoStepKernelError(str(error)) from error
    if min(resident) < 1:
        raise NoStepKernelError(f"no block of {entry.threads} threads of {entry.name} fits a multiprocessor")
    return resident.multiprocessors * min(entry.blocks, resident.blocks)
