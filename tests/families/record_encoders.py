"""Records the rows that transformers gives for tiny encoders: PYTHONPATH=tests/support python record_encoders.py.

It needs torch and transformers, and no MLX.
"""

import json

import torch
from transformers import AutoConfig, AutoModel

from mlxr_tests.encoder_models import CONFIGS, DATA, TEXTS, encoded, weight


def main() -> None:
    """Writes `tests/data/encoders.json`."""
    cases = {}
    for name, config in CONFIGS.items():
        model = AutoModel.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        model.load_state_dict({key: torch.from_numpy(weight(key, tuple(shape))) for key, shape in shapes.items()})
        with torch.no_grad():
            rows = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy() for ids in TEXTS]
        cases[name] = {"config": config, "tensors": shapes, "rows": [encoded(each) for each in rows]}
    DATA.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
