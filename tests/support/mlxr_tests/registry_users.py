"""What a process of a test does with a registry that others use at the same time."""

from dataclasses import replace
from pathlib import Path

from mlxr.registry import RegistryError
from mlxr.registry.records import ArtifactRecord, ModelRecord
from mlxr.registry.registry import Registry


def add_and_remove(path: Path, model: ModelRecord, number: int, rounds: int) -> None:
    """Adds models of its own, removes every other one, and adds one that all processes want to add."""
    registry = Registry(path)
    for index in range(rounds):
        name = f"model-{number}-{index}"
        artifact = ArtifactRecord(model.spec_hash, "", "1", Path(f"/cache/{number}"))
        registry.add(replace(model, name=name), "spec", [artifact])
        registry.touch(name)
        assert registry.get(name) is not None
        if index % 2:
            registry.remove(name)
        try:
            registry.add(replace(model, name="shared", source=Path(f"/{number}")), "spec")
        except RegistryError as error:
            assert "registered already" in str(error)
