"""docs/ARCHITECTURE.md says which files a change touches. Here each change is made, in a copy of the package, and run.

The folder `changes` has the new files of each change. A change that needs another file than those listed fails, and so
does one that needs fewer.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from mlxr_tests.changed_tree import ROOT, ChangedTree

MAP = (ROOT / "docs/ARCHITECTURE.md").read_text()
CHANGES = Path(__file__).parent / "changes"
TOY_TARGET = ROOT / "tests/support/mlxr_tests/toy_target"

PIPELINE, REGISTRY = "compiler/passes/pipeline.py", "compiler/targets/registry.py"
FORMATS, DECODERS = "compiler/formats/weight_format.py", "runtime/weights/decode_planes.py"


def files_of(change: str) -> list[str]:
    """The files that the map lists for a change, with NAME for the name of what is added."""
    titles = re.findall(rf"^### {change} \((.*)\)$", MAP, re.MULTILINE)
    (title,) = titles
    section = MAP.split(f"### {change} ({title})\n")[1].split("\n#")[0]
    files = re.findall(r"^\* `([^`]+)`", section, re.MULTILINE)
    count = re.match(r"(\d+) files?", title)
    assert count is None or len(files) == int(count[1]), f"{change}: {title}, but {len(files)} are listed"
    return files


def named(change: str, name: str) -> list[str]:
    return [path.replace("NAME", name) for path in files_of(change)]


@pytest.fixture
def tree(tmp_path: Path) -> ChangedTree:
    return ChangedTree(tmp_path / "tree")


_STEPS = """
import sys
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec

def run_steps(spec, label=""):
    for target in ("metal", "cpu"):
        pair = HostPair(compiled(spec, target=target))
        sequence = pair.add()
        pair.step([(sequence, [5, 60, 7])])
        pair.step([(sequence, [33])])
        print(pair.host.name, sum(count for name, count in pair.host.launches.items() if name.startswith(label)))
"""

_OP = (
    _STEPS
    + """
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.specs import floats, random_weights
from mlxr_tests.tolerances import check_logits

spec = small_spec(model__embedding_scale=3.0)
run_steps(spec, "stretch_")
artifact = compiled(spec)
plan, weights = artifact.plan, random_weights(artifact.plan)
pager = Pager.from_geometry(plan.arena)
batch = Batch.build([BatchRequest(pager.add_sequence(), [5, 60, 7], 0)], pager, plan.query_tile)
hosts = {graph: ReferenceHost(artifact, weights, Arena(plan.arena), graph) for graph in ("source", "prefill")}
source, fused = (floats(host.step(batch)) for host in hosts.values())
check_logits("the reference", fused, source, "f32")
print("reference", hosts["prefill"].launches["stretch"])

from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.parallel.check_ranks import Rank, check_ranks
from mlxr.compiler.parallel.divide_model import divide_model
from mlxr.compiler.passes.split_embedding_scale import SplitEmbeddingScale
from mlxr.inspect.roofline import roofline

for step in roofline(artifact, find_chip("m4-max"), 20, 1):
    print(step.name, *(launch.work for launch in step.launches if launch.row.op_kind == "stretch"))
split = small_spec(model__embedding_scale=3.0, parallel={"tensor": 2})
whole = SplitEmbeddingScale().run(build_graph(split, plan.arena)).graph
ranks = [Rank(part.graph, part.slices) for part in divide_model(split, whole, plan.arena)]
check_ranks(split, whole, ranks)
print("ranks", sum(op.kind == "stretch" for rank in ranks for op in rank.graph.ops))
"""
)


@pytest.mark.long
def test_an_op_and_the_pass_that_makes_it(tree: ChangedTree) -> None:
    """The pass takes the embedding's factor out of it: the source graph, which has no such op, says what is right."""
    tree.add(CHANGES / "op")
    tree.add(CHANGES / "pass")
    line = "from mlxr.compiler.passes.split_embedding_scale import SplitEmbeddingScale\n"
    tree.insert(PIPELINE, "import RemoveDeadOps\n", line)
    tree.insert(PIPELINE, "        LastTokenLogits(),\n", "        SplitEmbeddingScale(),\n")
    listed = named("An op", "stretch") + named("A pass", "split_embedding_scale")
    assert tree.changed() == sorted(listed)
    numbers = 48 * 4 * 2  # 48 columns of f32, read and written
    work = [f"decode Work(size_bytes={numbers}, flops=0)", f"prefill Work(size_bytes={32 * numbers}, flops=0)"]
    assert tree.run(_OP).splitlines() == ["sim 2", "cpu 2", "reference 1", *work, "ranks 2"]


MEMORY, SPEC = "compiler/schedule/memory.py", "compiler/spec/architecture.py"
BUILD = "compiler/build/build_attention.py"

