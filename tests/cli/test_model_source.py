"""What MODEL may be: a GGUF file, a folder, an artifact that options change; and what is cached of it."""

import gc
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.errors import MlxrError, SpecError, WeightsError
from mlxr.compiler.spec.change import Changes
from mlxr.loading import load
from mlxr.loading.resolve import resolve_artifact
from mlxr_tests.few import few
from mlxr_tests.storyteller import ANSWER, BF16, GOLDEN, PROMPT, Q8_0, TOKENIZER

TINY = GOLDEN / "tiny-Q4_K_M.gguf"


NAMES = ["f32", "Q8_0", "Q4_K_M", "Q2_K", "Q3_K_S", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS"]
ON_HOSTS = [(name, host) for host in ("reference", "cpu") for name in NAMES]


@pytest.mark.parametrize(("name", "host"), few(ON_HOSTS, [("f32", "reference")]))
def test_a_gguf_file_gives_what_llama_cpp_gives(tmp_path: Path, name: str, host: str) -> None:
    golden = np.load(GOLDEN / "tiny-llamacpp.npz")
    tokens = " ".join(map(str, golden["tokens"]))
    path = tmp_path / "logits.npy"
    arguments = ["logits", str(GOLDEN / f"tiny-{name}.gguf"), "--tokens", tokens, "-o", str(path)]
    assert main([*arguments, "--host", host, "--compute", "exact"]) == 0
    got, expected = np.load(path), golden[f"logits_{name}"]
    # llama.cpp rounds activations to 8 bits, but not of f32 weights.
    limit = 1e-3 if name == "f32" else 0.04
    assert np.linalg.norm(got - expected) < limit * np.linalg.norm(expected)


def test_a_gguf_file_runs_with_its_own_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    golden = json.loads((GOLDEN / "storyteller-golden.json").read_text())[0]
    arguments = [
        "run",
        str(Q8_0),
        "--prompt",
        golden["prompt"],
        "--max-tokens",
        "6",
        "--json",
        "--host",
        "reference",
        "--temperature",
        "0",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == golden["greedy_fp32"][:6]


def test_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hugging_face, gguf, both = tmp_path / "hf", tmp_path / "gguf", tmp_path / "two"
    for folder in (hugging_face, gguf, both):
        folder.mkdir()
    for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
        shutil.copy(path, hugging_face)
    shutil.copy(TINY, gguf)
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(TINY, both / name)
    artifact, weights = resolve_artifact(str(hugging_face))
    assert (artifact.spec.name, weights) == ("hf", hugging_face)
    artifact, weights = resolve_artifact(str(gguf))
    assert (artifact.spec.name, weights) == ("tiny-Q4_K_M", gguf / TINY.name)
    assert main(["run", str(both), "--prompt", "A"]) == 1
    assert "is not an artifact" in capsys.readouterr().err
    arguments = ["run", str(hugging_face), "--host", "reference", "--prompt", PROMPT, "--max-tokens", "4"]
    arguments += ["--temperature", "0"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_compute_and_context_are_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("storyteller", str(TINY)):
        spec = resolve_artifact(name, Changes(context=100, compute="exact"))[0].spec
        assert (spec.model.context, spec.compute) == (100, "exact")
        assert resolve_artifact(name)[0].spec.compute == "fast"
    arguments = ["run", str(TINY), "--host", "reference", "--prompt", "A", "--max-tokens", "1"]
    assert main([*arguments, "--context", "513"]) == 1
    assert "the model's own context is 512 tokens; 513 are asked for" in capsys.readouterr().err
    assert main([*arguments, "--context", "0"]) == 1
    assert "--context is 0; expected at least 1" in capsys.readouterr().err


@pytest.mark.long
def test_determinism_is_an_option_and_what_is_compiled_for_sim_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("storyteller", str(TINY)):
        plan = resolve_artifact(name, Changes(deterministic=True))[0].plan
        assert all(program.batch_invariant for program in plan.programs.values())
        assert not any(program.batch_invariant for program in resolve_artifact(name)[0].plan.programs.values())
    exact = resolve_artifact("storyteller", Changes(compute="exact"))[0].plan
    assert {target: program.batch_invariant for target, program in exact.programs.items()} == {
        "metal": False,
        "cpu": True,
    }
    assert main(["inspect", "storyteller", "--deterministic"]) == 0
    assert "the same  whatever else is in a batch" in capsys.readouterr().out
    with mlxr.load(TINY, host="sim") as model:
        assert model.artifact.spec.deterministic
    with mlxr.load(mlxr.compile(TINY), TINY, host="sim") as model:
        assert not model.artifact.spec.deterministic, "an artifact runs as it is"


def test_an_artifact_that_options_change_is_compiled_again_from_its_spec(tmp_path: Path) -> None:
    folder = tmp_path / "storyteller"
    mlxr.compile("storyteller").write(folder)
    same, weights = resolve_artifact(str(folder), Changes(compute="fast"))
    assert weights is None
    assert same.digest == mlxr.compile("storyteller").digest
    other, _ = resolve_artifact(str(folder), Changes(compute="exact", sequences=2))
    assert (other.spec.compute, other.spec.cache.max_sequences) == ("exact", 2)
    assert other.plan.arena.max_sequences == 2


def test_changes_that_contradict_the_spec_are_refused(tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    text = (Path(__file__).parents[2] / "models/storyteller/storyteller.yaml").read_text()
    spec.write_text(text.replace("mode: auto", "mode: contiguous"))
    with pytest.raises(SpecError, match="mode contiguous holds one sequence, got max_sequences 2"):
        resolve_artifact(str(spec), Changes(sequences=2))


def test_what_is_compiled_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        resolve_artifact(str(TINY))
        resolve_artifact(str(TINY), Changes(compute="exact"))
    assert len(list((tmp_path / "artifacts").iterdir())) == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "holds no JSON object"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        (" " * 2_000_000, "larger than 1048576 bytes"),
        ("{}", "model_type is missing; supported: "),
    ],
)
def test_a_faulty_config_is_refused(tmp_path: Path, config: str, message: str) -> None:
    shutil.copy(BF16, tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(MlxrError, match=message):
        resolve_artifact(str(tmp_path))


def test_cut_files_are_refused(tmp_path: Path) -> None:
    data = TINY.read_bytes()
    path = tmp_path / "cut.gguf"
    for percent in range(0, 100, 7):
        path.write_bytes(data[: len(data) * percent // 100])
        with pytest.raises(MlxrError, match=r"cut\.gguf"):
            resolve_artifact(str(path))


def test_no_weights_are_looked_for_in_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "tiny-Q8_0.gguf", tmp_path)
    monkeypatch.chdir(tmp_path)
    for weights in (None, ""):
        with pytest.raises(WeightsError, match=r"^tinyllama-1.1b comes without weights: name a file .{,60}$"):
            mlxr.load(mlxr.compile("tinyllama-1.1b"), weights)


def test_python_looks_for_garbage_again_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a model loads it would find none, and look long."""
    seen: list[bool] = []

    def refuse(*_: object, **__: object) -> None:
        seen.append(gc.isenabled())
        raise SpecError("no")

    monkeypatch.setattr(load, "artifact_of", refuse)
    with pytest.raises(SpecError):
        mlxr.load("storyteller", host="reference")
    assert seen == [False] and gc.isenabled()
