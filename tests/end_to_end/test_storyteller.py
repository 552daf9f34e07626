"""The bundled model end to end: the recorded fp32 run, token for token, on every host that runs here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.engine.sampling import Row, Sampler, sample_rows
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.few import few
from mlxr_tests.instruction_sets import held_to
from mlxr_tests.storyteller import BF16, GOLDEN, Q4_K_M, Q8_0, TOKENIZER, storyteller_spec

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU"))
METAL = pytest.param("metal", marks=pytest.mark.skipif(not mx.metal.is_available(), reason="no Apple GPU"))
# That each gives the right logits, test_instruction_sets.py says.
CPUS = [pytest.param(f"cpu-{isa}", marks=[*marks, pytest.mark.long]) for isa, marks in held_to()]
HOSTS = ("sim", CUDA, METAL, "cpu", *CPUS, "reference")
LONG_HOSTS = [pytest.param(host, marks=pytest.mark.long) for host in (HOSTS[0], HOSTS[-1])]
Storyteller = Callable[[str, str], mlxr.Model]


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("host", [*LONG_HOSTS, *HOSTS[1:-1]])
@pytest.mark.parametrize("weights", few(["bf16", "q8_0"], ["q8_0"]))
def test_greedy_tokens_are_the_recorded_ones(
    storyteller: Storyteller, golden: list[dict[str, Any]], host: str, weights: str
) -> None:
    model = storyteller(host, weights)
    answers = model.start([g["ids"] for g in golden], max_tokens=48, ignore_eos=True).finish()
    for answer, recorded in zip(answers, golden, strict=True):
        assert answer.token_ids == recorded["greedy_fp32"]
        assert recorded["prompt"] + answer.text == recorded["text_fp32"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("number", range(3))
def test_prompt_logits_are_the_recorded_ones(
    storyteller: Storyteller, golden: list[dict[str, Any]], host: str, number: int
) -> None:
    recorded = np.load(GOLDEN / f"storyteller-fp32-logits-{number}.npy")
    got = storyteller(host, "bf16").logits(golden[number]["ids"])
    assert got.shape == recorded.shape
    assert got.dtype == np.float32
    assert relative_error(got, recorded) < 1e-5


def test_prompt_ids_come_from_the_tokenizer(storyteller: Storyteller, golden: list[dict[str, Any]]) -> None:
    model = storyteller("cpu", "q8_0")
    assert [model.encode(g["prompt"]) for g in golden] == [g["ids"] for g in golden]


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"weights": {"default": "bf16"}}, 1e-5),
        ({"weights": {"default": "f16"}}, 1e-4),
        ({"cache": {"layout": "layer", "block_size": 32}}, 1e-5),
        ({"cache": {"mode": "contiguous", "max_sequences": 1}}, 1e-5),
        ({"weights": {"default": "bf16"}, "activation_dtype": "bf16", "cache": {"dtype": "bf16"}}, 2e-2),
        ({"weights": {"default": "f16"}, "activation_dtype": "f16", "cache": {"dtype": "f16"}}, 3e-3),
    ],
    ids=["bf16-weights", "f16-weights", "layer-layout", "contiguous", "bf16-throughout", "f16-throughout"],
)
@pytest.mark.long
def test_variants_of_the_spec_give_the_same_logits(
    golden: list[dict[str, Any]], changes: dict[str, Any], tolerance: float
) -> None:
    artifact = compile_spec(storyteller_spec(**changes)).artifact
    model = mlxr.load(artifact, BF16, host="sim")
    recorded = np.load(GOLDEN / "storyteller-fp32-logits-0.npy")
    ids = golden[0]["ids"]
    # Half as a prefill, half token by token: both plans see the variant.
    seen = len(ids) // 2
    prefill = model.logits(ids[:seen])
    assert relative_error(prefill, recorded[:seen]) < tolerance
    answer = model.start([ids], max_tokens=12, ignore_eos=True).finish()[0]
    if tolerance <= 1e-4:
        assert answer.token_ids == golden[0]["greedy_fp32"][:12]
    else:
        assert answer.token_ids[0] == golden[0]["greedy_fp32"][0]


QUANTISED = [(Q8_0, "fp32_on_q8_0", {"q8_0", "f32"}), (Q4_K_M, "fp32_on_q4_k_m", {"q4_k", "q6_k", "f32"})]


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "recorded", "formats"),
    few(QUANTISED, QUANTISED[1:]),
    ids=["q8_0", "q4_k_m"],
)
def test_quantised_files_run_as_they_are(
    golden: list[dict[str, Any]], path: Path, recorded: str, formats: set[str]
) -> None:
    """Metal kernels read a GGUF file's blocks, and give what fp32 arithmetic on their numbers gives."""
    spec, _ = import_model(path, ImportOptions(activation_dtype="f32"))
    spec = spec.model_copy(update={"cache": storyteller_spec(cache={"max_sequences": 3}).cache})
    artifact = compile_spec(spec, targets=("metal",)).artifact
    assert {str(part.format) for weight in artifact.plan.weights for part in weight.parts} == formats
    assert artifact.plan.first.memory.weights_bytes == pytest.approx(path.stat().st_size, rel=0.02), (
        "no number is widened"
    )
    model = mlxr.load(artifact, path, host="sim", tokenizer=TOKENIZER)
    answers = model.start([g["ids"] for g in golden[:2]], max_tokens=4, ignore_eos=True).finish()
    assert [answer.token_ids for answer in answers] == [g[recorded]["greedy"][:4] for g in golden[:2]]
    labels = {artifact.plan.first.kernel(kernel).label for kernel in model.host.launches}
    assert {"qkv_gemm", "qkv_rows", "gate_up_gemm", "gate_up_rows", "logits_rows"} <= labels