_STORE = """
import sys
from pathlib import Path
from types import SimpleNamespace
import mlx.core as mx
import numpy as np
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.sampling import Sampling
import mlxr
from mlxr.bench.sequences import Sequences
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.inspect.roofline import roofline
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.thread_ranks import ThreadRanks, save_canonical

EXACT = {"compute": "exact", "deterministic": True}
DECAY = {"model__decay": 0.5, "model__num_layers": 3, "cache__max_sequences": 4, **EXACT}
ASKED = Sampling(max_tokens=12, logprobs=1)

class Engine:
    def __init__(self, target, num_blocks, ahead=False):
        artifact = compiled(small_spec(**DECAY, cache__num_blocks=num_blocks), target=target)
        self.host, arena = HostPair(artifact).host, artifact.plan.arena
        assert [part.num_layers for part in arena.allocations] == [3, 3, 2]
        assert arena.slots_bytes == arena.num_slots * 2 * 240 * 4
        if ahead:  # the engine launches each step before it has read the tokens of the one before
            step, self.host.pipelines = self.host.step, True
            self.host.step = lambda batch: mx.array(np.array(step(batch)))
        self.pager = Pager.from_geometry(arena)
        self.core = EngineCore(self.host, self.pager)
        self.maker = RequestMaker(artifact.plan, arena, None, ("toy", "f32"))
        self.known = {}

    def ask(self, *prompts):
        requests = []
        for prompt in prompts:
            requests += self.maker.make(0, prompt, ASKED, lambda news: None, 0.0, Terms())
            self.core.add(requests[-1])
        while self.core.step():
            self.pager.check_integrity()
        assert all(len(request.answer.completion.token_ids) == 12 for request in requests)
        return [(r.answer.completion.token_ids, r.answer.completion.logprobs) for r in requests], requests

    def guess(self, answers):
        costs = SimpleNamespace(measured=lambda *counts: None)
        self.core.speculator = SimpleNamespace(draft=self.draft, costs=costs, end=lambda request: None)
        self.known = {tuple(prompt): tokens for prompt, tokens in answers}

    def draft(self, requests, tokens, room):
        for request in requests:
            known = self.known[tuple(request.answer.tokens[: request.prompt_length])]
            done = len(request.answer.completion.token_ids)
            request.draft.drafted = known[done : min(done + len(request.answer.tokens) % 4, 11)]
            if request.draft.drafted and done % 3 == 0:
                request.draft.drafted[-1] = (request.draft.drafted[-1] + 1) % 61
            room -= len(request.draft.drafted)

for target in ("metal", "cpu"):
    pair = HostPair(compiled(small_spec(**DECAY), target=target))
    first = pair.add()
    pair.step([(first, [5, 60, 7, 8, 9])])
    second, third = pair.fork(first), pair.add()
    pair.step([(first, [33]), (second, [34, 35]), (third, [1, 2, 3])])
    pair.step([(third, [4]), (second, [36]), (first, [37])])
    pair.undo(first, [40, 41, 42], 1)
    pair.step([(first, [43]), (second, [44, 45])])
    print(pair.host.name, sum(count for name, count in pair.host.launches.items() if name.startswith("decayed_sum")))

    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, *range(20, 20 + i)] for i in (1, 3, 1, 6)]
    alone = [Engine(target, 40).ask(prompt)[0][0] for prompt in prompts]
    few = Engine(target, 11)
    together, _ = few.ask(*prompts)
    assert together == alone, "in company, and after others needed the memory"
    assert few.core.stats().preemptions, "or else it shows little"
    ahead = Engine(target, 11, ahead=True)
    together, _ = ahead.ask(*prompts)
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone], "where steps are launched ahead"
    assert ahead.core.stats().preemptions, "or else it shows little"
    again = Engine(target, 40)
    cached = []
    for prompt, answer in zip(prompts, alone, strict=True):
        got, (request,) = again.ask(prompt)
        assert got == [answer], "after a part of its prompt that others had"
        cached.append(request.answer.completion.cached_tokens)
    longer = [*prompts[0], *alone[0][0], 3]
    got, (request,) = again.ask(longer)
    assert got == Engine(target, 40).ask(longer)[0], "after the answer of its conversation"
    print(*cached, request.answer.completion.cached_tokens)
    guessing = Engine(target, 40)
    guessing.guess([(prompt, tokens) for prompt, (tokens, _) in zip(prompts, alone, strict=True)])
    got, _ = guessing.ask(*prompts)
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in alone], "after guesses, of which some were wrong"
    stats = guessing.core.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens

DIVIDED = {**DECAY, "model__tensor_names": "canonical"}
whole = compile_spec(small_spec(**DIVIDED), targets=("cpu",)).artifact
path = save_canonical(Path(sys.argv[1]), whole)
with mlxr.load(whole, path, host="cpu") as model:
    asked = [model.start([[3, 1, 4, 1, 5, 9]], max_tokens=6).finish()[0] for _ in range(2)]
    print(asked[0].token_ids == asked[1].token_ids, *(answer.cached_tokens for answer in asked))
    sequences = Sequences(model, 2)
    assert min(sequences.resize(12), *sequences.decode(3), sequences.resize(12), *sequences.decode(2)) > 0
    sequences.close()
state = whole.plan.arena.slots_bytes
for budget in (state + 40 * whole.plan.arena.block_bytes, state):
    try:
        arena = compile_spec(small_spec(**DIVIDED, cache__memory_budget=budget), targets=("cpu",)).artifact.plan.arena
        print(budget - arena.size_bytes, arena.num_blocks)
    except mlxr.MlxrError as error:
        print(type(error).__name__)

file = open_weights(path)
reference = make_host("reference", whole, file, Arena(whole.plan.arena), threads=None, progress=None)

def steps(step, pager, query_tile):
    a, b = pager.add_sequence(), pager.add_sequence()
    for parts in ([(a, [3, 1, 4, 1, 5])], [(a, [9]), (b, [2, 6, 5])], [(a, [3, 5, 8]), (b, [9])]):
        requests = [BatchRequest(seq_id, tokens, pager.length(seq_id), "all", 2) for seq_id, tokens in parts]
        yield np.array(step(Batch.build(requests, pager, query_tile)))
        pager.take_copies()

wanted = list(steps(reference.step, Pager.from_geometry(whole.plan.arena), whole.plan.query_tile))
for parallel in ({"tensor": 2}, {"pipeline": 3}):
    ranks = ThreadRanks(compile_spec(small_spec(**DIVIDED, parallel=parallel), targets=("cpu",)).artifact, file)
    for got, right in zip(steps(ranks.step, ranks.pager, ranks.plan.query_tile), wanted, strict=True):
        np.testing.assert_allclose(got, right, atol=2e-5 * float(np.abs(right).max()), rtol=0)
    print(*[part.shape[1:] for arena in ranks.arenas for part in arena.geometry.allocations if part.group is None])
for step in roofline(compiled(small_spec(**DECAY)), find_chip("m4-max"), 20, 2):
    (works,) = {launch.work for launch in step.launches if launch.row.op_kind == "decayed_sum"}
    print(step.name, works.flops, works.size_bytes)
"""


