"""The rules by which an importer reads a model's own files: what the keys of config.json or of GGUF metadata mean.

Each family has such rules for both kinds of file, over those in models/importers/KIND.yaml that hold for all families.
"""

import re
from typing import Any

from pydantic import Field, model_validator

from mlxr.compiler.spec.expression import Expression
from mlxr.compiler.spec.fields import Contradictions
from mlxr.compiler.spec.record import Record


class ImportRules(Record):
    """What one kind of file says of a model."""

    names: tuple[str, ...] = ()
    """What it calls the architecture."""
    only_with: str | None = None
    """A key that files of this family have, and files of another family with the same name do not."""
    only_where: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Keys of config.json, and values that those of this family have, where the name is another family's too."""
    classes: tuple[str, ...] = ()
    """Names of its classes that differ from Hugging Face's; config.json only."""
    wrappers: tuple[str, ...] = ()
    """What config.json calls models with other parts beside, whose `text_config` names this architecture."""
    set: dict[str, Expression] = Field(default_factory=dict)
    """For each property of the spec's model section, by its dotted path, the expression that gives it."""
    must_equal: dict[str, Expression] = Field(default_factory=dict)
    """Keys that repeat what something else says and must not contradict it; an absent key contradicts nothing."""
    harmless: tuple[str, ...] = ()
    """Regular expressions for whole keys that change nothing, unless `neutral` has them."""
    neutral: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Keys that may change what is computed, and the values with which they do not; with others they are refused."""
    reasons: dict[str, str] = Field(default_factory=dict)
    """Of keys, why they are missing or have a value that is refused, for the message."""
    context_ends: str | None = None
    """Why the context ends where it does, if not because the model was made for no longer one."""

    @model_validator(mode="after")
    def _check(self) -> "ImportRules":
        wrong = Contradictions()
        for pattern in self.harmless:
            try:
                re.compile(pattern)
            except re.error as error:
                wrong.add("harmless", f'"{pattern}" is not a regular expression: {error}')
        wrong.refuse()
        return self

    def over(self, base: "ImportRules") -> "ImportRules":
        """These rules, and those of `base` for all that they leave out. Names are not taken from `base`."""
        harmless = re.compile("|".join(f"(?:{pattern})" for pattern in self.harmless))
        neutral = {key: values for key, values in base.neutral.items() if not harmless.fullmatch(key)}
        return ImportRules(
            names=self.names,
            only_with=self.only_with,
            only_where=self.only_where,
            classes=self.classes,
            wrappers=self.wrappers,
            set=base.set | self.set,
            must_equal=base.must_equal | self.must_equal,
            harmless=(*base.harmless, *self.harmless),
            neutral=neutral | self.neutral,
            reasons=base.reasons | self.reasons,
            context_ends=self.context_ends or base.context_ends,
        )


NO_RULES = ImportRules()
