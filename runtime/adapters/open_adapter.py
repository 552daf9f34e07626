"""Finds out whose adapter a path is, and opens it."""

from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters import mlx_lm_adapter, peft_adapter
from mlxr.runtime.adapters.adapter_file import AdapterFile
from mlxr.runtime.adapters.gguf_adapter import read_gguf_adapter
from mlxr.runtime.json_file import read_json_object

CONFIG = "adapter_config.json"
_CONFIG_BYTES = 1 << 20


def open_adapter(path: str | Path) -> AdapterFile:
    """An adapter: a folder of PEFT's or mlx-lm's, a file in such a folder, or a GGUF file. No matrix is read.

    Raises:
        WeightsError: there is none, it is corrupt, or of a kind that is not supported.
    """
    path = Path(path)
    try:
        return _opened(path)
    except OSError as error:  # such as a name that is too long, or a folder that may not be searched
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error


def _opened(path: Path) -> AdapterFile:
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise WeightsError(f"{path}: no such adapter; expected a folder with {CONFIG}, or a GGUF file")
    if path.is_file() and path.name not in (CONFIG, peft_adapter.WEIGHTS, mlx_lm_adapter.WEIGHTS):
        return read_gguf_adapter(path)
    if not (folder / CONFIG).is_file():
        gguf = sorted(folder.glob("*.gguf"))
        if len(gguf) == 1:
            return read_gguf_adapter(gguf[0])
        raise WeightsError(f"{folder}: has no {CONFIG}, so it is not an adapter of PEFT or mlx-lm")
    config = read_json_object(folder / CONFIG, _CONFIG_BYTES, WeightsError)
    if "peft_type" in config or (folder / peft_adapter.WEIGHTS).is_file():
        return peft_adapter.read_peft_adapter(folder, config)
    return mlx_lm_adapter.read_mlx_lm_adapter(folder, config)
