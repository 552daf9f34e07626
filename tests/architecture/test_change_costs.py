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
    assert tree.run(_OP).splitlines() == ["sim 2", "cpu 2", "reference 1"]


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
