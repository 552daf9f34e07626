"""Bundled specs by name: models/NAME.yaml, or models/NAME/NAME.yaml for a model with weights beside it."""

from importlib import resources
from pathlib import Path

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.explain import nearest
from mlxr.compiler.spec.other_files import other_than_a_spec


def bundled_specs() -> dict[str, Path]:
    """The spec file of every bundled model by its name, sorted."""
    folder = Path(str(resources.files("mlxr.models")))
    files = [*folder.glob("*.yaml"), *(path for path in folder.glob("*/*.yaml") if path.stem == path.parent.name)]
    return {path.stem: path for path in sorted(files, key=lambda path: path.stem)}


def find_spec(name_or_path: str | Path) -> Path:
    """The spec file of a bundled model's name, or of a path.

    A name wins over a file of the same name in the working folder; write `./NAME` for that.

    Raises:
        SpecError: if there is neither.
    """
    name = str(name_or_path)
    bundled = bundled_specs()
    if name in bundled:
        return bundled[name]
    path = Path(name)
    try:
        if path.exists():
            if other := other_than_a_spec(path):
                raise SpecError(other)
            return path
    except (OSError, ValueError) as error:
        raise SpecError(f"{name!r}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    like = nearest(path.name.removesuffix(".yaml"), tuple(bundled))
    hint = f'\n  fix: did you mean "{like}"?' if like else ""
    raise SpecError(f"{name}: no such file, and no bundled model of that name; bundled are {', '.join(bundled)}{hint}")
