"""Sampling: from rows of logits to tokens.

`Sampling` has the options of a request, a `Sampler` what choosing its tokens needs to remember, and `sample_rows`
chooses tokens for the rows of a whole batch. On hosts that pipeline, `device_sampling` does that on the device.
"""

from mlxr.runtime.engine.sampling.options import Sampling, ThoughtLimit, sampling_for
from mlxr.runtime.engine.sampling.rows import sample_rows
from mlxr.runtime.engine.sampling.sampler import Row, Sampled, Sampler

__all__ = ["Row", "Sampled", "Sampler", "Sampling", "ThoughtLimit", "sample_rows", "sampling_for"]
