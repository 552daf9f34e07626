"""Weights that were unpacked for MLX's matmul, and stay so where there is memory to spare.

A prompt of a small model takes the GPU longer to unpack its weights than to multiply by some of them, and the CPU a
launch for each layer. What is kept is what the plan's launches made; such a launch then has nothing to do.
"""

import math
import os
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxr.compiler.artifact import KernelEntry, Launch
from mlxr.compiler.errors import HostError
from mlxr.runtime.mlx_arrays import MLX_DTYPES

SETTING = "MLXR_UNPACKED_MIB"
Arrays = dict[str, mx.array]


class KeptWeights:
    """What is kept of one model.

    Attributes:
        arrays: by the names of the plan's buffers.
        note: for people; empty while nothing is kept.
    """

    def __init__(self) -> None:
        """Finds out how much memory there is to spare.

        Raises:
            HostError: MLXR_UNPACKED_MIB is no whole number.
        """
        self.arrays: Arrays = {}
        self.note = ""
        self._weights: dict[str, str] = {}
        wanted = os.environ.get(SETTING)
        if wanted is not None and not wanted.isdecimal():
            raise HostError(f"{SETTING} is {wanted!r}; expected MiB of GPU memory, or 0 to keep no weights unpacked")
        self._wanted = None if wanted is None else int(wanted) << 20

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(array.nbytes for array in self.arrays.values())

    def has(self, launch: Launch) -> bool:
        """Whether all that a launch makes is kept."""
        made = zip(launch.inputs, launch.outputs, strict=False)
        return launch.feeds_mlx and all(self._weights.get(out) == weight for weight, out in made)

    def keep(
        self,
        launches: Sequence[Launch],
        kernel_of: Callable[[str], KernelEntry],
        shape_of: Callable[[str], tuple[int, ...]],
        run: Callable[[Sequence[Launch]], Arrays],
    ) -> None:
        """Runs launches that unpack weights, and keeps what they make, as far as there is memory to spare.

        Args:
            launches: which read weights and nothing else.
            kernel_of: the plan's kernel of a name.
            shape_of: of a buffer.
            run: launches some of them, lazily.
        """
        missing = [launch for launch in launches if not self.has(launch)]
        left, chosen = self._spare_bytes() if missing else 0, []
        for launch in missing:
            ports = kernel_of(launch.kernel).outputs
            sizes = (
                math.prod(shape_of(name)) * MLX_DTYPES[str(port.dtype)].size
                for name, port in zip(launch.outputs, ports, strict=True)
            )
            if (needed := sum(sizes)) <= left:
                left -= needed
                chosen.append(launch)
        if not chosen:
            return
        names = [name for launch in chosen for name in launch.outputs]
        try:
            made = run(chosen)
            mx.eval([made[name] for name in names])
        except (RuntimeError, ValueError, HostError) as error:
            self._wanted = 0  # a step needs less memory at a time, and may succeed
            self.note = f"weights are unpacked for each prompt, since not all can be kept: {error}"
            return
        self.arrays |= {name: made[name] for name in names}
        self._weights |= {out: weight for one in chosen for weight, out in zip(one.inputs, one.outputs, strict=True)}
        self.note = f"{self.nbytes >> 20} MiB of weights are kept unpacked for MLX ({SETTING}=0: none)"

    def _spare_bytes(self) -> int:
        """What the setting leaves, else what an eighth of the GPU's memory does, and at most half of what is free."""
        if self._wanted is not None:
            return self._wanted - self.nbytes
        info = mx.device_info(mx.Device(mx.gpu))
        total = int(info.get("total_memory", 0))
        return min(total // 8 - self.nbytes, int(info.get("free_memory", total)) // 2)
