"""The kernels that run a decode step, one for each class of numbers of sequences, and their launch.

Its blocks wait for each other, so all of them must be on the GPU at once: as many are launched as the driver says fit,
and two such kernels never run side by side, since each could hold what the other waits for. A `turn`, which every step
kernel of the process takes and makes, orders them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.occupancy import residency
from mlxr.runtime.hosts.cuda.step_program import LAYERS, StepProgram, classes_of, step_program
from mlxr.runtime.hosts.cuda.step_text import step_text
from mlxr.runtime.hosts.mlx.host import Launcher, bindable_shape

LauncherOf = Callable[[str, bytes], Launcher]

OLDEST = 80
"""Compute capability (times ten) that it is made for."""


@dataclass(frozen=True)
class StepImage:
    """A step kernel that was compiled.

    Attributes:
        program: what it runs.
        name: of the kernel.
        content: the image that the driver loads.
        threads: of a block.
        blocks: of a multiprocessor, at most.
        vocab: logits of a row.
    """

    program: StepProgram
    name: str
    content: bytes
    threads: int
    blocks: int
    vocab: int


class StepKernel:
    """A decode step in one launch.

    Mutable state: `turn`, replaced with each step by who runs it.

    Attributes:
        program: what it runs.
        name: the kernel's, under which its launches are counted.
        turn: u32[8], made by the last step kernel of this process; the next one takes it.
        order: held by who takes the turn, until there is the next one.
    """

    turn: ClassVar[mx.array | None] = None
    order: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, program: StepProgram, name: str, launch: Launcher, *, threads: int, blocks: int, vocab: int
    ) -> None:
        """Allocates what a step needs besides the host's arrays.

        Args:
            program: what it runs.
            name: of the kernel.
            launch: launches it.
            threads: of a block.
            blocks: of its grid, all of which are on the GPU at once.
            vocab: logits of a row.
        """
        self.program, self.name = program, name
        self._launch, self._threads, self._blocks, self._vocab = launch, threads, blocks, vocab
        self._gate = on_device(mx.zeros((8,), dtype=mx.uint32))
        self._masks: dict[int, mx.array] = {}

    @classmethod
    def load(cls, image: StepImage, launcher: LauncherOf) -> "StepKernel":
        """A kernel that was built.

        Args:
            image: what was built.
            launcher: makes a launcher of a name and an image.

        Raises:
            NoStepKernelError: it does not fit the GPU.
        """
        blocks = resident_blocks(image)
        launch = launcher(image.name, image.content)
        return cls(image.program, image.name, launch, threads=image.threads, blocks=blocks, vocab=image.vocab)

    def takes(self, dims: Dims) -> bool:
        """Whether it runs a decode step of these dims."""
        return self.program.takes(dims)

    @classmethod
    def take_turn(cls) -> mx.array:
        """The last step kernel's turn, to be bound by the next one."""
        if cls.turn is None:
            cls.turn = on_device(mx.zeros((8,), dtype=mx.uint32))
        return cls.turn

    def run(self, arrays: Mapping[str, mx.array], layers: mx.array, dims: Dims, turn: mx.array) -> tuple[mx.array, ...]:
        """Launches it.

        Args:
            arrays: weights, arena and the batch, by the plan's buffer names.
            layers: [layers, 8] u32, the constants of all layers.
            dims: the batch's.
            turn: of the last step kernel.

        Returns:
            Logits [rows, vocab] f32, the arena's new token and the next turn.
        """
        program = self.program
        inputs = [layers if name == LAYERS else arrays[name] for name in program.inputs]
        logits, token, _, after = self._launch(
            inputs=[*inputs, self._gate, self._mask(program.mask(dims)), turn],
            grid=(self._blocks * self._threads, 1, 1),
            threadgroup=(self._threads, 1, 1),
            output_shapes=[
                bindable_shape((dims["rows"], self._vocab)),
                (8,),
                bindable_shape((program.scratch_bytes // 4,)),
                (8,),
            ],
            output_dtypes=[mx.float32, mx.uint32, mx.float32, mx.uint32],
        )
        return logits, token, after

    def counts(self, dims: Dims) -> Counter[str]:
        """What a step launches: the kernel itself, and each that ran inside."""
        inner = (entry.kernel.name for entry in self.program.running(self.program.mask(dims)))
        return Counter([self.name, *inner])

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
        images: those that were compiled.
        failures: numbers of sequences whose steps the plan wants as one kernel, and why there is none.
    """

    images: tuple[StepImage, ...] = ()
    failures: tuple[tuple[range, NoStepKernelError], ...] = ()


def build_steps(artifact: Artifact, architecture: str) -> StepImages:
    """Compiles the step kernels that an artifact's plan asks for, if it asks for any; touches no GPU.

    Args:
        artifact: the compiled model.
        architecture: of the GPU (`sm_90a`).

    Raises:
        HostError: a text does not compile.
    """
    plan = artifact.plan
    chosen = plan.step("decode").chosen
    if chosen is None or not chosen.sizes["step_threads"]:
        return StepImages()
    most = min(chosen.sizes["step_sequences"], plan.arena.max_sequences, plan.max_tokens, plan.max_rows)
    images, failures = [], []
    with ThreadPoolExecutor() as pool:
        building = {
            counts: pool.submit(_build_step, artifact, architecture, counts, chosen.sizes)
            for counts in classes_of(plan, most)
        }
        for counts, image in building.items():
            try:
                images.append(image.result())
            except NoStepKernelError as error:
                failures.append((counts, error))
    return StepImages(tuple(images), tuple(failures))


def _build_step(artifact: Artifact, architecture: str, counts: range, sizes: Mapping[str, int]) -> StepImage:
    threads, blocks, prefetch = (sizes[f"step_{name}"] for name in ("threads", "blocks", "prefetch"))
    if int(architecture.removeprefix("sm_").rstrip("a")) < OLDEST:
        raise NoStepKernelError(f"the GPU is {architecture}, and the step kernel is made for sm_{OLDEST} and newer")
    try:
        program = step_program(artifact.plan, counts)
        text = step_text(artifact, program, threads, blocks, prefetch)
    except HostError as error:
        raise NoStepKernelError(str(error)) from error
    content = build_cubin(text.name, text.text, architecture)
    return StepImage(program, text.name, content, threads, blocks, artifact.plan.vocab_size)


def resident_blocks(image: StepImage) -> int:
    """Blocks of the grid: as many as are wanted of a multiprocessor, on each.

    Raises:
        NoStepKernelError: not one fits, or the driver does not say.
    """
    try:
        found = residency(image.name, image.content, image.threads)
    except HostError as error:
        raise NoStepKernelError(str(error)) from error
    if min(found) < 1:
        raise NoStepKernelError(f"no block of {image.threads} threads of {image.name} fits a multiprocessor")
    return found.multiprocessors * min(image.blocks, found.blocks)
