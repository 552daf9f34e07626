"""The cpu host's own code: weights from files and memory, threads, what it tells, and where it ends."""

import gc
import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError, RequestError, WeightsError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost, _CompilingLine
from mlxr.runtime.machine import threads as thread_counts
from mlxr.runtime.weights import open_weights
from mlxr.runtime.weights.tensor_rows import selected
from mlxr_tests.few import few
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import Native, random_native
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import check_logits

PROMPT = [5, 60, 7, 8, 1, 0, 33]
MIXED = {
    "model__hidden_size": 64,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 96},
    "weights": {"default": "q8_0", "embedding": "f16", "attention": "bf16", "norm": "f32"},
    "compute": "exact",
}


def artifact_of(**changes: Any) -> Artifact:
    return compiled(small_spec(**changes), target="cpu")


class Rig:
    """A host with an arena and a pager of its own."""

    def __init__(self, artifact: Artifact, native: Native | None = None, **options: Any) -> None:
        self.plan = artifact.plan
        self.arena = Arena(self.plan.arena)
        self.pager = Pager.from_geometry(self.plan.arena)
        native = native or random_native(self.plan)[0]
        self.host = CpuHost(artifact, read_memory(native), self.arena, **options)

    def batch(self, *parts: tuple[int, list[int]], rows: Any = "last") -> Batch:
        requests = [BatchRequest(seq, tokens, self.pager.length(seq), rows) for seq, tokens in parts]
        return Batch.build(requests, self.pager, self.plan.query_tile)

    def step(self, *parts: tuple[int, list[int]], rows: Any = "last") -> np.ndarray:
        return self.host.read(self.host.step(self.batch(*parts, rows=rows)))


def run(rig: Rig) -> np.ndarray:
    """Logits of a prompt and three tokens after it."""
    seq = rig.pager.add_sequence()
    rows = [rig.step((seq, PROMPT), rows="all"), *(rig.step((seq, [token])) for token in (2, 3, 4))]
    rig.pager.free(seq)
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig(artifact_of(), threads=1)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_number_of_threads_does_not_show(rig: Rig, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_counts, "usable_cpus", lambda root: 7)
    several = Rig(artifact_of(), threads=threads)
    assert several.host.threads == threads
    check_logits(f"{threads} threads", run(several), run(rig), "f32")


def test_the_same_steps_give_the_same_bits(rig: Rig) -> None:
    np.testing.assert_array_equal(run(rig), run(rig))


def test_logits_are_the_callers(rig: Rig) -> None:
    seq = rig.pager.add_sequence()
    first = rig.step((seq, PROMPT))
    kept = first.copy()
    assert first.dtype == np.float32 and first.shape == (1, 61) and first.flags.writeable
    rig.step((seq, [1]))
    np.testing.assert_array_equal(first, kept)
    assert rig.step((seq, [1, 2]), rows="none").shape == (0, 61)
    rig.pager.free(seq)


def test_the_arena_is_written_in_place(rig: Rig) -> None:
    addresses, token = rig.arena.addresses(), rig.arena.token
    run(rig)
    assert rig.arena.addresses() == addresses and rig.arena.token is token


def test_launches_are_counted_by_the_program(rig: Rig) -> None:
    rig.host.launches.clear()
    run(rig)
    labels = {kernel.name: kernel.label for kernel in rig.plan.programs["cpu"].kernels}
    counts = {labels[name]: count for name, count in rig.host.launches.items()}
    assert counts["attend_decode"] == 3 * rig.plan.num_layers and counts["attend_prefill"] == rig.plan.num_layers
    assert counts["embed"] == counts["logits"] == 4
    rig.host.copy_blocks([(0, 1), (2, 3)])
    assert rig.host.launches[rig.plan.programs["cpu"].copy_blocks[0].kernel] == 1


