"""Records how far our logits are from those of other code, for the table in docs/families.md.

    PYTHONPATH=src:tests/support python tests/families/record_errors.py [FAMILY ...]

It runs every tiny model of `family_models` beside mlx-lm on hosts `reference` and `cpu`, and every GGUF file of
`family_gguf` beside what llama.cpp gave, and takes some minutes; of families that are not named, what is recorded
stays. Then: python docs/make_families.py.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from mlxr_tests import family_gguf, family_models
from mlxr_tests.family_oracle import Floats, logits_of, mlx_lm_logits, prompts, relative_error

RECORDED = Path(__file__).parents[1] / "data" / "family_errors.json"
LLAMA_CPP = Path(__file__).with_name("llama_cpp_logits.npz")


def folder_error(case: str, folder: Path) -> float:
    """The worst relative error of a tiny model's logits beside mlx-lm's."""
    config = family_models.config_of(case)
    model, tokens = family_models.build_model(config), prompts(config["vocab_size"])
    path = family_models.save_folder(model, config, folder)
    want = mlx_lm_logits(model, tokens)
    return max(relative_error(logits_of(path, tokens, host), want) for host in ("reference", "cpu"))


def gguf_error(case: str, folder: Path) -> float:
    """The same beside llama.cpp's, apart from what all logits of a token share."""
    path = family_gguf.write_gguf(case, folder)
    with np.load(LLAMA_CPP) as recorded:
        want = [recorded[f"{case} {sequence}"] for sequence in range(2)]
    got = logits_of(path, prompts(family_models.VOCAB), "reference")
    return relative_error([_centred(rows) for rows in got], [_centred(rows) for rows in want])


def _centred(rows: Floats) -> Floats:
    return rows - rows.mean(axis=-1, keepdims=True)


def _family(case: str) -> str:
    family = case.partition(",")[0]
    return "mistral" if family == "mistral3" else family  # a name of GGUF alone


def main(families: list[str]) -> None:
    """Records all cases of these families, or of all; of several of a family the worst."""
    held = json.loads(RECORDED.read_text()) if families else {}
    errors: dict[str, dict[str, float]] = {}
    for name, cases, measure in (
        ("mlx-lm", family_models.CONFIGS, folder_error),
        ("llama.cpp", family_gguf.CASES, gguf_error),
    ):
        for case in cases:
            if families and _family(case) not in families:
                continue
            with tempfile.TemporaryDirectory() as folder:
                error = measure(case, Path(folder))
            of = errors.setdefault(_family(case), {})
            of[name] = float(f"{max(error, of.get(name, 0.0)):.1g}")
            print(f"{case}: {error:.2g} from {name}", flush=True)
    lines = ",\n".join(f" {json.dumps(family)}: {json.dumps(of)}" for family, of in sorted((held | errors).items()))
    RECORDED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
