"""Where the schemas stand that references mean, before a schema is rewritten and afterwards."""

from typing import Any
from urllib.parse import unquote

from mlxr.runtime.engine.constraint.schema_negation import UnknownError

SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
LISTS_OF_SCHEMAS = ("allOf", "anyOf", "prefixItems")


class References:
    """The references of one schema.

    Attributes:
        moved: new names of schemas that no longer stand where they did, by their old places.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        """Moves nothing yet.

        Args:
            root: the schema that is rewritten.
        """
        self._root = root
        self._has_resources = any(_resources(part) for part in root.values())
        self.moved: dict[str, str] = {}

    def now(self, reference: str) -> str:
        """A reference to where the schema stands afterwards."""
        if not reference.startswith("#/") or _stays(reference.split("/")[1:]):
            return reference
        try:
            self.resolve(reference)
        except UnknownError:
            return reference
        name = self.moved.setdefault(reference, f"moved-{len(self.moved)}")
        return f"#/$defs/{name}"

    def resolve(self, reference: str) -> Any:
        """The schema at a place of the root.

        Raises:
            UnknownError: the reference is another one.
        """
        found: Any = self._root
        if self._has_resources or (reference != "#" and not reference.startswith("#/")):
            raise UnknownError
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise UnknownError from error
        return found


def _stays(path: list[str]) -> bool:
    """Whether the schema at a place of the root is rewritten there."""
    while path:
        key = path.pop(0)
        if key in SCHEMAS_BY_NAME or (key in LISTS_OF_SCHEMAS and key != "prefixItems"):
            path = path[1:]
        elif key != "additionalProperties":
            return False
    return True


def _resources(schema: Any) -> bool:
    """Whether a part of a schema has a name of its own, so that references in it start there."""
    if isinstance(schema, dict):
        name = schema.get("$id", schema.get("id"))
        return (isinstance(name, str) and not name.startswith("#")) or any(map(_resources, schema.values()))
    return isinstance(schema, list) and any(map(_resources, schema))
