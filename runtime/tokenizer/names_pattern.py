"""A pattern that finds the names of tokens in a text."""

import re
from collections import defaultdict
from collections.abc import Iterable

_STEM = 8
"""Characters by which names are grouped. Some models have thousands of names that begin alike (`<unused17>`), and to
try each of them wherever a text has `<` would take long."""


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Finds names in a text, of several at one place the longest; `split` gives them at odd places."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(filter(None, names), key=len, reverse=True):
        groups[name[:_STEM]].append(re.escape(name[_STEM:]))
    # A name that is shorter than a stem stands for itself: it comes after the stems that it may begin.
    stems = sorted(groups, key=len, reverse=True)
    choices = "|".join(f"{re.escape(stem)}(?:{'|'.join(groups[stem])})" for stem in stems)
    return re.compile(f"({choices or '(?!)'})")
