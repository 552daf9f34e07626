"""What a model does with LoRA adapters."""

from abc import ABC, abstractmethod
from pathlib import Path

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.adapters.adapter_name import adapter_name
from mlxr.runtime.engine.adapter_set import AdapterSet, LoadedAdapter
from mlxr.runtime.engine.core import EngineCore


class ModelAdapters(ABC):
    """The base of a model: the adapters that it has loaded.

    Attributes:
        artifact: the compiled model.
        default_adapter: the name of the adapter of generations that name none; None: they use none.
    """

    artifact: Artifact
    default_adapter: str | None = None

    @abstractmethod
    def running_core(self) -> EngineCore:
        """The core; raises ModelClosedError if the model is closed."""

    def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> LoadedAdapter:
        """Loads a LoRA adapter: of PEFT, of mlx-lm, or GGUF. Requests may ask for it by its name at once.

        Args:
            path: a folder with adapter_config.json, or a GGUF file.
            name: by which requests ask for it; None: that of the folder or file. One that is there already under that
                name is unloaded, once no request uses it.
            scale: by what it is multiplied, unless a request says otherwise.

        Raises:
            WeightsError: it cannot be read, is for another model, or does what is not supported.
            RequestError: the model was loaded without places for adapters, or all are in use.
        """
        adapters = self.adapters
        read = adapters.read(path)
        return adapters.put(name or adapter_name(path), path, read, scale, self.running_core().used_adapters())

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; requests that use it go on.

        Raises:
            RequestError: there is none of that name.
        """
        self.adapters.drop(name)

    @property
    def adapters(self) -> AdapterSet:
        """The adapters that are loaded.

        Raises:
            RequestError: the model was loaded without places for adapters.
        """
        if (adapters := self.running_core().adapters) is None:
            raise RequestError(
                f"{self.artifact.spec.name} was loaded without places for adapters: load it with some (--adapter PATH, "
                "--adapter-slots N, or changes=mlxr.Changes(adapters=mlxr.Adapters()))"
            )
        return adapters
