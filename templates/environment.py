"""How templates are read: the settings of Jinja2 that all of them are written for. Whoever renders adds filters."""

import jinja2


def environment() -> jinja2.Environment:
    """A new environment of these templates; an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("mlxr.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # constants are few, and looking for them takes a fifth of the time in which templates compile
    )
