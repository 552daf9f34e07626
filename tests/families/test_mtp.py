"""The models' own heads: what they guess is what transformers recorded, of folders and of GGUF files."""

import itertools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.loading.imported_model import import_model
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.speculation.head_steps import HeadPart, head_batch
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.select import make_host, resolve_host
from mlxr.runtime.weights.head_tensors import require_head
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests import mtp_models as cases
from mlxr_tests.family_oracle import EXACT, relative_error
from mlxr_tests.few import covering, few
from mlxr_tests.head_files import save_gguf

RECORDED = cases.load_recorded()
TOLERANCE = 5e-6


def guesses(path: Path, name: str, cut: int | None = None) -> npt.NDArray[np.float32]:
    """The logits of the head's guesses after the prompt, each after the likeliest one before; the prompt may be cut."""
    spec, weights = import_model(path, replace(EXACT, mtp=True))
    model, head = (compile_spec(s).artifact for s in (spec, spec.model_copy(update={"output": "guesses"})))
    file = open_weights(weights)
    arena = resolve_host(name, model.plan.targets).load().arena_type(model.plan.arena)
    host = make_host(name, model, file, arena)
    own = make_host(name, head, require_head(file), arena, lender=host)
    pager, tokens = Pager.from_geometry(model.plan.arena), cases.prompt()
    pager.append(pager.add_sequence(), 20)  # what is tried is not in the arena's first block
    seq_id, length, found = pager.add_sequence(), len(tokens) - 1, []
    for begin, end in pairwise([0, cut, length] if cut else [0, length]):
        host.read(launch_step(host, pager, [BatchRequest(seq_id, tokens[begin:end], begin)]))
    pager.append(seq_id, cases.NUM_GUESSES)
    pager.take_copies()
    if cut:
        own.step(head_batch(pager, head.plan.query_tile, [HeadPart(seq_id, 0, tokens[1 : cut + 1])], with_rows=False))
    part = HeadPart(seq_id, cut or 0, tokens[(cut or 0) + 1 :])
    for i in range(cases.NUM_GUESSES):
        found.append(own.read(own.step(head_batch(pager, head.plan.query_tile, [part])))[0].copy())
        part = HeadPart(seq_id, length + i, [int(np.argmax(found[-1]))])
    host.close()
    own.close()
    return np.stack(found)


EVERY = list(itertools.product(cases.CONFIGS, ["sim", "cpu", "reference"], [None, 5]))
SHORT = covering([case for case in EVERY if case[1] != "sim"], lambda case: case)


@pytest.mark.parametrize(("case", "host", "cut"), few(EVERY, SHORT))
def test_guesses_are_those_of_transformers(case: str, host: str, cut: int | None, tmp_path: Path) -> None:
    logits = guesses(cases.save(case, tmp_path), host, cut)
    assert relative_error(logits, np.array(RECORDED[case].logits, np.float32)) < TOLERANCE


def test_a_gguf_file(tmp_path: Path) -> None:
    logits = guesses(save_gguf(tmp_path), "reference")
    assert relative_error(logits, np.array(RECORDED["glm4_moe"].logits, np.float32)) < TOLERANCE
