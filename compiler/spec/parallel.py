"""How a model is split over ranks: processes, on one machine or several."""

from typing import Annotated

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import MAX_LAYERS, Contradictions
from mlxr.compiler.spec.record import Record

MAX_RANKS = 256


class Parallel(Record):
    """A split of the model: its layers over stages, and each layer over the ranks of its stage.

    Rank r is rank r % tensor of stage r // tensor.
    """

    tensor: Annotated[int, Field(ge=1, le=MAX_RANKS, strict=True)] = 1
    """Ranks that share each layer: heads, columns of MLPs, experts, and rows of the vocabulary."""
    pipeline: Annotated[int, Field(ge=1, le=MAX_RANKS, strict=True)] = 1
    """Stages, each with some of the layers."""
    layers: tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS, strict=True)], ...] | None = None
    """Layers of each stage; null: by shares."""
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] | None = None
    """How much of the model each rank has, as fractions whose sum is 1: one for each rank of a stage, or one for each
    stage if tensor is 1; null: as `memory_budget` gives each, or all alike."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tensor * self.pipeline

    @property
    def in_words(self) -> str:
        """The split without its sizes, as in a spec: `{tensor: 2, pipeline: 3}`."""
        ways = {"tensor": self.tensor, "pipeline": self.pipeline}
        return "{" + ", ".join(f"{way}: {count}" for way, count in ways.items() if count > 1) + "}"

    @model_validator(mode="after")
    def _check(self) -> "Parallel":
        wrong = Contradictions()
        if self.size == 1:
            wrong.add("", "one rank splits nothing", "give tensor or pipeline a number above 1, or leave parallel out")
        if self.size > MAX_RANKS:
            wrong.add("", f"tensor {self.tensor} x pipeline {self.pipeline} is more than {MAX_RANKS} ranks")
        if self.layers is not None and len(self.layers) != self.pipeline:
            wrong.add(
                "layers", f"layers has {len(self.layers)} numbers for {self.pipeline} stages", "give one for each"
            )
        if self.shares is not None:
            parts = self.tensor if self.tensor > 1 else self.pipeline
            what = "ranks of a stage" if self.tensor > 1 else "stages"
            if len(self.shares) != parts:
                wrong.add("shares", f"shares has {len(self.shares)} numbers for {parts} {what}", "give one for each")
            elif abs(sum(self.shares) - 1) > 1e-3:
                wrong.add("shares", f"the sum of shares is {sum(self.shares):g}", "give fractions whose sum is 1")
            if self.layers is not None and self.tensor == 1:
                wrong.add("shares", "layers and shares both divide the layers", "give one of them")
        wrong.refuse()
        return self
