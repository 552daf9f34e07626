"""Converts tiny models of every family to GGUF by llama.cpp's own converter, and compares logits: needs torch.

    pip install torch --target DIR; unpack llama.cpp's sources (llama-cpp-python's sdist has them) to LLAMA
    PYTHONPATH=src:tests/support:DIR python tests/families/try_converter.py LLAMA [--server FILE] [FAMILY ...]

transformers makes and saves each model (see record_config_effects.py), so names, orders of rows and metadata are those
of published files, and nothing of them is ours. Three files of each: as converted by default, with joined projections
of queries, keys and values, and with joined gate and up projections of experts. GGUF has no key for some of what
config.json says, and the converter drops that. So where MLXR differs from transformers, llama.cpp's program
`llama-server` decides: the same logits after the last token, by the probabilities that it tells.
"""

import argparse
import json
import logging
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from record_config_effects import Transformers

from mlxr_tests import config_effects as cases
from mlxr_tests.family_oracle import logits_of, prompts, relative_error

TOLERANCE = 2e-5
FORMS: dict[str, dict[str, bool]] = {
    "": {},
    "joined qkv": {"fuse_qkv": True},
    "joined experts": {"fuse_gate_up_exps": True},
}
MORE: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "deepseek_v32": {"scoring_func": "sigmoid"},
    "glm4_moe_lite": {"scoring_func": "sigmoid"},
    "cohere2": {"rotary_pct": 1.0},
    "gpt2": {"n_ctx": 64},
    "hunyuan_v1_moe": {
        "moe_intermediate_size": [88] * cases.NUM_LAYERS,
        "num_shared_expert": [1] * cases.NUM_LAYERS,
        "moe_topk": [2] * cases.NUM_LAYERS,
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0] * (cases.NUM_LAYERS // 2),
        **{"swa_head_dim": 48, "swa_v_head_dim": 32, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2},
        "topk_method": "noaux_tc",
        "rope_parameters": cases.FAMILIES["mimo_v2_flash"]["rope_parameters"] | {"partial_rotary_factor": 0.334},
        "routed_scaling_factor": None,  # llama.cpp has none
    },
    "mpt": {"architectures": ["MPTForCausalLM"]},
    "ministral3": {"rope_parameters": cases.FAMILIES["ministral3"]["rope_parameters"] | {"mscale_all_dim": 1.0}},
}
"""Keys that the converter needs, and published files have."""
PROMPT = prompts(cases.VOCAB)[0]
_TEMPERATURE = 4.0
"""Spreads probabilities, so that each is told with all its digits."""


def convert(llama: Path, folder: Path, target: Path, options: dict[str, bool]) -> None:
    """Writes a GGUF file in f32."""
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    import gguf  # the converter's own
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    kind.set_vocab = _vocabulary
    kind(folder, gguf.LlamaFileType.ALL_F32, target, eager=True, **options).write()


def _vocabulary(model: Any) -> None:
    """In place of the vocabulary of a tokenizer that the folder has not."""
    writer, count = model.gguf_writer, cases.VOCAB
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, count))])
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([2, 3, 3, *[1] * (count - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def served(server: str, path: Path) -> npt.NDArray[np.floating[Any]]:
    """llama-server's logits after the prompt, but for a number added to all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"-c 256 -t 1 -ctk f32 -ctv f32 -fa off --swa-full --no-warmup -np 1 --host 127.0.0.1 --port {port}"
    process = subprocess.Popen(
        [server, "-m", str(path), *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    body = {"prompt": PROMPT, "n_predict": 1, "n_probs": cases.VOCAB, "temperature": _TEMPERATURE}
    body |= {"samplers": ["temperature"], "post_sampling_probs": True}
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        for _ in range(300):
            time.sleep(0.1)
            if process.poll() is not None:
                raise RuntimeError("llama-server: " + (process.stdout.read()[-400:] if process.stdout else ""))
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", data, kind)
                answer = json.load(urllib.request.urlopen(request))
            except OSError:
                continue
            logits = np.full(cases.VOCAB, np.nan)
            for told in answer["completion_probabilities"][0]["top_probs"]:
                logits[told["id"]] = np.log(told["prob"]) * _TEMPERATURE
            return logits
        raise RuntimeError("llama-server does not answer")
    finally:
        process.kill()
        process.wait()


def _try(llama: Path, server: str | None, family: str, options: dict[str, bool]) -> str:
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        folder, target = Path(name) / "hf", Path(name) / "model.gguf"
        folder.mkdir()
        reference = Transformers(family, folder)
        config = cases.base_config(family, cases.spellings(family)[0])
        wanted = reference.logits(config)
        made = type(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))).__name__
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [made]} | MORE.get(family, {})))
        vocabulary = {"model": {"vocab": {f"w{i}": i for i in range(cases.VOCAB)}}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        convert(llama, folder, target, options)
        got = logits_of(target, [PROMPT] * 2, "reference")[0][-1]
        error = relative_error([got], [np.asarray(wanted)])
        if error < TOLERANCE:
            return f"ok {error:.1e}"
        if server is None:
            return f"DIFFERS {error:.1e}"
        theirs = served(server, target)
        from_llama = relative_error([got - got.mean()], [theirs - theirs.mean()])
        kind = "ok, as llama.cpp" if from_llama < 2e-4 else "DIFFERS"
        return f"{kind}: {from_llama:.1e} from llama.cpp, {error:.1e} from transformers"


def main() -> int:
    """Tries families; returns how many files differ or fail."""
    parser = argparse.ArgumentParser(description="Compare with files of llama.cpp's converter.")
    parser.add_argument("llama", type=Path)
    parser.add_argument("--server")
    parser.add_argument("families", nargs="*", default=list(cases.FAMILIES))
    args = parser.parse_intermixed_args()
    logging.disable(logging.CRITICAL)
    wrong = 0
    for family in args.families:
        for form, options in FORMS.items():
            try:
                told = _try(args.llama, args.server, family, options)
            except Exception as error:
                told = re.sub(r"/tmp/\S+/", "", f"{type(error).__name__}: {error}")[:300]
            wrong += not told.startswith("ok")
            print(f"{family:20} {form:15} {told}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
