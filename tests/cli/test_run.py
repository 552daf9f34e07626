"""The commands as a user meets them: output, JSON, errors and exit codes."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jinja2
import numpy as np
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.artifact import load_artifact
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.metal import render
from mlxr.compiler.text import size
from mlxr.loading import artifact_cache
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.cache.tiers import block_tiers
from mlxr_tests.few import few
from mlxr_tests.storyteller import ANSWER, BF16, GOLDEN, PROMPT, Q8_0, ROOT, TOKENIZER, storyteller_spec

COMMAND = [sys.executable, "-m", "mlxr.cli"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the bundled model in f32, on disk."""
    folder = tmp_path_factory.mktemp("build") / "storyteller"
    mlxr.compile(storyteller_spec()).write(folder)
    return folder


def test_run_json_has_what_programs_need(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    golden = json.loads((GOLDEN / "storyteller-golden.json").read_text())[0]
    arguments = ["--prompt", golden["prompt"], "--max-tokens", "6", "--temperature", "0", "--json"]
    assert main(["run", str(artifact), "--weights", str(Q8_0), *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["token_ids"] == golden["greedy_fp32"][:6]
    assert golden["text_fp32"].startswith(golden["prompt"] + shown["text"])
    assert shown["prompt_tokens"] == len(golden["ids"])
    assert shown["finish_reason"] == "length"
    plan = load_artifact(artifact).plan
    kernels = plan.programs[shown["host"]].kernels
    assert set(shown["launches"]) == {kernel.name for kernel in kernels if kernel.label != "copy_blocks"}
    assert shown["prefill_tokens_per_second"] > 0
    assert shown["decode_tokens_per_second"] > 0


def test_one_token_has_no_decode_speed(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    main(["run", str(artifact), "--weights", str(Q8_0), "--prompt", "A", "--max-tokens", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["decode_tokens_per_second"] is None


@pytest.mark.long
def test_speculation_gives_the_same_answer_and_says_what_was_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        "run",
        "storyteller",
        "--host",
        "cpu",
        "--temperature",
        "0",
        "--compute",
        "exact",
        "--prompt",
        "The mouse",
        "--json",
    ]
    answers = []
    for options in ([], ["--prompt-lookup"]):
        assert main([*arguments, "--max-tokens", "150", *options]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    plain, speculating = answers
    assert speculating["token_ids"] == plain["token_ids"]
    assert plain["tokens_per_step"] is None and plain["acceptance_rate"] is None
    assert speculating["accepted_tokens"] <= speculating["draft_tokens"] and speculating["tokens_per_step"] >= 1
    assert main([*arguments[:-1], "--max-tokens", "9", "--prompt-lookup", "--stats"]) == 0
    assert "draft tokens accepted" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--prompt-lookup", "--draft", "storyteller"])


def test_the_bundled_model_runs_by_name_and_is_cached(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    arguments = ["run", "storyteller", "--host", "reference", "--prompt", PROMPT, "--max-tokens", "4"]
    arguments += ["--temperature", "0"]
    assert main([*arguments, "--echo", "--stats"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{PROMPT}{ANSWER}\n"
    assert "host reference: 5 prompt tokens" in shown.err
    assert "\n  context 1,024, as the model was compiled; the cache takes " in shown.err
    cached = list((tmp_path / "artifacts").iterdir())
    assert len(cached) == 1
    assert cached[0].name.startswith("storyteller-")
    for damaged in ("plan.json", "manifest.json"):
        before = (cached[0] / damaged).read_text()
        (cached[0] / damaged).write_text("damaged")
        capsys.readouterr()
        assert main(arguments) == 0
        assert capsys.readouterr().err == "", "a damaged cache entry is made anew, without a word"
        assert (cached[0] / damaged).read_text() == before


def test_the_prompt_may_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PROMPT}\n"))
    assert main(["run", "storyteller", "--host", "reference", "--max-tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_sampling_options_reach_the_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "storyteller", "--host", "cpu", "--prompt", "The", "--max-tokens", "4", "--json"]
    texts = []
    for extra in (
        ["--temperature", "5", "--seed", "1"],
        ["--temperature", "5", "--seed", "1"],
        ["--temperature", "5", "--seed", "2"],
        ["--temperature", "5", "--seed", "1", "--top-k", "1"],
        ["--temperature", "5", "--seed", "1", "--top-p", "1e-9"],
        ["--temperature", "5", "--seed", "1", "--min-p", "1"],
        ["--temperature", "0"],
        ["--temperature", "0", "--repetition-penalty", "0.02"],
    ):
        assert main([*arguments, *extra]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    same, again, other, top_k, top_p, min_p, greedy, penalised = texts
    assert penalised != greedy
    assert same == again != other
    assert top_k == top_p == min_p == greedy != same


def test_stats_tell_what_chose_the_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (BF16, BF16.parent / "config.json"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "num_beams": 4}')
    arguments = ["run", str(tmp_path), "--host", "reference", "--prompt", "The", "--raw", "--max-tokens", "1"]
    assert main([*arguments, "--tokenizer", str(TOKENIZER), "--top-k", "9", "--stats"]) == 0
    told = capsys.readouterr().err
    own = "temperature 0.6, top-k 20 (generation_config.json)"
    assert f"sampling: temperature 0.6, top-k 9; by default: {own}\n" in told and "asks for num_beams 4" in told


def test_logits_are_written_as_npy(tmp_path: Path, artifact: Path) -> None:
    path = tmp_path / "logits.npy"
    ids = json.loads((GOLDEN / "storyteller-golden.json").read_text())[1]["ids"]
    tokens = " ".join(map(str, ids))
    assert main(["logits", str(artifact), "--weights", str(BF16), "--tokens", tokens, "-o", str(path)]) == 0
    got, expected = np.load(path), np.load(GOLDEN / "storyteller-fp32-logits-1.npy")
    assert (got.dtype, got.shape) == (np.float32, expected.shape)
    assert np.linalg.norm(got - expected) < 1e-5 * np.linalg.norm(expected)


def test_compile_tells_what_it_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = str(ROOT / "models/storyteller/storyteller.yaml")
    assert compile_main([spec, "-o", str(tmp_path / "a"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["memory"]["total_bytes"] == sum(
        shown["memory"][k] for k in ("weights_bytes", "arena_bytes", "activation_bytes")
    )
    assert {path.stem for path in (tmp_path / "a/kernels").iterdir()} == set(shown["kernels"])
    assert compile_main([spec, "-o", str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    assert "weights  18.1 MiB, f32, q8_0" in text
    assert "total" in text
    assert compile_main(["--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "MLXR model spec"


def test_what_compile_and_inspect_tell_agrees(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Launches are those that run, and a budget counts what the target takes that takes most."""
    spec, folder = tmp_path / "spec.yaml", tmp_path / "a"
    text = (ROOT / "models/storyteller/storyteller.yaml").read_text()
    spec.write_text(text)
    assert compile_main([str(spec), "-o", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    per_chunk = shown["launches_per_prefill_chunk"]
    assert told["launches"] == {"decode": shown["launches_per_decode_token"][0]["launches"], "prefill": per_chunk}
    needed = told["needed_bytes"]
    assert needed == told["cpu"]["memory"]["total_bytes"] > told["memory"]["total_bytes"]
    spec.write_text(f"{text}memory_budget: {needed}\n")
    assert compile_main([str(spec)]) == 0
    assert (
        f"total    {size(told['memory']['total_bytes'])} (metal), {size(needed)} (cpu) of a" in capsys.readouterr().out
    )
    spec.write_text(f"{text}memory_budget: {needed - 1}\n")
    assert compile_main([str(spec)]) == 1
    assert main(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"target cpu: {size(needed)}; no budget" in out and f": {per_chunk} launches" in out.replace("  ", ": ")


def run_arguments(*extra: str) -> list[str]:
    return ["run", "storyteller", "--host", "reference", "--prompt", "A", *extra]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (run_arguments("--max-tokens", "0"), "--max-tokens is 0; expected at least 1"),
        (run_arguments("--temperature", "-1"), "--temperature is -1.0, expected a number from 0"),
        (run_arguments("--top-p", "0"), "--top-p is 0.0"),
        (run_arguments("--weights", "missing.gguf"), "missing.gguf"),
        (run_arguments("--tokenizer", "missing.model"), "missing.model"),
        (["run", "storyteler", "--prompt", "A"], 'did you mean "storyteller"'),
        (["run", "tinyllama-1.1b", "--prompt", "A"], "comes without weights: name a file or folder of them"),
        (["run", str(ROOT / "tests"), "--prompt", "A"], "is not an artifact"),
        (["run", "storyteller", "--host", "reference", "--prompt", "word " * 2000], "the context is 1024"),
        (["logits", "storyteller", "--tokens", "1 x", "-o", "l.npy"], "expected token ids such as"),
        (
            ["logits", "storyteller", "--host", "reference", "--tokens", "9999", "-o", "l.npy"],
            "token id 9999 is outside",
        ),
        (["logits", "storyteller", "--tokens", "1", "-o", "nowhere/l.npy"], "does not exist"),
    ],
)
def test_faulty_input_gives_a_message_and_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nmodle: {}\n", 'did you mean "model"'),
        ("name: [", ":1:"),
        ("", "empty"),
    ],
)
def test_a_faulty_spec_gives_a_message_and_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    assert compile_main([str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_written_gives_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compile_main(["storyteller", "-o", str(tmp_path / "file/out")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["run"], ["run", "storyteller", "--host", "abacus"], ["run", "storyteller", "--seed", "x"]],
)
def test_wrong_usage_gives_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_weights_of_another_model_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny = GOLDEN / "tiny-Q8_0.gguf"
    arguments = [
        "run",
        "storyteller",
        "--host",
        "reference",
        "--weights",
        str(tiny),
        "--tokenizer",
        str(TOKENIZER),
        "--temperature",
        "0",
    ]
    assert main([*arguments, "--prompt", "A"]) == 1
    assert "another model" in capsys.readouterr().err
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Q8_0.read_bytes()[:1_000_000])
    assert main(run_arguments("--weights", str(cut))) == 1
    assert "cut.gguf" in capsys.readouterr().err


def test_ctrl_c_ends_a_run_cleanly() -> None:
    command = [*COMMAND, *run_arguments("--max-tokens", "900", "--stats")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.read(12), "some text came"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    assert b"prompt tokens at" in err, "what was measured is still shown"


def test_ctrl_c_within_a_destructor_ends_a_run_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python drops an exception there."""

    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    shown = list[object]()

    def show(*words: object, **options: object) -> None:
        shown.extend(words)
        if words and len(shown) == 3:
            Ends()

    monkeypatch.setattr("mlxr.cli.run.print", show, raising=False)
    arguments = ["run", "storyteller", "--host", "cpu", "--prompt", "A", "--max-tokens", "20", "--temperature", "0"]
    assert main(arguments) == 130
    assert len(shown) == 3, "nothing more of the answer"
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_reader_that_goes_away_is_no_crash() -> None:
    command = [*COMMAND, *run_arguments("--max-tokens", "200")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""


@pytest.mark.long
def test_without_a_compiler_the_sim_says_what_to_install(tmp_path: Path) -> None:
    """A machine with neither clang nor ziglang, and nothing cached."""
    hide = "import sys; sys.modules['ziglang'] = None; from mlxr.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MLXR_CACHE_DIR": str(tmp_path),
        "PATH": "",
        "HOME": str(tmp_path),
    }
    if shutil.which("clang", path=os.defpath):
        pytest.skip("a system clang would be found")
    command = [sys.executable, "-c", hide, "run", "storyteller", "--host", "sim", "--prompt", "A"]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "pip install ziglang" in run.stderr


def test_a_changed_template_is_not_answered_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    before, _ = resolve_artifact("storyteller")
    assert len(list((tmp_path / "artifacts").iterdir())) == 1
    read = Path.read_bytes

    def edited(self: Path) -> bytes:
        return read(self) + (b"// edited" if self.name == "embed.metal.jinja" else b"")

    monkeypatch.setattr(Path, "read_bytes", edited)
    # As another process would ask: one hashes the compiler once.
    monkeypatch.setattr(artifact_cache, "_compiler_digest", artifact_cache._compiler_digest.__wrapped__)
    after, _ = resolve_artifact("storyteller")
    assert len(list((tmp_path / "artifacts").iterdir())) == 2
    assert before.digest == after.digest, "only the key was edited here"


@pytest.mark.long
def test_debug_level_4_tells_of_launches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_DEBUG", "4")
    assert main(["run", "storyteller", "--host", "sim", "--prompt", "A", "--max-tokens", "1"]) == 0
    assert "sim: attend_prefill_" in capsys.readouterr().err


@pytest.mark.parametrize("redirect", few([">&-", "<&- --prompt A", "> /dev/full"], ["> /dev/full"]))
def test_closed_or_full_streams_are_no_crash(redirect: str) -> None:
    arguments = "run storyteller --host reference --max-tokens 2 --prompt A"
    command = f"{sys.executable} -m mlxr.cli {arguments} {redirect}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        ["sh", "-c", command], check=False, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in run.stderr
    assert run.returncode == (1 if "full" in redirect else 0)


@pytest.mark.parametrize("after", few([0.05, 0.2, 0.4], [0.2]))
def test_ctrl_c_while_starting_is_no_crash(after: float) -> None:
    script = "import signal, sys; from mlxr.cli import main; "
    script += "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT)); "
    script += f"signal.setitimer(signal.ITIMER_REAL, {after}); sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, *run_arguments("--max-tokens", "90")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(3):
        run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
        if run.returncode == 130 or "Exception ignored in" not in run.stderr:
            break  # else Python itself dropped the interrupt, which fell in a callback or a destructor
    assert run.returncode == 130
    assert "Traceback" not in run.stderr


def test_the_cache_outlives_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In another folder than the cache of what is compiled, which is slow to make again."""
    monkeypatch.setattr(block_tiers, "cache_folder", lambda kind: tmp_path / kind)
    arguments = [
        "run",
        "storyteller",
        "--host",
        "cpu",
        "--json",
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--kv-disk",
        "64MiB",
    ]
    arguments += ["--prompt", "Once upon a time there was a miller who had a very old mill and three young sons"]
    answers = []
    for _ in range(2):
        assert main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [answer["cached_tokens"] for answer in answers] == [0, 16]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments[:-4], "--kv-memory", "much"])
    assert "'much' is not a size; expected 0, or one such as 512MiB" in capsys.readouterr().err


def test_a_mistake_in_a_template_names_the_template(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text, message in [("{{ k.hiden_size }}", "hiden_size"), ("{% block", "embed.metal.jinja:1")]:
        templates = tmp_path / f"t{len(text)}/metal"
        shutil.copytree(ROOT / "templates/metal", templates)
        (templates / "embed.metal.jinja").write_text(text)
        fresh = environment().overlay(loader=jinja2.FileSystemLoader(templates.parent), cache_size=0)
        monkeypatch.setattr(render, "environment", lambda fresh=fresh: fresh)
        render._render.cache_clear(), render._draft.cache_clear()
        assert compile_main(["storyteller"]) == 1
        err = capsys.readouterr().err
        assert message in err
        assert "embed.metal.jinja" in err
