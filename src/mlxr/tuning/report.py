"""What `mlxr tune` measured, as text for people and as `tuning.json`, in which an artifact keeps it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from mlxr.tuning.site_tuning import SiteTuning


def tuning_json(about: Mapping[str, object], sites: Sequence[SiteTuning]) -> str:
    """The text of tuning.json.

    Args:
        about: the machine, and what was tuned there.
        sites: what was measured.
    """
    measured = [asdict(site) | {"changed": site.changed} for site in sites]
    return json.dumps({**about, "sites": measured}, indent=1) + "\n"


def tuning_text(sites: Sequence[SiteTuning]) -> str:
    """What was changed and what it brought, for people."""
    return "\n".join(map(_line, sites)) + "\n"


def _line(site: SiteTuning) -> str:
    sizes = ", ".join(f"{name} {site.before[name]} -> {value}" for name, value in site.changed.items())
    if sizes:
        outcome = f"{sizes} ({site.because})"
    elif site.failure:
        outcome = f"stays as it is, since it cannot be timed: {site.failure}"
    else:
        outcome = "stays as it is"
    return f"{site.site}, {site.scenario}: {outcome}"
