"""Layers that keep a state and no keys, beside layers with keys and alone: the toy op of `changes/store`, in a copy."""

from pathlib import Path

import pytest

from mlxr_tests.changed_tree import ROOT, ChangedTree

CHANGES = Path(__file__).parent / "changes"
SPEC, MEMORY = "compiler/spec/architecture.py", "compiler/schedule/memory.py"
BUILD = "compiler/build/build_attention.py"

_FIELDS = """    decay: Positive | None = None
    keeps_keys: tuple[int, ...] = ()
"""
_STORES = """    if spec.model.decay is not None:
        a, has = spec.model.attention, spec.model.keeps_keys
        state = StoreRow((a.num_heads, a.head_dim), DType.F32)
        kept = [row if layer in has else None for layer, row in enumerate(keys)]
        others = tuple(None if layer in has else state for layer in range(len(keys)))
        states = Store("sums", "sequence", others, "heads")
        stores = [*keys_and_values(kept), states] if has else [states]
"""
_LAYER = """    if b.spec.model.decay is not None and index not in b.spec.model.keeps_keys:
        q = b.linear(f"{prefix}.q", x, (a.num_heads * a.head_dim, hidden), None, rows=heads)
        states = {"query_start": "query_start", "state_table": "state_table", **b.stores(index, ("sums",))}
        q = b.op(DecayedSum(b.spec.model.decay), f"{prefix}.decayed", {"x": q, **states})
        return b.linear(f"{prefix}.o", q, (hidden, a.num_heads * a.head_dim), None, columns=heads)
"""
_RUN = """
import json
import sys
from pathlib import Path
import mlxr
from mlxr.compiler.artifact import ArenaGeometry
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.thread_ranks import save_canonical

KEEPS = tuple(json.loads(sys.argv[2]))
MODEL = {"model__decay": 0.5, "model__num_layers": 3, "model__keeps_keys": KEEPS, "model__tensor_names": "canonical"}
EXACT = {"compute": "exact", "deterministic": True, "cache__max_sequences": 4}
ASKED = Sampling(max_tokens=6, ignore_eos=True, logprobs=1)

def spec_of(**changes):
    return small_spec(**{**MODEL, **EXACT, **changes})

class Engine:
    def __init__(self, target, **changes):
        artifact = compiled(spec_of(**changes), target=target)
        self.pager = Pager.from_geometry(artifact.plan.arena)
        self.core = EngineCore(HostPair(artifact).host, self.pager)
        self.maker = RequestMaker(artifact.plan, artifact.plan.arena, None, ("toy", "f32"))

    def ask(self, *prompts):
        requests = []
        for prompt in prompts:
            requests += self.maker.make(0, prompt, ASKED, lambda news: None, 0.0, Terms())
            self.core.add(requests[-1])
        while self.core.step():
            self.pager.check_integrity()
        self.cached = requests[-1].answer.completion.cached_tokens
        return [(r.answer.completion.token_ids, r.answer.completion.logprobs) for r in requests]

for target in ("metal", "cpu"):
    pair = HostPair(compiled(spec_of(), target=target))
    first = pair.add()
    pair.step([(first, [5, 60, 7, 8, 9])])
    second, third = pair.fork(first), pair.add()
    pair.step([(first, [33]), (second, [34, 35]), (third, [1, 2, 3])])
    pair.undo(first, [40, 41, 42], 1)
    pair.step([(first, [43]), (second, [44, 45])])
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, *range(20, 20 + i)] for i in (1, 3, 1, 6)]
    alone = [Engine(target).ask(prompt)[0] for prompt in prompts]
    few = Engine(target, cache__num_blocks=12)
    assert few.ask(*prompts) == alone, "in company, where blocks are few"
    assert few.ask(prompts[0]) == alone[:1], "after a part of its prompt that others had"
    print(pair.host.name, few.cached, compiled(spec_of(cache__max_sequences=1), target=target).plan.arena.mode)

arena: ArenaGeometry = pair.plan.arena
print(*(part.name for part in arena.allocations), *arena.groups[0].layers, arena.block_bytes)
try:
    compiled(spec_of(cache__memory_budget=arena.slots_bytes - 1))
except mlxr.MlxrError as error:
    print(type(error).__name__)
whole = compiled(spec_of(), target="cpu")
with mlxr.load(whole, save_canonical(Path(sys.argv[1]), whole), host="cpu") as model:
    one, two = (model.generate([3, 1, 4, 1, 5, 9], max_tokens=6) for _ in range(2))
    print(one.token_ids == two.token_ids, two.cached_tokens)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("keeps", "mode", "stores"),
    [
        ("[1]", "contiguous", f"k_arena v_arena sums 1 {2 * 4 * 2 * 40 * 4}"),
        ("[]", "paged", "sums 0"),
    ],
    ids=["some", "all"],
)
def test_layers_that_keep_only_a_state(keeps: str, mode: str, stores: str, tmp_path: Path) -> None:
    """The first layer has no keys, or no layer has."""
    tree = ChangedTree(tmp_path / "tree")
    tree.add(CHANGES / "store")
    tree.insert(SPEC, "    embedding_scale: Positive = 1.0\n", _FIELDS)
    tree.insert(MEMORY, "*_states_of([layer.recurrent for layer in layers])]\n", _STORES)
    axes = next(line for line in (ROOT / BUILD).read_text().splitlines() if line.startswith("    heads, kv_heads = "))
    tree.insert(BUILD, f"{axes}\n", _LAYER)
    tree.insert(BUILD, "import CacheWrite\n", "from mlxr.compiler.ir.ops.decayed_sum import DecayedSum\n")
    assert tree.run(_RUN, str(tmp_path), keeps).splitlines() == [
        *(f"{host} 8 {mode}" for host in ("sim", "cpu")),
        *(stores, "BudgetError", "True 4"),
    ]
