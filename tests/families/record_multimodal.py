"""Records the logits that transformers gives of text alone with models that also take images: needs torch.

    pip install torch --target DIR
    PYTHONPATH=src:tests/support:DIR python tests/families/record_multimodal.py [CASE ...]

See `mlxr_tests.multimodal_models` for the cases.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mlxr_tests import multimodal_models as cases
from mlxr_tests.family_oracle import prompts


def record(case: str, folder: Path) -> dict[str, Any]:
    """One case."""
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file

    config = json.loads(json.dumps(cases.CONFIGS[case]))  # a copy: reference code writes into its argument's sections
    models = transformers.AutoModelForImageTextToText
    models.from_config(transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as held:
        shapes = {name: list(held.get_slice(name).get_shape()) for name in held.keys()}  # noqa: SIM118
    save_file(cases.weights(case, shapes), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(cases.CONFIGS[case]))
    model, info = models.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    if any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise ValueError(f"the weights do not fit: {info}")
    if case.startswith("llama4"):  # whose whole, in transformers 5.24, fails without images
        model = model.language_model
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([prompts(cases.VOCAB)[0]])).logits[0, -1]
    told = [float(np.format_float_positional(np.float32(number), unique=True)) for number in logits.tolist()]
    return {"reference": f"transformers {transformers.__version__}", "shapes": shapes, "logits": told}


def main(chosen: list[str]) -> None:
    """Records the cases, and keeps what is recorded of others."""
    logging.disable(logging.CRITICAL)
    held = json.loads(cases.RECORDED.read_text()) if chosen else {}
    for case in chosen or cases.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            held[case] = record(case, Path(folder))
        print(case)
    lines = [f" {json.dumps(case)}: {json.dumps(held[case])}" for case in cases.CONFIGS]
    cases.RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
