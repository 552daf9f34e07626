"""The known links between machines, by name."""

from functools import cache
from importlib import resources
from pathlib import Path

from mlxr.compiler.chips.link import Link, LinkFile
from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated


def find_link(name: str) -> Link:
    """A link by its name, in upper or lower case.

    Raises:
        PlanError: no link has that name; the message lists the known ones.
    """
    links = known_links()
    by_lower_case = {known.lower(): link for known, link in links.items()}
    if name.lower() not in by_lower_case:
        like = nearest(name, tuple(links))
        hint = f'; did you mean "{like}"?' if like else ""
        raise PlanError(f"there is no link {name!r}; known links are {', '.join(links)}{hint}")
    return by_lower_case[name.lower()]


@cache
def known_links() -> dict[str, Link]:
    """Every link by name, in the order of the file."""
    path = Path(str(resources.files("mlxr.compiler.chips"))) / "links" / "links.yaml"
    return links_of(path.read_text(encoding="utf-8"), str(path))


def links_of(text: str, source: str) -> dict[str, Link]:
    """The links in a file.

    Args:
        text: the YAML.
        source: the file's name in error messages.

    Raises:
        SpecError: the file does not describe links; the message shows every problem with its place.
    """
    file = validated(LinkFile, read_document(text, source))
    return {name: Link(name=name, **dict(entry)) for name, entry in file.links.items()}
