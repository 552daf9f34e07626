"""docs/API.md has the fields that the server takes."""

import re

from mlxr.server.field_tables import field_table, request_models
from mlxr_tests.storyteller import ROOT

DOCUMENT = ROOT / "docs/API.md"
TABLE = re.compile(r"<!-- fields: (\S+) -->\n(?:.*?)<!-- end -->", re.DOTALL)
OWN = "/inspector/"


def test_the_tables_are_those_of_the_code(update_golden: bool) -> None:
    models = {path: model for path, model in request_models().items() if not path.startswith(OWN)}
    text = DOCUMENT.read_text()
    assert set(TABLE.findall(text)) == set(models), "docs/API.md has a table for each path that takes a body"
    fresh = TABLE.sub(lambda match: f"<!-- fields: {match[1]} -->\n{field_table(models[match[1]])}<!-- end -->", text)
    if update_golden:
        DOCUMENT.write_text(fresh)
    assert DOCUMENT.read_text() == fresh, "run pytest tests/server/test_field_tables.py --update-golden"


def test_fields_of_parts_are_in_the_tables() -> None:
    table = field_table(request_models()["/v1/messages"])
    implemented, without_effect, warned, *refused = table.splitlines()[2:]
    for name in ("max_tokens", "messages[].content", "messages[].content[].content[].text", "system[].text"):
        assert f"`{name}`" in implemented and f"`{name}`" not in without_effect
    assert "`metadata`" in warned and "`tools[].cache_control`" in without_effect
    assert "| refused | `thread`: send the whole conversation as messages |" in refused
