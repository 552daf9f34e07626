"""Keeps weights that were unpacked for MLX's matmul, as far as there is memory to spare.

With a short prompt and a small model, the GPU takes longer to unpack some weights than to multiply by them, and each
unpacking is one more launch for the CPU. Launches of the plan whose outputs are kept need not run again.
"""

import math
import os
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxr.compiler.artifact import KernelEntry, Launch
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES

SETTING = "MLXR_UNPACKED_MIB"
Arrays = dict[str, mx.array]


class KeptWeights:
    """The unpacked weights of one model.

    Attributes:
        arrays: by the names of the plan's buffers.
        note: a message for people about them; empty if there are none.
    """

    def __init__(self) -> None:
        """Reads how much memory the user allows for them.

        Raises:
            HostError: MLXR_UNPACKED_MIB is not a whole number.
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
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def has(self, launch: Launch) -> bool:
        """Whether all outputs of a launch are kept, so that it need not run."""
        pairs = zip(launch.inputs, launch.outputs, strict=False)
        return launch.needs_library and all(self._weights.get(out) == weight for weight, out in pairs)

    def keep(
        self,
        launches: Sequence[Launch],
        kernel_of: Callable[[str], KernelEntry],
        shape_of: Callable[[str], tuple[int, ...]],
        run: Callable[[Sequence[Launch]], Arrays],
    ) -> None:
        """Runs launches that unpack weights, and keeps their outputs, as far as there is memory to spare.

        Args:
            launches: launches that read nothing but weights.
            kernel_of: returns the plan's kernel of a name.
            shape_of: returns the shape of a buffer.
            run: runs some of the launches, lazily, and returns all arrays.
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
            arrays = run(chosen)
            mx.eval([arrays[name] for name in names])
        except (RuntimeError, ValueError, HostError) as error:
            self._wanted = 0  # a step unpacks fewer weights at a time, and may succeed
            self.note = f"weights are unpacked for each prompt, since not all can be kept: {error}"
            return
        self.arrays |= {name: arrays[name] for name in names}
        for launch in chosen:
            self._weights |= dict(zip(launch.outputs, launch.inputs, strict=True))
        self.note = f"{self.nbytes >> 20} MiB of weights are kept unpacked for MLX ({SETTING}=0: none)"

    def _spare_bytes(self) -> int:
        """Bytes left of the setting, or else of an eighth of the GPU's memory; then at most half of the free memory."""
        if self._wanted is not None:
            return self._wanted - self.nbytes
        info = mx.device_info(mx.Device(mx.gpu))
        total = int(info.get("total_memory", 0))
        return min(total // 8 - self.nbytes, int(info.get("free_memory", total)) // 2)
