"""Records what each key of config.json does in the references: needs torch beside transformers and mlx-lm.

    pip install torch --target DIR
    PYTHONPATH=src:tests/support:DIR python tests/families/record_config_effects.py [FAMILY ...]

It takes about ten minutes. See `mlxr_tests.config_effects` for the cases.
"""

import copy
import importlib
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from mlxr_tests import config_effects as cases
from mlxr_tests.config_effects import Config
from mlxr_tests.family_oracle import Floats, prompts

LEFT_OUT = (
    *("model_type", "architectures", "transformers_version", "rope_parameters", "return_dict"),
    "rescale_prenorm_residual",  # of training, but transformers scales the weights that it loads too
)


class Transformers:
    """transformers' models, from folders."""

    def __init__(self, family: str, folder: Path) -> None:
        import torch
        import transformers

        self.family, self.folder = family, folder
        self.name = f"transformers {transformers.__version__}"
        self._torch, self._models = torch, transformers.AutoModelForCausalLM
        kind = transformers.CONFIG_MAPPING[family]
        if family == "mistral4":  # which transformers knows as a part of models with images alone
            self._models.register(kind, transformers.Mistral4ForCausalLM, exist_ok=True)
        own = json.loads(kind().to_json_string(use_diff=False))
        self.own_keys = {key: value for key, value in own.items() if key not in LEFT_OUT}
        base = kind.from_dict(cases.base_config(family, cases.spellings(family)[0]))
        self._models.from_config(base).save_pretrained(folder)
        from safetensors import safe_open
        from safetensors.numpy import save_file

        with safe_open(folder / "model.safetensors", "np") as held:
            self.shapes = {name: held.get_slice(name).get_shape() for name in held.keys()}  # noqa: SIM118
        save_file(cases.weights(family, self.shapes), folder / "model.safetensors", {"format": "pt"})

    def logits(self, config: Config) -> Floats:
        (self.folder / "config.json").write_text(json.dumps(config))
        torch = self._torch
        model, info = self._models.from_pretrained(
            self.folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
        )
        if any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")):
            raise ValueError(f"the weights do not fit: {info}")
        with torch.no_grad():
            held = model.eval()(torch.tensor([prompts(cases.VOCAB)[0]])).logits[0, -1]
        return np.asarray(held.tolist())


class MlxLm:
    """mlx-lm's models."""

    def __init__(self, family: str, folder: Path) -> None:
        import mlx_lm

        self._module = importlib.import_module(f"mlx_lm.models.{family}")
        self.name = f"mlx-lm {mlx_lm.__version__}"
        self.own_keys: dict[str, Any] = {}
        base = cases.base_config(family, cases.spellings(family)[0])
        model = self._module.Model(self._module.ModelArgs.from_dict(base))
        from mlx.utils import tree_flatten

        self.shapes = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}
        self.family = family

    def logits(self, config: Config) -> Floats:
        import mlx.core as mx

        model = self._module.Model(self._module.ModelArgs.from_dict(copy.deepcopy(config)))
        held = {name: mx.array(value) for name, value in cases.weights(self.family, self.shapes).items()}
        model.load_weights(list(held.items()), strict=True)
        return np.array(model(mx.array([prompts(cases.VOCAB)[0]]))[0, -1]).astype(np.float64)


def record(family: str, folder: Path) -> dict[str, Any]:
    """All changes of a family."""
    reference = (MlxLm if family in cases.OF_MLX_LM else Transformers)(family, folder)
    bases = {name: reference.logits(cases.base_config(family, name)) for name in cases.spellings(family)}
    rows = []
    for change in cases.changes(family, reference.own_keys):
        base = bases[change.base]
        effect, told = "none", []
        try:
            got = reference.logits(cases.changed(cases.base_config(family, change.base), change))
        except Exception as error:  # whatever a reference raises is what it makes of the key
            effect = "error"
            print(f"{family} {change.base} {change.key}={change.value}: {type(error).__name__} {error!s:.120}")
        else:
            if np.linalg.norm(got - base) > cases.EFFECT * np.linalg.norm(base):
                effect, told = "changes", _told(got)
        rows.append([*change, effect, told])
    told_bases = {name: _told(logits) for name, logits in bases.items()}
    return {"reference": reference.name, "shapes": reference.shapes, "bases": told_bases, "rows": rows}


def _told(logits: Floats) -> list[float]:
    return [float(f"{number:.7g}") for number in logits[: cases.NUM_LOGITS]]


def main(families: list[str]) -> None:
    """Records the families, and keeps what is recorded of others."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    held = json.loads(cases.RECORDED.read_text()) if cases.RECORDED.exists() else {}
    for family in families or cases.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            held[family] = record(family, Path(folder))
        cases.RECORDED.write_text(_text(held))


def _text(held: dict[str, Any]) -> str:
    """JSON with a row on a line."""
    families = []
    for family, of in sorted(held.items()):
        rows = ",\n".join(f"   {json.dumps(row)}" for row in of["rows"])
        head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(of[key])}" for key in ("reference", "shapes", "bases"))
        families.append(f' {json.dumps(family)}: {{\n{head},\n  "rows": [\n{rows}\n  ]\n }}')
    return "{\n" + ",\n".join(families) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
