"""Adapters of models of the family of Llama in files: as PEFT, mlx-lm and llama.cpp's converter write them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from safetensors.numpy import save_file

Floats = npt.NDArray[np.float32]
ROLES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class MadeAdapter:
    """Random matrices.

    Attributes:
        down, up: by module, such as `model.layers.0.mlp.up_proj`: [rank, columns] and [rows, rank].
        alpha, rank: its scale is alpha / rank.
        heads: of queries and of keys, whose rows GGUF files of Llama have in another order.
    """

    down: dict[str, Floats]
    up: dict[str, Floats]
    alpha: float
    rank: int
    heads: tuple[int, int]

    @property
    def deltas(self) -> dict[str, Floats]:
        """By module, what is added to its weight."""
        scale = np.float32(self.alpha / self.rank)
        return {name: scale * (self.up[name] @ down) for name, down in self.down.items()}

    def peft(self, folder: Path, tensors: Mapping[str, Floats] | None = None, **config: Any) -> Path:
        """Writes PEFT's files."""
        folder.mkdir(parents=True, exist_ok=True)
        own = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "bias": "none", "task_type": "CAUSAL_LM"}
        own |= {"target_modules": sorted({name.rpartition(".")[2] for name in self.down}), "use_dora": False} | config
        (folder / "adapter_config.json").write_text(json.dumps(own), encoding="utf-8")
        prefix = "base_model.model."
        matrices = {f"{prefix}{name}.lora_A.weight": a for name, a in self.down.items()}
        matrices |= {f"{prefix}{name}.lora_B.weight": b for name, b in self.up.items()}
        matrices |= tensors or {}
        save_file({name: np.ascontiguousarray(m) for name, m in matrices.items()}, folder / "adapter_model.safetensors")
        return folder

    def mlx_lm(self, folder: Path, num_layers: int = -1, **config: Any) -> Path:
        """Writes mlx-lm's files."""
        folder.mkdir(parents=True, exist_ok=True)
        scale = self.alpha / self.rank
        keys = sorted({name.split(".", 3)[3] for name in self.down})
        parameters = {"rank": self.rank, "scale": scale, "dropout": 0.0, "keys": keys}
        own = {"fine_tune_type": "lora", "num_layers": num_layers, "lora_parameters": parameters} | config
        (folder / "adapter_config.json").write_text(json.dumps(own), encoding="utf-8")
        matrices = {f"{name}.lora_a": np.ascontiguousarray(a.T) for name, a in self.down.items()}
        matrices |= {f"{name}.lora_b": np.ascontiguousarray(b.T) for name, b in self.up.items()}
        save_file(matrices, folder / "adapters.safetensors")
        return folder

    def gguf(self, path: Path, **metadata: str) -> Path:
        """Writes a GGUF adapter."""
        writer = GGUFWriter(path, "llama")
        for key, value in ({"general.type": "adapter", "adapter.type": "lora"} | metadata).items():
            writer.add_string(key, value)
        writer.add_float32("adapter.lora.alpha", self.alpha)
        for module, down in self.down.items():
            name = gguf_name(module)
            up = self.up[module]
            if name.endswith(("attn_q", "attn_k")):
                up = permuted(up, self.heads[name.endswith("attn_k")])
            writer.add_tensor(f"{name}.weight.lora_a", np.ascontiguousarray(down))
            writer.add_tensor(f"{name}.weight.lora_b", np.ascontiguousarray(up))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def gguf_name(module: str) -> str:
    """What GGUF files call a module's weight, without `.weight`."""
    _, _, layer, role = module.split(".", 3)
    return f"blk.{layer}.{ROLES[role]}"


def permuted(rows: Floats, heads: int) -> Floats:
    """Rows of queries or keys in the order that GGUF files of Llama have."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def made_adapter(
    shapes: Mapping[str, tuple[int, int]], heads: tuple[int, int], seed: int, rank: int = 4
) -> MadeAdapter:
    """Random matrices for modules of these shapes, [rows, columns]."""
    rng = np.random.default_rng(seed)
    down = {n: rng.standard_normal((rank, c), dtype=np.float32) * np.float32(c**-0.5) for n, (_, c) in shapes.items()}
    up = {n: rng.standard_normal((r, rank), dtype=np.float32) * np.float32(0.2) for n, (r, _) in shapes.items()}
    down, up = ({n: m.astype(np.float16).astype(np.float32) for n, m in made.items()} for made in (down, up))
    return MadeAdapter(down, up, 2.0 * rank, rank, heads)


def llama_shapes(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, width: int
) -> dict[str, tuple[int, int]]:
    """The modules of a Llama and their shapes."""
    sizes = {"q_proj": (heads * head_dim, hidden), "k_proj": (kv_heads * head_dim, hidden)}
    sizes |= {"v_proj": (kv_heads * head_dim, hidden), "o_proj": (hidden, heads * head_dim)}
    sizes |= {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    roles = {role: sizes[role.rpartition(".")[2]] for role in ROLES}
    return {f"model.layers.{i}.{role}": shape for i in range(layers) for role, shape in roles.items()}