def test_debug_tells_of_launches(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_DEBUG", "4")
    run(Rig(artifact_of(), threads=1))
    said = capsys.readouterr().err
    assert said.count("cpu: attend_decode_") == 3 and f" x {artifact_of().plan.num_layers}\n" in said


def test_batches_beyond_the_plan_are_refused(rig: Rig) -> None:
    seqs = [rig.pager.add_sequence() for _ in range(2)]
    with pytest.raises(RequestError, match=r"a step of 40 tokens, .* the plan's limits are 32, "):
        rig.step(*((seq, [1] * 20) for seq in seqs))
    for seq in seqs:
        rig.pager.free(seq)


def test_several_threads_of_python_may_step(rig: Rig) -> None:
    expected, found = run(rig), []
    seqs = [rig.pager.add_sequence() for _ in range(3)]
    batches = [rig.batch((seq, PROMPT), rows="all") for seq in seqs]
    workers = [threading.Thread(target=lambda b=b: found.append(rig.host.step(b))) for b in batches]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for logits in found:
        np.testing.assert_array_equal(logits, expected[:7])
    for seq in seqs:
        rig.pager.free(seq)


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    Rig(artifact_of(), threads=1, progress=lambda *numbers: told.append(numbers))
    assert told[:2] == [("kernels", 0, 1), ("kernels", 1, 1)]
    assert {what for what, _, _ in told} == {"kernels", "weights"}
    assert told[-1][1] == told[-1][2]


class Terminal(io.StringIO):
    """Standard error of somebody who looks at it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("shown", [True, False])
def test_compiling_is_shown_on_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with _CompilingLine("small", shown=shown) as line:
        line("cc", 2.6)
    text = "\r\x1b[Kcompiling small for this CPU with cc: 3 s\r\x1b[K"
    assert stream.getvalue() == (text if terminal and shown else "")


def test_a_closed_host_says_so() -> None:
    closed = Rig(artifact_of(), threads=2)
    closed.host.close()
    closed.host.close()
    with pytest.raises(HostError, match="the model is closed; load it again"):
        run(closed)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_threads_and_memory_go_with_the_model(tmp_path: Path) -> None:
    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208

    def are(expected: int) -> bool:
        """In a moment, and then they stay: Python joins its threads a little before they have ended."""
        time.sleep(0.3)
        return tasks() == expected

    file = write(tmp_path, artifact_of(**MIXED))
    Model(artifact_of(**MIXED), file, host="cpu", threads=1).logits(PROMPT)  # starts what MLX keeps
    gc.collect()
    time.sleep(0.1)  # a thread that has been joined is listed until the system has ended it
    before = tasks()
    model = Model(artifact_of(**MIXED), file, host="cpu", threads=min(2, thread_counts.usable_cpus()))
    assert are(before + model.host.threads - 1)
    assert str(file) in Path("/proc/self/maps").read_text("utf-8")
    model.logits(PROMPT)
    del model
    gc.collect()
    assert are(before)
    assert str(file) not in Path("/proc/self/maps").read_text("utf-8")


def test_a_library_of_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = artifact_of()
    library = artifact.plan.programs["cpu"].library.model_copy(update={"abi": 1})
    plan = artifact.plan.with_program("cpu", library=library)
    other = Artifact({**artifact.files, "plan.json": plan.model_dump_json()})
    with pytest.raises(
        HostError, match=r"the library's interface is 0x[0-9a-f]+, the plan's 0x1; compile the spec again"
    ):
        Rig(other)


# From files


def write(folder: Path, artifact: Artifact, native: Native | None = None) -> Path:
    """The artifact's weights as a GGUF file: native formats, rows of query and key heads interleaved."""
    native = native or random_native(artifact.plan)[0]
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    for part in (part for weight in artifact.plan.weights for part in weight.parts):
        array = native[part.name]
        kind = {"uint16": gguf.GGMLQuantizationType.BF16, "uint8": gguf.GGMLQuantizationType[part.format.gguf]}
        recipe = part.gguf[0]
        if recipe.rows is not None:
            lies = np.empty_like(array)
            lies[selected(recipe.rows, 0, len(array))] = array
            array = lies
        stored = kind.get(str(array.dtype))
        writer.add_tensor(
            recipe.tensor, np.ascontiguousarray(array).view(np.uint8) if stored else array, raw_dtype=stored
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


@pytest.mark.parametrize("attention", few(["f32", "f16", "bf16", "q8_0", "q4_0"], ["q4_0"]))
def test_files_and_memory_give_the_same_bits(tmp_path: Path, attention: str) -> None:
    """The file's rows of heads are interleaved: put right by the host, whatever their format."""
    weights = MIXED["weights"] | {"attention": attention}
    artifact = artifact_of(**MIXED | {"weights": weights})
    native, _ = random_native(artifact.plan)
    expected = run(Rig(artifact, native, threads=1))
    from_file = Rig(artifact, native, threads=1)
    from_file.host = CpuHost.from_file(artifact, open_weights(write(tmp_path, artifact, native)), from_file.arena)
    np.testing.assert_array_equal(run(from_file), expected)
    embedding = native["embedding"].nbytes
    assert from_file.host.mapped_bytes >= embedding, "a float table is read where it lies"
    assert from_file.host.own_bytes > 0
    tensors = artifact.plan.programs["cpu"].library.tensors
    sizes = sum(tensor.size_bytes for tensor in tensors)
    assert 0 <= from_file.host.mapped_bytes + from_file.host.own_bytes - sizes < 256 * len(tensors)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, artifact_of(**MIXED))
    other = artifact_of(**MIXED | {"model__vocab_size": 62})
    with pytest.raises(WeightsError, match="these tensors have another shape or type"):
        CpuHost.from_file(other, open_weights(file), Arena(other.plan.arena))


def test_a_file_of_other_blocks_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, artifact_of(**MIXED))
    other = artifact_of(**MIXED | {"weights": {"default": "q4_0", "embedding": "f16"}})
    with pytest.raises(WeightsError, match=r"is q8_0, the artifact reads q4_0.*`mlxr run .*compile for them"):
        Model(other, file, host="cpu")


def test_a_model_takes_a_number_of_threads(tmp_path: Path) -> None:
    artifact = artifact_of(**MIXED)
    file = write(tmp_path, artifact)
    assert Model(artifact, file, host="cpu", threads=1).host.threads == 1
    for wanted in (0, -3, thread_counts.usable_cpus() + 1):
        with pytest.raises(HostError, match=f"the number of threads is {wanted}; this process may use"):
            Model(artifact, file, host="cpu", threads=wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_model_says_so(tmp_path: Path) -> None:
    artifact = artifact_of(**MIXED)
    model = Model(artifact, write(tmp_path, artifact), host="cpu", threads=1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model.logits(PROMPT)
        except HostError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as stream:
        assert b"load the model in this process" in stream.read()
