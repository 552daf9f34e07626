"""What a registered model may be called."""

import difflib
import re
from collections.abc import Iterable

from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.registry.errors import RegistryError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:@/-]*[A-Za-z0-9._-])?", re.ASCII)
_LONGEST = 200


def check_name(name: str) -> None:
    """Refuses names that no model may have.

    Raises:
        RegistryError: it has other characters than letters, digits and `. _ : @ - /`, begins with another one than a
            letter or digit, ends with a separator, could be a path out of a folder, is too long, or is a bundled
            model's.
    """
    if name in bundled_specs():
        raise RegistryError(f"{name} is the name of a bundled model; choose another one")
    parts = re.split("[/:]", name)
    if not _NAME.fullmatch(name) or len(name) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise RegistryError(
            f"{name!r} cannot be the name of a model; expected letters, digits and . _ : @ - / within, the first one a "
            f"letter or digit, at most {_LONGEST}"
        )


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that someone may have meant, the closest first."""
    known = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    whole = [each for each in known if len(name) >= 3 and name.lower() in each and each not in close]
    return [known[each] for each in (*close, *whole)][:3]
