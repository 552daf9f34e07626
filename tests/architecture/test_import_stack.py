"""The import stack of pyproject.toml, which `make check` holds the code to, is complete: every package stands in it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPLIT = ("mlxr.compiler", "mlxr.loading", "mlxr.runtime")
"""Packages whose own parts stand in the stack instead of them."""


def stack() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "One stack")
    return [module for layer in layers for module in layer.split(" | ")]


def modules_of(package: str) -> set[str]:
    """The modules and packages right inside a package."""
    folder = ROOT / "src" / package.replace(".", "/")
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return {f"{package}.{name}" for name in packages | modules}


def test_every_package_stands_in_the_stack_once() -> None:
    modules = set().union(*(modules_of(package) for package in ("mlxr", *SPLIT))) - set(SPLIT)
    assert sorted(stack()) == sorted(modules)


def test_nothing_stands_at_the_compilers_root_but_what_all_stages_share() -> None:
    files = {path.stem for path in (ROOT / "compiler").glob("*.py")} - {"__init__"}
    assert files == {"debug", "driver", "errors", "text", "version"}