@pytest.mark.long
def test_an_op_with_a_store(tree: ChangedTree, tmp_path: Path) -> None:
    """A sum of what attention gave a sequence, in all layers but the first: a key of the spec puts it there."""
    tree.add(CHANGES / "store")
    tree.insert(SPEC, "    embedding_scale: Positive = 1.0\n", "    decay: Positive | None = None\n")
    kept = """    if spec.model.decay is not None:
        attention = spec.model.attention
        row = StoreRow((attention.num_heads, attention.head_dim), DType.F32)
        stores.append(Store("sums", "sequence", (None, *[row] * (spec.model.num_layers - 1)), "heads"))
"""
    tree.insert(MEMORY, "*_states_of([layer.recurrent for layer in layers])]\n", kept)
    built = """    if b.spec.model.decay is not None and index:
        summed = {"x": attended} | b.states(index, "sums")
        attended = b.op(DecayedSum(b.spec.model.decay), f"{prefix}.decayed", summed)
"""
    tree.insert(BUILD, '{"q": q} | tables | cache | sinks)\n', built)
    tree.insert(BUILD, "import CacheWrite\n", "from mlxr.compiler.ir.ops.decayed_sum import DecayedSum\n")
    listed = named("An op", "decayed_sum") + named("A store of sequences", "decayed_sum")
    assert tree.changed() == sorted(listed)
    numbers = 240 * 4 * 2  # 6 heads of 40 in f32, read and written, of each token and of each sequence's state
    assert tree.run(_STORE, str(tmp_path)).splitlines() == [
        *("sim 10", "0 10 8 12 21", "cpu 10", "0 10 8 12 21"),
        *("True 0 4", "0 40", "BudgetError"),
        *("(2, 3, 40) (2, 3, 40)", "(1, 6, 40) (1, 6, 40)"),
        f"decode {2 * 3 * 240} {4 * numbers}",
        f"prefill {32 * 3 * 240} {33 * numbers}",
    ]


_FORMAT = (
    _STEPS
    + """
wide = {"model__hidden_size": 256, "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32}}
run_steps(small_spec(**wide, model__mlp={"intermediate_size": 512}, weights={"default": sys.argv[1]}))
"""
)
_LAST_FORMAT = 'DType.U8)), "mxfp4"\n'


