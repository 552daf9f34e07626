"""The feed-forward block in a spec: one network, or a mixture of experts and perhaps a shared one."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import Contradictions, Count, Flag, Positive
from mlxr.compiler.spec.record import Record


class SharedExpert(Record):
    """A network that every token goes through, beside its chosen experts. It has no biases."""

    intermediate_size: Count
    """Width between its projections: a multiple of 8."""
    gate: Flag = False
    """Whether its result is multiplied by the sigmoid of a learned number of each token."""


class Groups(Record):
    """Groups of neighbouring experts, of which the best are chosen first; a token's experts are all of those."""

    count: Annotated[int, Field(ge=1, le=32, strict=True)]
    """Groups of equal size; `experts.count` is a multiple of it."""
    chosen: Annotated[int, Field(ge=1, le=32, strict=True)]
    """Groups that a token's experts are chosen from; at most `count`."""
    judged_by: Annotated[int, Field(ge=1, le=2, strict=True)] = 2
    """A group is judged by the sum of its best scores for the choice: of its two best, or of the best one."""


class Experts(Record):
    """A mixture of experts: a router chooses `per_token` of `count` networks for each token and weights them."""

    count: Annotated[int, Field(ge=1, le=1024, strict=True)]
    """Experts of a layer."""
    per_token: Annotated[int, Field(ge=1, le=64, strict=True)]
    """Experts that a token goes through; at most `count`."""
    router: Literal["softmax_topk", "topk_softmax", "sigmoid"]
    """Weights from the router's logits. `softmax_topk`: softmax over all experts, then the best; `topk_softmax`: the
    best, then softmax over those; `sigmoid`: the sigmoid of each of the best."""
    router_bias: Flag = False
    """Whether the router's logits have a bias."""
    selection_bias: Flag = False
    """Whether a bias is added for the choice of experts alone, and not for their weights."""
    groups: Groups | None = None
    """Groups of experts that are chosen before experts are; null for a choice among all."""
    normalise: Flag = False
    """Whether the weights of the chosen experts are divided by their sum."""
    scale: Positive = 1.0
    """Factor of the weights."""
    weigh: Literal["results", "inputs"] = "results"
    """What is multiplied by the weights: the chosen experts' results, or what they read."""
    router_norm: Flag = False
    """Whether the router reads the residual stream through a norm of its own, and not what the experts read."""
    router_scale: Positive = 1.0
    """Factor of the router's logits."""
    weight_scales: Flag = False
    """Whether the weight of each chosen expert is multiplied by a learned number of that expert, at last."""
    own_norms: Flag = False
    """Whether the experts have a norm before them and one after them, and the shared expert one after it, besides those
    of the block; needs `shared` and norm.placement sandwich."""
    shared: SharedExpert | None = None
    """An expert that every token goes through; null for none."""

    @model_validator(mode="after")
    def _check(self) -> "Experts":
        wrong = Contradictions()
        if self.per_token > self.count:
            wrong.add(
                "per_token",
                f"per_token {self.per_token} is more than count {self.count}; a token goes through an expert once",
                f"use at most {self.count}",
            )
        if self.groups is not None:
            self._check_groups(self.groups, wrong)
        if self.own_norms and self.shared is None:
            wrong.add("own_norms", "only a shared expert makes them different from those of the block", "give shared")
        wrong.refuse()
        return self

    def _check_groups(self, groups: Groups, wrong: Contradictions) -> None:
        size = self.count // groups.count
        if self.count % groups.count:
            wrong.add(
                "groups.count",
                f"count {self.count} is not a multiple of groups.count {groups.count}; groups are of equal size",
                "correct one of them",
            )
        elif groups.chosen > groups.count:
            wrong.add(
                "groups.chosen",
                f"groups.chosen {groups.chosen} is more than groups.count {groups.count}",
                f"use at most {groups.count}",
            )
        elif size < groups.judged_by:
            wrong.add(
                "groups.judged_by",
                f"groups of {size} experts have no {groups.judged_by} best ones",
                "use 1, or fewer groups",
            )
        elif size * groups.chosen < self.per_token:
            wrong.add(
                "groups.chosen",
                f"{groups.chosen} groups of {size} experts are fewer experts than per_token {self.per_token}",
                f"use at least {-(-self.per_token // size)}",
            )


class Mlp(Record):
    """Feed-forward block: down(activation(gate(x)) * up(x)), or down(activation(up(x))) where not gated."""

    intermediate_size: Count
    """Width between the projections: a multiple of 8. With experts, that of one expert."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai"] = "silu"
    """Applied to the gate, or to `up` where not gated. `gelu` is the exact one (erf), `gelu_tanh` its tanh
    approximation, `relu2` the square of relu, `xielu` a parabola above 0 and an
    exponential below, with two learned numbers; `swiglu_oai` is gate x sigmoid(1.702 gate) x (up + 1)."""
    gated: Flag = True
    """Whether there is a gate projection beside `up`."""
    bias: Flag = False
    """Whether the projections add a bias; with experts, whether the experts' do."""
    limit: Positive | None = None
    """Where gated: the gate is at most this, before `swiglu_oai` and after other activations, and `up` is within +-
    this; null for no limit."""
    shared_limit: Annotated[float, Field(ge=0, le=1e6, strict=True)] | None = None
    """The limit of a shared expert; null for the same, 0 for none."""
    experts: Experts | None = None
    """A mixture of experts instead of one network; null for none."""

    @model_validator(mode="after")
    def _check(self) -> "Mlp":
        wrong = Contradictions()
        if self.activation == "swiglu_oai" and not self.gated:
            wrong.add(
                "gated",
                "activation swiglu_oai multiplies a gate with `up`, but gated is false",
                "set gated to true, or name another activation",
            )
        if self.activation == "xielu" and (self.gated or self.experts is not None):
            what = "is a gate" if self.gated else "are experts"
            wrong.add(
                "activation",
                f"xielu is for one network without a gate, but there {what}",
                "name another activation, or set gated to false and experts to null",
            )
        if self.limit is not None and not self.gated:
            wrong.add("limit", "a gate and `up` have a limit, but gated is false", "remove it, or set it to null")
        if self.shared_limit is not None and (self.experts is None or self.experts.shared is None or not self.gated):
            wrong.add("shared_limit", "there is no shared expert with a gate", "remove it, or set it to null")
        wrong.refuse()
        return self

    @property
    def limit_of_shared(self) -> float | None:
        """The limit of the shared expert; None for none."""
        return self.limit if self.shared_limit is None else self.shared_limit or None

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """Key and width of every inner size: its own, and its shared expert's."""
        own = (("intermediate_size", self.intermediate_size),)
        if self.experts is None or self.experts.shared is None:
            return own
        return (*own, ("experts.shared.intermediate_size", self.experts.shared.intermediate_size))
