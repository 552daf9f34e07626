"""Random models on disk, in the forms that users have: a bf16 folder, mlx-lm's 4 bits, a GGUF file in Q4_K_M.

To write gigabytes in seconds, every tensor is a part of one repeated run of random numbers, each from another place on.
"""

import dataclasses
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from peers.models import Array, Shape, finish_gguf, gguf_writer, permuted, write_config, write_folder, write_safetensors
from peers.tokenizer import write_tokenizer

from gpu.k_blocks import BLOCK, KBlocks, q4_k, q6_k
from gpu.work import MODELS

CONTEXT = 4096
"""Of the models' configurations."""
_RUN = (1 << 22) - 3
_STD = 0.02
_ONE = 0x3F80
"""1 in bf16."""


def scratch_folder() -> str | None:
    """The folder where files of gigabytes are fastest: in memory, if there is such a folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def write_model(model: str, folder: Path, context: int = CONTEXT) -> None:
    """Writes a model's bf16 folder, without a tokenizer."""
    gpu = MODELS[model]
    write_folder(dataclasses.replace(gpu.shape, context=context), folder, _numbers(gpu.shape), gpu.theta)


def _numbers(shape: Shape) -> Callable[[str, tuple[int, ...]], Array]:
    """Makes a tensor's numbers in bf16, as 16 bits."""
    bits = (_STD * np.random.default_rng(1).standard_normal(_RUN, np.float32)).view(np.uint32) >> 16
    repeated = np.resize(bits.astype(np.uint16), _RUN + max(_sizes(shape)))

    def make(name: str, dims: tuple[int, ...]) -> Array:
        start = _seed(name) % _RUN
        return np.full(dims, _ONE, np.uint16) if len(dims) == 1 else repeated[start : start + int(np.prod(dims))]

    return make


def _sizes(shape: Shape) -> list[int]:
    return [int(np.prod(dims)) for _, _, dims, _ in shape.matrices()]


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


class ModelFiles:
    """One model's files in a folder, each written when it is first asked for."""

    def __init__(self, model: str, folder: Path, say: Callable[[str], None]) -> None:
        """Writes nothing yet.

        Args:
            model: its name.
            folder: an existing folder.
            say: called with what is being written.
        """
        self._model, self._folder, self._say = model, folder, say
        self._shape = dataclasses.replace(MODELS[model].shape, context=CONTEXT)

    def source(self, format_name: str) -> Path:
        """What MLXR reads: a folder, or for `q4_k_m` a GGUF file."""
        return {"bf16": self._bf16, "affine4": self._affine4, "q4_k_m": self._gguf}[format_name]()

    def peer(self, format_name: str) -> Path:
        """What mlx-lm reads: the same folder; for `q4_k_m`, which it cannot read, its own 4 bits."""
        return self.source("affine4" if format_name == "q4_k_m" else format_name)

    def judge(self, format_name: str) -> Path:
        """A folder for mlx-lm with exactly the numbers of `source`."""
        return self._twin() if format_name == "q4_k_m" else self.source(format_name)

    def gguf(self, format_name: str) -> Path:
        """What llama.cpp reads: a GGUF file with the numbers of `source`."""
        return {"bf16": self._gguf_bf16, "q4_k_m": self._gguf}[format_name]()

    def _new(self, name: str) -> tuple[Path, bool]:
        path = self._folder / name
        if not path.exists():
            self._say(f"{self._model}: writing {name}")
            return path, True
        return path, False

    def _bf16(self) -> Path:
        path, is_new = self._new(f"{self._model}-bf16")
        if is_new:
            path.mkdir()
            write_model(self._model, path)
            write_tokenizer(path, self._shape.vocab)
        return path

    def _affine4(self) -> Path:
        source = self._bf16()
        path, is_new = self._new(f"{self._model}-4bit")
        if is_new:
            options = ["--hf-path", source, "--mlx-path", path, "-q", "--q-bits", 4, "--q-group-size", 64]
            command = [sys.executable, "-m", "mlx_lm", "convert", *map(str, options)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"mlx_lm convert ended with code {done.returncode}: {done.stderr[-500:].strip()}")
        return path

    @cached_property
    def _blocks(self) -> tuple[KBlocks, KBlocks]:
        count = max(_sizes(self._shape)) // BLOCK
        return q4_k().repeated(count), q6_k().repeated(count)

    def _blocks_of(self, name: str) -> KBlocks:
        """The type of a tensor in llama.cpp's mixture Q4_K_M.

        Source: `llama_tensor_get_type` and `use_more_bits` of llama.cpp; mlx-lm's mixed_4_6 follows them too.
        """
        words, layers = name.split("."), self._shape.layers
        more = name == "lm_head.weight"
        if "v_proj" in words or "down_proj" in words:
            layer = int(words[2])
            more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        return self._blocks[more]

    def _gguf(self) -> Path:
        def blocks(name: str, dims: tuple[int, ...]) -> tuple[Array, GGMLQuantizationType]:
            random = self._blocks_of(name)
            return random.part(_seed(name), *dims)[0], random.type

        return self._write_gguf("Q4_K_M", blocks)

    def _gguf_bf16(self) -> Path:
        make = _numbers(self._shape)

        def bits(name: str, dims: tuple[int, ...]) -> tuple[Array, GGMLQuantizationType]:
            return make(name, dims).reshape(dims).view(np.uint8), GGMLQuantizationType.BF16

        return self._write_gguf("BF16", bits)

    def _write_gguf(
        self, kind: str, make: Callable[[str, tuple[int, ...]], tuple[Array, GGMLQuantizationType]]
    ) -> Path:
        path, is_new = self._new(f"{self._model}-{kind}.gguf")
        if is_new:
            staging = path.with_suffix(".part")
            writer = gguf_writer(self._shape, staging, f"MOSTLY_{kind}", MODELS[self._model].theta)
            for name, gguf_name, dims, heads in self._shape.matrices():
                if len(dims) == 1:
                    writer.add_tensor(gguf_name, np.ones(dims, np.float32))
                    continue
                rows, dtype = make(name, dims)
                writer.add_tensor(gguf_name, permuted(rows, heads), raw_dtype=dtype)
            finish_gguf(writer)
            staging.replace(path)
        return path

    def _twin(self) -> Path:
        path, is_new = self._new(f"{self._model}-as-Q4_K_M")
        if not is_new:
            return path
        path.mkdir()
        tensors: dict[str, tuple[str, tuple[int, ...], Callable[[], Array]]] = {}
        formats: dict[str, Any] = {"group_size": 64, "bits": 4, "mode": "affine"}
        for name, _, dims, _ in self._shape.matrices():
            if len(dims) == 1:
                tensors[name] = ("BF16", dims, partial(np.full, dims, _ONE, np.uint16))
                continue
            random, stem = self._blocks_of(name), name.removesuffix(".weight")
            if random.bits != 4:
                formats[stem] = {"group_size": 64, "bits": random.bits, "mode": "affine"}
            planes = random.part(_seed(name), *dims)[1:]
            for kind, plane in zip(("weight", "scales", "biases"), planes, strict=True):
                dtype = "U32" if kind == "weight" else "BF16"
                tensors[f"{stem}.{kind}"] = (dtype, plane.shape, partial(np.asarray, plane))
        write_safetensors(path / "model.safetensors", tensors)
        write_config(self._shape, path, MODELS[self._model].theta, quantization=formats)
        write_tokenizer(path, self._shape.vocab)
        return path
