"""The files of every family over two ranks: each reads its part of them, and together they give the model's logits.

The files are those of the other tests of families. Quantised ones: test_quantised.py.
"""

from pathlib import Path

import pytest

from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.parallel import Parallel
from mlxr_tests.family_gguf import CASES, write_gguf
from mlxr_tests.family_models import CONFIGS, VOCAB, build_model, config_of, save_folder
from mlxr_tests.family_oracle import logits_of, mlx_lm_logits, prompts
from mlxr_tests.few import few
from mlxr_tests.split_logits import check_split


@pytest.mark.long
@pytest.mark.parametrize("case", few(CONFIGS, ["phi3"]))
def test_folders(case: str, tmp_path: Path) -> None:
    config, tokens = config_of(case), prompts(VOCAB)
    model = build_model(config)
    folder = save_folder(model, config, tmp_path / "model")
    check_split(folder, tokens, mlx_lm_logits(model, tokens), 1e-4)


@pytest.mark.parametrize("case", few(CASES, ["gpt_oss"]))
def test_gguf(case: str, tmp_path: Path) -> None:
    """The reference's logits are llama.cpp's: see test_gguf.py."""
    path, tokens = write_gguf(case, tmp_path), prompts(VOCAB)
    check_split(path, tokens, logits_of(path, tokens, "reference"), 1e-5)


def test_stages_part_before_layers_whose_keys_later_ones_use(tmp_path: Path) -> None:
    """Gemma 4 E2B and E4B, whose vectors of layers go from stage to stage beside the residual stream."""
    path, tokens = write_gguf("gemma4_text, vectors", tmp_path), prompts(VOCAB)
    check_split(path, tokens, logits_of(path, tokens, "reference"), 1e-5, Parallel(pipeline=2))
    with pytest.raises(
        PlanError, match=r"layer 3 shares the rows of layer 1, which an earlier stage has; split the mo"
    ):
        check_split(path, tokens, [], 1e-5, Parallel(pipeline=2, layers=(3, 3)))
