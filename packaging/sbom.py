"""Writes the bill of materials of a release: what an environment has installed, and the page's libraries.

    python packaging/sbom.py ENVIRONMENT FILE    # ENVIRONMENT: a virtual environment with the wheel and its lock file

CycloneDX 1.6 in JSON. `cyclonedx-py` (the package cyclonedx-bom) lists the Python packages with their licences and what
needs what. The page's libraries, which no package manager sees, are in the table of their folder's README.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VENDORED = ROOT / "src/mlxr/server/page/static/vendored"
_ROW = re.compile(  # | [shown name](address) (`name on npm`) | version | what for | licence, `file` |
    r"\| \[(?P<shown>[^]]+)\]\((?P<url>[^)]+)\)(?: \(`(?P<npm>[^`]+)`\))? \| (?P<version>[\d.]+) \| [^|]+ "
    r"\| (?P<licence>[^,|]+)[^|]*\|"
)


def vendored() -> list[dict[str, Any]]:
    """The components that the page brings along."""
    components = []
    for row in _ROW.finditer((VENDORED / "README.md").read_text(encoding="utf-8")):
        name = row["npm"] or row["shown"].lower()
        purl = f"pkg:npm/{name.replace('@', '%40')}@{row['version']}"
        licence = row["licence"].strip().replace(" or ", " OR ")
        components.append(
            {
                "bom-ref": purl,
                "type": "library",
                "name": name,
                "version": row["version"],
                "purl": purl,
                "licenses": [{"expression": licence}],
                "externalReferences": [{"type": "vcs", "url": row["url"]}],
            }
        )
    return components


def main(environment: str, file: str) -> None:
    """Writes the bill."""
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 (of the release's environment, not of the tests')
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    command = ("cyclonedx-py", "environment", "--sv", "1.6", "--output-reproducible", environment)
    listed = subprocess.run([Path(sys.executable).with_name(command[0]), *command[1:]], capture_output=True, check=True)
    bill = json.loads(listed.stdout)
    own = next(component for component in bill["components"] if component["name"] == "mlxr")
    bill["components"].remove(own)
    own.pop("externalReferences", None)  # the wheel's place on this machine
    bill["metadata"]["component"] = own | {"type": "application"}
    bill["components"] += vendored()
    needs = next(entry for entry in bill["dependencies"] if entry["ref"] == own["bom-ref"])
    needs["dependsOn"] = sorted({*needs.get("dependsOn", []), *(each["bom-ref"] for each in vendored())})
    bill["dependencies"] += [{"ref": each["bom-ref"]} for each in vendored()]
    text = json.dumps(bill, indent=2) + "\n"
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"sbom: not as CycloneDX 1.6 has it: {problem}")
    Path(file).write_text(text, encoding="utf-8")
    print(f"{file}: {own['name']} {own['version']} and {len(bill['components'])} components")


if __name__ == "__main__":
    main(*sys.argv[1:])
