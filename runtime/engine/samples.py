"""The tokens sampled from a step's logits: on the device where the host pipelines, else when they are read."""

from collections.abc import Sequence

import mlx.core as mx

from mlxr.runtime.engine.sampling import Row, Sampled, sample_rows
from mlxr.runtime.engine.sampling.device_sampling import sample_on_device
from mlxr.runtime.hosts.host import Host, Logits


class Samples:
    """Tokens of one step, one for each `Row`."""

    def __init__(self, host: Host, logits: Logits, indices: Sequence[int], rows: Sequence[Row], later: int = 0) -> None:
        """Starts the step and the sampling on hosts that pipeline; does not wait.

        Args:
            host: the host that computes the logits.
            logits: [rows, vocab], f32, as `Host.step` returns them.
            indices: which row of the logits belongs to each of `rows`, in ascending order.
            rows: how the tokens are chosen.
            later: by how much the position of each token is greater than its row says; 0 on hosts that pipeline.

        Raises:
            HostError: the host cannot start the step.
        """
        self._host, self._rows, self._indices, self._later = host, rows, indices, later
        self._logits = logits
        if not host.pipelines:
            return
        if not rows:
            # Nothing needs it, but to read it tells that the step has run: only then are K and V in the arena.
            self._end = host.copy_to_read(host.arena.token)
            wanted = [logits] if isinstance(logits, mx.array) and len(logits) else []  # rows that requests will read
            host.start(*wanted, self._end, host.arena.token)
            return
        assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
        if list(indices) != list(range(len(logits))):
            self._logits = logits = logits[mx.array(list(indices))]
        self._on_device = sample_on_device(logits, rows)
        self._tokens_to_read = host.copy_to_read(self._on_device.tokens)
        host.start(*self._on_device.arrays, self._tokens_to_read, host.arena.token)

    def __len__(self) -> int:
        """How many tokens are sampled."""
        return len(self._rows)

    @property
    def tokens(self) -> mx.array:
        """The tokens on the device: [rows], int32. Only hosts that pipeline have them."""
        return self._on_device.tokens

    def read(self) -> list[Sampled]:
        """Waits for the tokens.

        Raises:
            HostError: the step failed.
        """
        if not self._rows:
            if self._host.pipelines:
                self._host.read(self._end)
            return []
        if not self._host.pipelines:
            logits = self._host.read(self._logits)
            if len(self._indices) != len(logits):
                logits = logits[list(self._indices)]
            return sample_rows(logits, self._rows, self._later)
        return self._on_device.read(self._host.read, self._tokens_to_read)
