"""Records what compressed-tensors makes of small matrices: needs torch and compressed-tensors.

    pip install torch compressed-tensors --target DIR
    PYTHONPATH=src:tests/support:DIR python tests/families/record_packed_integers.py

For each of `mlxr_tests.packed_integers.FORMS`: the tensors that it writes, and the numbers that it reads of them.
"""

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

from mlxr_tests.packed_integers import COLUMNS, FORMS, RECORDED, ROWS


def main() -> None:
    """Records all forms."""
    tensors: dict[str, torch.Tensor] = {}
    for name, form in FORMS.items():
        rng = np.random.default_rng(form.bits)
        group, half = form.group or COLUMNS, 1 << (form.bits - 1)
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**form.weights))
        spread = torch.tensor(rng.uniform(0.002, 0.02, (ROWS, COLUMNS // group)), dtype=getattr(torch, form.scale))
        integers = torch.tensor(rng.integers(-half, half, (ROWS, COLUMNS)))
        zeros = torch.tensor(rng.integers(-half, half, spread.shape), dtype=torch.int8)
        by_group = integers.reshape(ROWS, -1, group).float()
        if not form.weights["symmetric"]:
            by_group = by_group - zeros.float()[:, :, None]
        state = {
            "weight": (by_group * spread.float()[:, :, None]).reshape(ROWS, COLUMNS),
            "weight_scale": spread,
            "weight_zero_point": zeros,
        }
        kind = BaseCompressor.get_value_from_registry("pack-quantized")
        packed = kind.compress(state, scheme)
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in packed.items()}
        tensors[f"{name}.numbers"] = kind.decompress(packed, scheme)["weight"]
    save_file(tensors, RECORDED)


if __name__ == "__main__":
    main()
