"""Every family as mlx-lm makes and saves it: imported by us, its logits are mlx-lm's.

mlx-lm sees each sequence whole, without a cache; we see both in chunks, mixed steps and decode steps, past the window.
Where mlx-lm deviates from a model's definition, its config here is one for which it does not:

* gemma2: mlx-lm has no sliding window, so the window is as long as the context;
* phi3: mlx-lm always takes LongRoPE's long factors, so the context is longer than the original one;
* glm: mlx-lm rotates whole heads, so the config says so;
* gpt_oss: mlx-lm's YaRN rounds its ramp to whole pairs, which the published config turns off by `truncate: false`;
* dots1: mlx-lm lets experts of other groups in where a score with its bias is below 0, so there is one group;
* kimi_linear: mlx-lm's norm of latents has the epsilon of all others, and transformers' 1e-6, so all have that;
* mimo_v2_flash: mlx-lm counts the query among the tokens of a window and transformers does not, so the window is as
  long as the context, and there is one group of experts, as for dots1;
* starcoder2: mlx-lm's gelu is the exact one, so the config says `gelu` and not `gelu_pytorch_tanh`.
"""

from pathlib import Path

import pytest

from mlxr_tests import family_gguf
from mlxr_tests.family_models import CONFIGS, build_model, config_of, save_folder
from mlxr_tests.family_oracle import logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few

TOLERANCE = 1e-4


ON_CPU = ["gemma2"]
ELSEWHERE = [
    *("glm", "internlm3", "olmo3, square", "glm4_moe, no qk norm", "ernie4_5, no biases", "seed_oss", "granitemoe"),
    "llama, 32 layers",
    *("dots1", "helium", "mimo", "ernie4_5_moe, first layer", "qwen2, output", "minimax"),
    *("olmoe, GQA 1", "olmo2, square", "exaone4, square", "qwen3_5, square", "qwen3_5_moe, square"),
    *("qwen3_next, square", "qwen3_moe, a dense layer", "qwen3_next, a dense layer", "gemma3_text, seven layers"),
    *("exaone4, no window", "deepseek_v3, one projection of queries", "deepseek_v2, one projection"),
    *("falcon_h1, tied", "granitemoehybrid, mamba", "internlm2, biases", "lfm2_moe, no scale", "step3p5, scaled"),
    *("llama4_text, without experts", "llama, 40 layers"),
]
"""Cases whose parts other cases have too: long ones."""
ALONE = (
    *("ernie4_5", "exaone", "nemotron", "nemotron_h, experts", "granitemoehybrid, experts", "gemma4_text, experts"),
    "mimo_v2_flash, long values",
)
"""Cases that are long in test_gguf.py."""
IN_BOTH = [case for case in CONFIGS if case in family_gguf.CASES and case not in ALONE]
"""Models whose logits test_gguf.py computes too, from a file of the other kind: a sixth of them are short here."""
CASES = [(case, host) for case in CONFIGS for host in ("reference", "cpu")]
LEFT_OUT = {*ELSEWHERE, *IN_BOTH} - {*IN_BOTH[::6]}
SHORT = [(case, host) for case, host in CASES if (host == "reference" and case not in LEFT_OUT) or case in ON_CPU]


@pytest.mark.parametrize(("case", "host"), few(CASES, SHORT))
def test_logits_are_those_of_mlx_lm(case: str, host: str, tmp_path: Path) -> None:
    config = config_of(case)
    model = build_model(config)
    tokens = prompts(config["vocab_size"])
    folder = save_folder(model, config, tmp_path / "model")
    assert relative_error(logits_of(folder, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE
