"""Writes the table of docs/families.md from the registry of families: python docs/make_families.py."""

import json
from collections.abc import Iterable
from pathlib import Path

from mlxr.compiler.spec.family import known_families, load_family

PAGE = Path(__file__).with_name("families.md")
ERRORS = Path(__file__).parents[1] / "tests" / "data" / "family_errors.json"
_BEGIN, _END = "<!-- python docs/make_families.py writes this table -->\n", "<!-- end of the table -->\n"
_HEAD = "| family | models | `model_type` | GGUF | from mlx-lm | from llama.cpp |\n|---|---|---|---|---|---|\n"


def families_page() -> str:
    """The text of the page, with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return before + _BEGIN + _HEAD + _rows() + _END + rest.partition(_END)[2]


def _rows() -> str:
    errors = json.loads(ERRORS.read_text(encoding="utf-8"))
    rows = []
    for name in known_families():
        family = load_family(name)
        if not family.config.names and not family.gguf.names:
            continue  # files by our own names
        of = errors.get(name, {})
        names = dict.fromkeys((*family.config.names, *family.config.wrappers))
        cells = (
            *(f"`{name}`", family.about, _names(names), _names(family.gguf.names)),
            *(f"{of[code]:.0e}" if code in of else "" for code in ("mlx-lm", "llama.cpp")),
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(families_page(), encoding="utf-8")
