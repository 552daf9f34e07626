"""Whole steps: the C program on `cpu` against the unfused graph on `reference`, logits and arena, every form of batch.

The schedules are those of the Metal kernels (tests/kernels/test_hosts.py): same specs in spirit, other host.
"""

import numpy as np
import pytest

from mlxr_tests.attention_cases import CASES
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.schedules import SCHEDULES, SHORT_SCHEDULES, tokens
from mlxr_tests.specs import compiled, small_spec

# Formats of which another spec has all but the way to compute are long; q4_k_m runs in test_instruction_sets.py.
LONG = {"f32", "q8_0", "q4_k", "q5_k", "q6_k-tied", "q5_1", "iq4_nl", "mxfp4_mlx", "q2_k", "affine", "fast-f16"}
LONG |= {"floats-and-blocks", "bf16-tied", "fast-q4_0", "q4_0-q8-cache", "fast-q8_0", "q4_k_m"}
LONG |= {"q4-cache", "f16-layer", "fast-large-blocks", "mixed-floats"}


@pytest.fixture(scope="module", params=few(SPECS, SPECS.keys() - LONG))
def pair(request):
    return HostPair(compiled(small_spec(**SPECS[request.param]), target="cpu"), threads=2)


@pytest.mark.parametrize("schedule", few(SCHEDULES, SHORT_SCHEDULES))
def test_schedules(pair, schedule):
    SCHEDULES[schedule](pair)


def test_every_kernel_was_launched(pair):
    """Proof that the C program is what ran: it counts its calls itself."""
    rng = np.random.default_rng(0)
    most = pair.plan.arena.max_sequences
    seq = pair.add()
    pair.step([(seq, tokens(rng, 4))])
    pair.step([(seq, tokens(rng, 1))])
    # Five tokens fill no block: the fork shares one that must be copied.
    fork = pair.fork(seq) if most > 1 and pair.plan.arena.block_size > 1 else None
    if fork is not None:
        pair.step([(fork, tokens(rng, 1)), (seq, tokens(rng, 1))])
        pair.free(fork)
    pair.free(seq)
    wanted = {k.name for k in pair.plan.programs["cpu"].kernels if fork is not None or k.label != "copy_blocks"}
    assert set(pair.host.launches) >= wanted


@pytest.mark.parametrize("case", few(CASES, CASES[3:4]), ids=str)
def test_attention(case):
    """Head dims, ratios, windows, rotations, caches, layouts and blocks: prompts, chunks, then single tokens."""
    pair = HostPair(compiled(case.spec.model_copy(update={"compute": "exact"}), target="cpu"), threads=2)
    rng = np.random.default_rng(5)
    seqs = [pair.add() for _ in range(pair.plan.arena.max_sequences)]
    pair.step([(s, tokens(rng, n)) for s, n in zip(seqs, (50, 1, 7), strict=False)])
    for _ in range(2):
        pair.step([(s, tokens(rng, 1)) for s in seqs])
    pair.step([(s, tokens(rng, n)) for s, n in zip(seqs, (1, 33, 20), strict=False)])
    pair.step([(seqs[0], tokens(rng, 60))])
    pair.step([(s, tokens(rng, 1)) for s in seqs])