def test_the_answer_ends_at_an_end_of_sequence_token(storyteller: Storyteller) -> None:
    model = storyteller("cpu", "q8_0")
    assert model.tokenizer is not None
    prompt = "and they lived happily ever after."
    after = model.logits(model.encode(prompt))[-1]
    # EOS is among the 30 likeliest tokens here; look for a seed that draws it.
    options = (mlxr.Sampling(temperature=100, top_k=30, seed=seed) for seed in range(500))
    sampling = next(
        o for o in options if sample_rows(after[None], [Row(Sampler(o), 0)])[0].token == model.tokenizer.eos_id
    )
    answer = model.generate(prompt, max_tokens=5, sampling=sampling)
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([model.tokenizer.eos_id], "", "stop")
    on = model.start([prompt], max_tokens=5, sampling=sampling, ignore_eos=True).finish()[0]
    assert (len(on.token_ids), on.finish_reason) == (5, "length")


def test_the_same_seed_gives_the_same_text_alone_or_in_company(storyteller: Storyteller) -> None:
    model = storyteller("cpu", "q8_0")
    sampling = mlxr.Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, seed=11)
    alone = model.generate("The fox said", max_tokens=6, sampling=sampling)
    again, other = model.start(["The fox said", "A king had"], max_tokens=6, sampling=sampling).finish()
    assert alone.token_ids == again.token_ids
    assert alone.token_ids != other.token_ids


def test_a_generate_call_launches_every_kernel_of_the_bundled_artifact() -> None:
    artifact = mlxr.compile(storyteller_spec())
    model = mlxr.load(artifact, Q8_0, host="sim")
    model.generate("Once upon a time", max_tokens=3)
    layers, decoded = artifact.plan.num_layers, 2
    expected = {"embed": 1 + decoded, "logits": 1 + decoded}
    for label in ("qkv", "attend", "o", "gate_up", "down"):
        expected[label] = layers * decoded
    for label in ("qkv_rows", "rope_cache_write", "attend_prefill", "o_rows", "gate_up_rows", "down_rows"):
        expected[label] = layers
    labels = {kernel.name: kernel.label for kernel in artifact.plan.first.kernels}
    assert {labels[name]: count for name, count in model.host.launches.items()} == expected
    # One prompt asks for one row of logits, and shares no block; several rows are those of several sequences.
    assert set(labels.values()) - {"logits_rows", "copy_blocks"} == set(expected)
