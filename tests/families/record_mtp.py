"""Records what transformers' heads guess: needs torch.

    pip install torch --target DIR
    PYTHONPATH=src:tests/support:DIR python tests/families/record_mtp.py

See `mlxr_tests.mtp_models` for the cases.
"""

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mlxr_tests import mtp_models as cases


def record(case: str, folder: Path) -> dict[str, Any]:
    """One case: the model's own code saves its shapes, and reads what it is given in their place."""
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    config = transformers.CONFIG_MAPPING[cases.CONFIGS[case]["model_type"]].from_dict(dict(cases.CONFIGS[case]))
    model = transformers.AutoModelForCausalLM.from_config(config)
    number = cases.NUM_LAYERS
    is_qwen = case.startswith("qwen")
    if not is_qwen:  # which names the layers of its large models
        type(model)._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}\..*"]
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as held:
        shapes = {name: list(held.get_slice(name).get_shape()) for name in held.keys()}  # noqa: SIM118
    last, hidden = f"model.layers.{number - 1}.", config.hidden_size
    own, beside = f"model.layers.{number}.", ("enorm", "hnorm", "shared_head.norm", "eh_proj")
    if is_qwen:
        own, beside = "mtp.layers.0.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
    shapes |= {name.replace(last, own): s for name, s in shapes.items() if last in name}
    prefix = "mtp." if is_qwen else own
    shapes |= {f"{prefix}{name}.weight": [hidden] for name in beside[:3]}
    shapes[f"{prefix}{beside[3]}.weight"] = [hidden, 2 * hidden]
    save_file(cases.weights(shapes), folder / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if is_qwen:
        model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    head = MtpModel.from_pretrained(model).eval()
    head.config._attn_implementation = "eager"
    ids = torch.tensor([cases.prompt()])
    logits = []
    with torch.no_grad():
        rows = model.eval()(ids[:, :-1], output_hidden_states=True).hidden_states[-1]
        cache = MtpCache(config=model.config.get_mtp_config())
        positions, tokens = torch.arange(1, ids.shape[1])[None], ids[:, 1:]
        for _ in range(cases.NUM_GUESSES):
            rows = head.forward_layer(0, rows, positions, cache, input_ids=tokens)[:, -1:]
            guessed = head._project_to_logits(rows)[0, -1]
            logits.append([float(np.format_float_positional(np.float32(x), unique=True)) for x in guessed.tolist()])
            positions, tokens = positions[:, -1:] + 1, guessed.argmax(-1)[None, None]
    return {"reference": f"transformers {transformers.__version__}", "shapes": shapes, "logits": logits}


def main() -> None:
    """Records all cases."""
    logging.disable(logging.CRITICAL)
    held = {}
    for case in cases.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            held[case] = record(case, Path(folder))
        print(case)
    lines = [f" {json.dumps(case)}: {json.dumps(entry)}" for case, entry in held.items()]
    cases.RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
