"""A step in two halves: it is launched, and its tokens are read later.

On hosts that pipeline, both the step and the sampling of its tokens are lazy MLX graphs. The next step takes the
sampled tokens where they are, on the device, and is launched before anyone has read them. Nothing else that it needs
depends on them: positions, slots, context lengths, and the random numbers that choose tokens are known.

To give up a launched step (its sequence has ended, or the generation was closed), it is enough to free or truncate the
sequence. The step still runs and writes its slot, whose block may have a new owner by then. That is harmless. One
thread launches all steps and copies, and each one binds the arena token that the one before it made. So the late write
happens before everything that the new owner launches, and an owner writes a slot before it reads it.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.sampling import Row, Sampler, sample_rows
from mlxr.runtime.engine.sampling.device_sampling import sample_tokens
from mlxr.runtime.engine.sampling.rows import broken_logits
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.host import Host, Logits


def launch_step(host: Host, pager: Pager, requests: Sequence[BatchRequest], tokens: mx.array | None = None) -> Logits:
    """Grows the requests' sequences and launches the step; the logits are lazy on hosts that pipeline.

    Args:
        host: where it runs.
        pager: of the host's arena.
        requests: the sequences' parts of the step.
        tokens: [tokens], int32: token ids on the device. Of the requests' own ids, only the number then matters.

    Raises:
        ArenaFullError: the arena cannot hold all requests; nothing has been appended.
        HostError: the step cannot be launched, or failed.
    """
    batch = Batch.build(requests, pager, host.plan.query_tile, tokens)
    if copies := pager.take_copies():
        host.copy_blocks(copies)
    return host.step(batch)


class Samples:
    """The tokens sampled from a step's logits: on the device where the host pipelines, else when they are read."""

    def __init__(self, host: Host, logits: Logits, rows: Sequence[int], samplers: Sequence[Sampler]) -> None:
        """Starts the step and the sampling on hosts that pipeline; does not wait.

        Args:
            host: the host that computes the logits.
            logits: [rows, vocab], f32, as `Host.step` returns them.
            rows: the row of logits of each token, in ascending order.
            samplers: the sampler of each token's sequence; all have the same options.

        Raises:
            HostError: the host cannot start the step.
        """
        self._host, self._logits, self._rows, self._samplers = host, logits, rows, samplers
        if not host.pipelines or not rows:
            return
        assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
        if list(rows) != list(range(len(logits))):
            self._logits = logits = logits[mx.array(list(rows))]
        sampling = samplers[0].sampling
        uniforms = [] if sampling.temperature == 0 else [sampler.uniform() for sampler in samplers]
        self._tokens = sample_tokens(logits, sampling, uniforms)
        # Nothing waits for this but `read`, which refuses broken logits as `sample_rows` does.
        self._greatest = mx.max(logits, axis=-1)
        self._tokens_to_read = host.copy_to_read(self._tokens)
        host.start(self._tokens, self._tokens_to_read, self._greatest, host.arena.token)

    def __len__(self) -> int:
        """How many tokens are sampled."""
        return len(self._rows)

    def tokens(self, indices: Sequence[int]) -> mx.array:
        """Some of the tokens, in this order, on the device: [indices], int32. Only hosts that pipeline have them."""
        return self._tokens if list(indices) == list(range(len(self))) else self._tokens[mx.array(list(indices))]

    def read(self) -> list[int]:
        """Waits for the tokens.

        Raises:
            HostError: the step failed, or the logits have a NaN or +inf, or nothing but -inf.
        """
        if not self._rows:
            return []
        if not self._host.pipelines:
            rows = [Row(sampler, sampler.next_position) for sampler in self._samplers]
            sampled = sample_rows(self._host.read(self._logits)[list(self._rows)], rows)
            for error in filter(None, (row.error for row in sampled)):
                raise error
            return [row.token for row in sampled]
        tokens: list[int] = self._host.read(self._tokens_to_read).tolist()
        broken = np.flatnonzero(~np.isfinite(self._host.read(self._greatest)))
        if len(broken):
            raise broken_logits(self._host.read(self._logits)[broken[0]])
        return tokens
