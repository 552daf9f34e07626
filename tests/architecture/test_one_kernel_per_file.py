"""A module of a target's kernels has one kernel, named as its template; what several kernels share has none."""

import importlib
import pkgutil

import pytest

from mlxr.compiler.schedule.kernel import Kernel


@pytest.mark.parametrize("target", ["metal", "cpu"])
def test_one_kernel_per_file(target: str) -> None:
    package = importlib.import_module(f"mlxr.compiler.targets.{target}.kernels")
    templates: dict[str, list[str]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Kernel)]
        own = [value for value in classes if value.__module__ == module.__name__ and "template" in vars(value)]
        if own:
            templates[info.name] = [kernel.template.partition(".")[0] for kernel in own]
    assert len(templates) > 10
    assert templates == {name: [name] for name in templates}