@pytest.mark.long
def test_a_block_format(tree: ChangedTree) -> None:
    tree.add(CHANGES / "block_format")
    tree.insert(FORMATS, _LAST_FORMAT, '    TQ2_0 = "tq2_0", 256, 66\n')
    assert tree.changed() == sorted(named("A block format", "tq2_0"))
    assert [line.split()[0] for line in tree.run(_FORMAT, "tq2_0").splitlines()] == ["sim", "cpu"]


_SYM4 = """

def _sym4(planes: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
    bits, scales = planes
    numbers = _unpack(bits, 4).reshape(len(bits), -1, 32) - np.float32(8)
    return (numbers * scales.view(np.float16).astype(np.float32)[:, :, None]).reshape(len(bits), -1)
"""


@pytest.mark.long
def test_a_plane_format(tree: ChangedTree) -> None:
    tree.add(CHANGES / "plane_format")
    line = '    SYM4 = "sym4", 32, (Plane("weight", 16), Plane("scales", 2, DType.F16)), "sym4"\n'
    tree.insert(FORMATS, _LAST_FORMAT, line)
    tree.insert(DECODERS, "    return (_FP4[nibbles] * powers[:, :, None]).reshape(len(bits), -1)\n", _SYM4)
    tree.insert(DECODERS, "_DECODERS = {", "WeightFormat.SYM4: _sym4, ")
    assert tree.changed() == sorted(named("A plane format", "sym4"))
    assert [line.split()[0] for line in tree.run(_FORMAT, "sym4").splitlines()] == ["sim", "cpu"]


_FAMILY = """
import sys
from mlxr.cli import main
assert main(["import", sys.argv[1], "-o", sys.argv[1] + "/spec.yaml"]) == 0
"""


def test_a_family(tree: ChangedTree, tmp_path: Path) -> None:
    tree.add(CHANGES / "family")
    assert tree.changed() == named("A family", "toy")
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests/data/storyteller", model, ignore=shutil.ignore_patterns("*.gguf", "*.txt"))
    config = json.loads((model / "config.json").read_text()) | {"model_type": "toy", "toy_multiplier": 2.5}
    (model / "config.json").write_text(json.dumps(config))
    tree.run(_FAMILY, str(model))
    assert "embedding_scale: 2.5" in (model / "spec.yaml").read_text()


_HOST = """
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.registry import hosts
from mlxr_tests.specs import compiled, floats, random_weights, small_spec
from mlxr_tests.tolerances import check_logits

artifact = compiled(small_spec())
plan, weights = artifact.plan, random_weights(artifact.plan)
logits = []
for name in ("reference", "toy"):
    pager, host = Pager.from_geometry(plan.arena), hosts()[name].load()(artifact, weights, Arena(plan.arena))
    batch = Batch.build([BatchRequest(pager.add_sequence(), [5, 60, 7], 0)], pager, plan.query_tile)
    logits.append(floats(host.step(batch)))
check_logits("the toy host", logits[1], logits[0], "f32")
print(host.name, host.launches["toy_step"])
"""


def test_a_host(tree: ChangedTree) -> None:
    """tests/runtime/hosts/test_registry.py says what else follows: commands know it, and list it."""
    tree.add(CHANGES / "host")
    assert tree.changed() == sorted(named("A host", "toy"))
    assert tree.run(_HOST) == "toy 1\n"


_TARGET = """
from mlxr.compiler.driver import compile_spec
from mlxr_tests.specs import small_spec
artifact = compile_spec(small_spec(cache__max_sequences=1), targets=("toy",)).artifact
print(*artifact.plan.targets, any(path.startswith("toy/") for path in artifact.files))
"""


def test_a_target(tree: ChangedTree, tmp_path: Path) -> None:
    """tests/compiler/targets/test_toy_target.py runs its program; here it stands where a target stands."""
    for path in TOY_TARGET.glob("*.py"):
        moved = tmp_path / "target/compiler/targets/toy" / path.name
        moved.parent.mkdir(parents=True, exist_ok=True)
        moved.write_text(path.read_text().replace("mlxr_tests.toy_target", "mlxr.compiler.targets.toy"))
    tree.add(tmp_path / "target")
    tree.insert(REGISTRY, "import Target\n", "from mlxr.compiler.targets.toy.target import ToyTarget\n")
    tree.insert(REGISTRY, '    "cpu": CpuTarget(),\n', '    "toy": ToyTarget(),\n')
    folder, *others = named("A target", "toy")
    assert folder == "compiler/targets/toy/"
    assert [path for path in tree.changed() if not path.startswith(folder)] == others
    assert tree.run(_TARGET) == "toy True\n"
