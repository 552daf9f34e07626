"""The architecture in a spec: it describes a model by its properties, never by its name.

Invariants after validation: rotary dims are even; no weight matrix (of experts: no matrix of one expert) has more than
2^31 - 1 elements, so kernels may use 32-bit indices. The table of layer embeddings may: kernels find its rows, and only
read some of them, by 64-bit ones.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mlxr.compiler.spec.attention import Attention, HeadDimOf
from mlxr.compiler.spec.blocks import SECTIONS, USUAL_BLOCKS, Blocks, IsGiven, filled_type, needed_sections
from mlxr.compiler.spec.eagle import Eagle
from mlxr.compiler.spec.fields import INT32_MAX, MAX_LAYERS, Contradictions, Count, Epsilon, Flag, Positive
from mlxr.compiler.spec.layer_embeddings import LayerEmbeddings
from mlxr.compiler.spec.mlp import Mlp
from mlxr.compiler.spec.mtp import Mtp
from mlxr.compiler.spec.record import Record
from mlxr.compiler.spec.recurrent import Recurrent
from mlxr.compiler.spec.rope import Rope

_MAX_EXACT_POSITION = 2**24  # float32 cannot represent the next whole number
_ALIGNED = "kernels read 16 bytes at a time"


class Norm(Record):
    """Normalisation of the residual stream around the attention and MLP blocks, and before the output."""

    kind: Literal["rms", "layer"] = "rms"
    """`rms`: x / sqrt(mean(x^2) + eps) * weight; `layer`: (x - mean) / sqrt(variance + eps) * weight."""
    eps: Epsilon = 1e-5
    """Added to the mean square or the variance."""
    weight: Flag = True
    """Whether it multiplies by weights."""
    bias: Flag = False
    """Whether a bias is added; layer norms only."""
    placement: Literal["pre", "post", "sandwich", "after"] = "pre"
    """`pre`: x + f(norm(x)); `post`: x + norm(f(x)); `sandwich`: x + post_norm(f(norm(x))); `after`: norm(x + f(x)), as
    in BERT, where the last norm is the final one."""

    first: Flag = True
    """Whether there is one before the first layer's first block; needs placement pre."""

    @model_validator(mode="after")
    def _check(self) -> "Norm":
        wrong = Contradictions()
        if not self.first and self.placement != "pre":
            wrong.add("first", f"no norm comes before blocks: placement is {self.placement}", "set first to true")
        if self.bias and self.kind == "rms":
            wrong.add("bias", "a norm of kind rms has no bias", "set bias to false, or kind to layer")
        if self.bias and not self.weight:
            wrong.add("weight", "a norm with a bias has weights", "set weight to true, or bias to false")
        wrong.refuse()
        return self


class LayerType(Record):
    """Properties of the layers of one type. A key that is left out has the model's value.

    Once resolved, sections of blocks that the layers do not have are null.
    """

    attention: Attention | None
    """Keys of `model.attention` that differ."""
    rope: Rope | None
    """Keys of `model.rope` that differ; null for no rotation."""
    mlp: Mlp | None
    """Keys of `model.mlp` that differ."""
    recurrent: Recurrent | None = None
    """Keys of `model.recurrent` that differ."""
    blocks: Blocks = USUAL_BLOCKS
    """As `model.blocks`."""

    @property
    def own_attention(self) -> Attention:
        """The attention of layers that have one."""
        assert self.attention is not None, f"layers of {', '.join(self.blocks)}"
        return self.attention

    @property
    def rotary_dim(self) -> int:
        """Rotated elements of a head; 0 without rotation."""
        return _rotary_dim(self.rope, self.attention)


class Model(Record):
    """The architecture."""

    vocab_size: Count
    """Rows of the embedding table."""
    hidden_size: Count
    """Width of the residual stream: a multiple of 8. It need not be num_heads x head_dim."""
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, strict=True)]
    """Decoder layers."""
    context: Annotated[int, Field(ge=1, le=_MAX_EXACT_POSITION, strict=True)]
    """Longest sequence, prompt and generated tokens together; at most 2^24, where float32 still counts exactly."""
    norm: Norm = Norm()
    """Normalisation of the residual stream."""
    rope: Rope | None = Rope()
    """How queries and keys are rotated by their positions; null for no rotation."""
    token_types: Count | None = None
    """Rows of a table: a token's embedding has that of its type added, 0 or, in the second of two texts, 1, if there is
    such a row; null for none."""
    learned_positions: Count | None = None
    """Rows of a table, `context` at least: a token's embedding has that of its position added; null for none."""
    attention: Annotated[Attention | None, IsGiven] = None
    """The attention block of every layer; may be left out if no layer has one."""
    mlp: Annotated[Mlp | None, IsGiven] = None
    """The feed-forward block of every layer; may be left out if no layer has one."""
    recurrent: Annotated[Recurrent | None, IsGiven] = None
    """A recurrent block, which keeps a state of each sequence; null for none."""
    blocks: Blocks = USUAL_BLOCKS
    """The blocks of a layer, in order: `attention`, `recurrent` and `mlp`, or some of them. Where a layer has both of
    the first two, they read the same norm, and their results are added together."""
    parallel_blocks: Flag = False
    """Whether both blocks read the same x: x + attention(norm(x)) + mlp(norm(x)), with one norm."""
    parallel_norms: Flag = False
    """Whether each of the parallel blocks has a norm of its own."""
    layer_types: Annotated[dict[str, LayerType], Field(max_length=64)] = Field(default_factory=dict)
    """Layers that differ from the rest, by the name of their type: what they have instead of the model's properties."""
    layer_pattern: Annotated[tuple[str, ...], Field(max_length=MAX_LAYERS)] = ()
    """Names of layer types, repeated over the layers; the last repetition may be cut."""
    tie_embeddings: Flag = False
    """Whether the output projection is the embedding table."""
    embedding_scale: Positive = 1.0
    """Factor of the embeddings."""
    embedding_norm: Flag = False
    """Whether the embeddings are normalised, as by norms of blocks."""
    layer_embeddings: LayerEmbeddings | None = None
    """Vectors that layers have of each token; null for none. Needs norm.placement sandwich or post."""
    layer_scale: Flag = False
    """Whether the residual stream behind each layer is multiplied by a learned number. Needs norm.placement sandwich or
    post."""
    factors: dict[str, Annotated[float, Field(strict=True)]] = Field(default_factory=dict)
    """By names that its family has for them: numbers by which files leave it to multiply some weights."""
    residual_scale: Positive = 1.0
    """Factor of what each block adds to the residual stream."""
    output_bias: Flag = False
    """Whether the output projection adds a bias."""
    logit_scale: Positive = 1.0
    """Factor of the logits."""
    logit_softcap: Positive | None = None
    """Logits become logit_softcap x tanh(logit / logit_softcap), after their scale; null for none."""
    mtp: Mtp | None = None
    """The head of its own that guesses further tokens; null for none."""
    eagle: Eagle | None = None
    """The head that guesses further tokens and that other files bring; null for none. Not beside mtp."""
    tensor_names: str = "llama"
    """The family, which says where weight files have the tensors: a file of models/families, without its ending."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Notes the sections that its blocks need, and derives the default of head_dim."""
        if not isinstance(data, dict):
            return data
        data = needed_sections(data.get("blocks", USUAL_BLOCKS)) | data
        if isinstance(attention := data.get("attention"), dict):
            default = _latent_head_dim(attention.get("latent")) or HeadDimOf(
                data.get("hidden_size"), attention.get("num_heads")
            )
            return {**data, "attention": {"head_dim": default, **attention}}
        return data

    @field_validator("layer_types", mode="before")
    @classmethod
    def _fill_layer_types(cls, data: Any, info: ValidationInfo) -> Any:
        """Fills in the model's properties in each layer type; they have been validated by now."""
        if not {"attention", "rope", "mlp"} <= info.data.keys():
            return {}  # the spec is refused because of one of these; further errors would only distract
        if not isinstance(data, dict):
            return data
        names = ("attention", "rope", "mlp", "recurrent", "blocks")
        base = {name: info.data[name] for name in names if name in info.data}
        return {name: filled_type(base, given) if isinstance(given, dict) else given for name, given in data.items()}

    @model_validator(mode="after")
    def _check(self) -> "Model":
        wrong = Contradictions()
        wrong.check_multiple("hidden_size", self.hidden_size, 8, _ALIGNED)
        self._check_norms(wrong)
        self._check_pattern(wrong)
        self._check_shared_keys(wrong)
        whole = self.as_layer
        self._check_layer(whole, "", None, wrong)
        for name, layer in self.layer_types.items():
            self._check_layer(layer, f"layer_types.{name}.", whole, wrong)
        self._check_recurrent(wrong)
        if self.vocab_size * self.hidden_size > INT32_MAX:
            what = f"the embedding table of vocab_size x hidden_size {self.vocab_size} x {self.hidden_size}"
            wrong.add("vocab_size", f"{what} has more than 2^31 - 1 elements")
        self._check_positions(wrong)
        self._check_encoder(wrong)
        self._check_mtp(wrong)
        if self.eagle is not None:
            self.eagle.check(self.num_layers, self.hidden_size, self.vocab_size, wrong)
        wrong.refuse()
        return self

    def _check_mtp(self, wrong: Contradictions) -> None:
        if self.mtp is None:
            return
        if self.eagle is not None:
            wrong.add("eagle", "two heads would guess: the model's own, too", "leave eagle or mtp out")
        last = self.layer_pattern[(self.num_layers - 1) % len(self.layer_pattern)] if self.layer_pattern else None
        kind = self.as_layer if last is None else self.layer_types.get(last)
        if kind is not None and (kind.attention is None or kind.attention.kv_from is not None or kind.recurrent):
            what = "the last layer, and so the head's, does not attend to keys and values of its own alone"
            wrong.add("mtp", what, "leave mtp out")
        for key in ("layer_embeddings", "layer_scale", "learned_positions", "embedding_norm"):
            if getattr(self, key):
                wrong.add("mtp", f"a head that guesses has no {key}", "leave mtp out")

    def _check_positions(self, wrong: Contradictions) -> None:
        rows = self.learned_positions
        if rows is None:
            return
        if rows < self.context:
            what = f"the table has {rows} rows, and context is {self.context}: each position has a row"
            wrong.add("learned_positions", what, f"use a context of at most {rows}")
        if rows * self.hidden_size > INT32_MAX:
            what = f"the table of {rows} positions x hidden_size {self.hidden_size}"
            wrong.add("learned_positions", f"{what} has more than 2^31 - 1 elements")

    def _check_encoder(self, wrong: Contradictions) -> None:
        if not self.is_encoder:
            return
        if any(layer.attention is None or layer.attention.causal or layer.recurrent for layer in self._kinds):
            what = "some layers are causal or recurrent, and others see whole texts"
            wrong.add("attention.causal", what, "make all layers alike")
        for key in ("mtp", "eagle", "layer_embeddings"):
            if getattr(self, key):
                wrong.add(key, "a model that sees whole texts generates nothing", f"leave {key} out")

    def _check_norms(self, wrong: Contradictions) -> None:
        if self.parallel_norms and not self.parallel_blocks:
            wrong.add("parallel_norms", "blocks that are not parallel have norms anyway", "set parallel_blocks to true")
        for key in ("layer_embeddings", "layer_scale"):
            if getattr(self, key) and (self.norm.placement in ("pre", "after") or self.norm.kind != "rms"):
                wrong.add(key, "it comes behind rms norms of blocks' results", "set norm.placement to sandwich or post")
        if self.layer_embeddings is not None:
            wrong.check_multiple("layer_embeddings.width", self.layer_embeddings.width, 8, _ALIGNED)
            mlps = [layer.mlp for layer in self._kinds]
            if any(mlp is None for mlp in mlps):
                wrong.add("layer_embeddings", "gates of vectors have the activation of mlp", "name mlp in blocks")
            if any(mlp is not None and mlp.activation in ("swiglu_oai", "xielu") for mlp in mlps):
                wrong.add("layer_embeddings", "gates of vectors have no activation of two inputs", "name another")
            if self.num_layers * self.layer_embeddings.width * max(self.vocab_size, self.hidden_size) > 2**34:
                wrong.add("layer_embeddings.width", "the table of all layers has more than 2^34 elements")
        if self.norm.placement == "after" and any(layer.mlp is None for layer in self._kinds):
            wrong.add("norm.placement", "the last norm is that behind the last layer's mlp", "name mlp in blocks")
        if self.parallel_blocks and any(set(layer.blocks) != set(USUAL_BLOCKS) for layer in self._kinds):
            wrong.add("parallel_blocks", "parallel blocks are attention and mlp, but blocks names others", "remove it")
        if self.parallel_blocks and self.norm.placement != "pre":
            wrong.add(
                "parallel_blocks",
                f"parallel blocks have norms before them, but norm.placement is {self.norm.placement}",
                "set norm.placement to pre, or parallel_blocks to false",
            )

    def _check_pattern(self, wrong: Contradictions) -> None:
        known = ", ".join(self.layer_types)
        for index, name in enumerate(self.layer_pattern):
            if name not in self.layer_types:
                wrong.add(
                    f"layer_pattern.{index}",
                    f'"{name}" is not a layer type; {f"layer_types has {known}" if known else "layer_types is empty"}',
                    f"name one of layer_types, or add {name} to it",
                )
        for name in self.layer_types:
            if name not in self.layer_pattern:
                wrong.add(
                    f"layer_types.{name}",
                    "no layer is of this type: layer_pattern does not name it",
                    "name it in layer_pattern, or remove it",
                )

    def _check_shared_keys(self, wrong: Contradictions) -> None:
        if self.attention is not None and self.attention.kv_from is not None:
            wrong.add("attention.kv_from", "not all layers can use keys of an earlier one", "say it of a layer type")
        for name, layer in self.layer_types.items():
            own, at = layer.attention, f"layer_types.{name}.attention.kv_from"
            source = None if own is None else own.kv_from
            if own is None or source is None:
                continue
            of = self.layer_types[source].attention if source in self.layer_types else None
            if of is None or of.kv_from is not None:
                wrong.add(at, f'"{source}" is not a layer type with keys and values of its own', "name one")
                continue
            mine, theirs = ((a.num_kv_heads, a.head_dim, a.result_dim) for a in (own, of))
            if mine != theirs:
                what = "{} KV heads of {} and {}, its own are {} of {} and {}".format(*theirs, *mine)
                wrong.add(at, f"layers of type {source} have {what}", "give both types the same")
            first = self.layer_pattern.index(name) if name in self.layer_pattern else 0
            if source not in self.layer_pattern[:first]:
                wrong.add(at, f"layer {first} is of type {name}, and no layer of type {source} comes before it")

    def _check_layer(self, layer: LayerType, at: str, base: LayerType | None, wrong: Contradictions) -> None:
        """Notes contradictions within one layer type. Sections that equal those of `base` have been checked already."""
        attention, rope, mlp = layer.attention, layer.rope, layer.mlp
        _check_blocks(layer, at, wrong)
        if mlp is not None and (base is None or mlp != base.mlp):
            self._check_mlp(mlp, at, wrong)
        if attention is None:
            return
        of_base = None if base is None or rope != base.rope else base.attention
        if rope is not None and (of_base is None or attention.rope_dim != of_base.rope_dim):
            rope.check(attention.rope_dim, f"{at}rope", wrong)
        if attention.latent is not None and rope is not None and rope.fraction != 1:
            wrong.add(f"{at}rope.fraction", "latent attention rotates all of attention.latent.rope_dim", "use 1")
        if base is None or attention != base.attention:
            self._check_attention(attention, at, wrong)

    def _check_attention(self, attention: Attention, at: str, wrong: Contradictions) -> None:
        qk_norm = attention.qk_norm
        if qk_norm is not None and qk_norm.bias and (qk_norm.kind or self.norm.kind) == "rms":
            wrong.add(
                f"{at}attention.qk_norm.bias",
                "a norm of kind rms has no bias",
                "set bias to false, or qk_norm.kind to layer",
            )
        rows = attention.packed_width
        if rows * self.hidden_size > INT32_MAX:
            what = f"the merged query, key and value projection {rows} x {self.hidden_size}"
            wrong.add(f"{at}attention.num_heads", f"{what} has more than 2^31 - 1 elements")

    def _check_mlp(self, mlp: Mlp, at: str, wrong: Contradictions) -> None:
        has_norms = mlp.experts is not None and (mlp.experts.own_norms or mlp.experts.router_norm)
        if has_norms and (self.norm.placement != "sandwich" or self.norm.kind != "rms"):
            what = "norms of experts and routers stand beside rms norms before and after blocks"
            wrong.add(f"{at}mlp.experts", what, "set norm.placement to sandwich")
        for key, width in mlp.widths:
            wrong.check_multiple(f"{at}mlp.{key}", width, 8, _ALIGNED)
            if 2 * width * self.hidden_size > INT32_MAX:
                what = f"the merged gate and up projection {2 * width} x {self.hidden_size}"
                wrong.add(f"{at}mlp.{key}", f"{what} has more than 2^31 - 1 elements")

    def _check_recurrent(self, wrong: Contradictions) -> None:
        found = {layer.recurrent for layer in self._kinds if layer.recurrent is not None}
        if len(found) > 1:
            wrong.add("layer_types", "recurrent blocks of layers differ, but states of all have one shape", "use one")
        if self.recurrent is not None and not found:
            wrong.add("recurrent", "no layer has it: no blocks name it", "add it to blocks, or remove it")
        for recurrent in found:
            rows = max(recurrent.widest, *(rows for rows, _ in recurrent.matrices(self.hidden_size).values()))
            if rows * self.hidden_size > INT32_MAX:
                what = f"the merged projection {rows} x {self.hidden_size} of a recurrent block"
                wrong.add("recurrent", f"{what} has more than 2^31 - 1 elements")

    @property
    def as_layer(self) -> LayerType:
        """The model's own properties as those of a layer."""
        own = {block: getattr(self, block) if block in self.blocks else None for block in SECTIONS}
        return LayerType.model_construct(rope=self.rope, blocks=self.blocks, **own)

    @property
    def _kinds(self) -> tuple[LayerType, ...]:
        """The kinds of layers, in any order."""
        return tuple(self.layer_types.values()) or (self.as_layer,)

    def layer(self, index: int) -> LayerType:
        """The properties of one layer, resolved; that of the head of its own that guesses is like the last one."""
        assert 0 <= index < self.num_layers + self.has_head, f"layer {index} of {self.num_layers}"
        if index == self.num_layers and (head := self.eagle) is not None:
            return LayerType(attention=head.attention, rope=head.rope, mlp=head.mlp)
        index = min(index, self.num_layers - 1)
        if not self.layer_pattern:
            return self.as_layer
        return self.layer_types[self.layer_pattern[index % len(self.layer_pattern)]]

    def kv_owner(self, index: int) -> int:
        """The layer whose keys and values a layer uses: itself, or an earlier one."""
        attention = self.layer(index).attention
        source = None if attention is None else attention.kv_from
        if source is None:
            return index
        names = [self.layer_pattern[i % len(self.layer_pattern)] for i in range(index)]
        return max(i for i, name in enumerate(names) if name == source)

    @property
    def layers(self) -> tuple[LayerType, ...]:
        """The properties of every layer, resolved, but for that of the head that guesses."""
        if not self.layer_pattern:
            return (self.as_layer,) * self.num_layers
        return tuple(self.layer(index) for index in range(self.num_layers))

    @property
    def all_layers(self) -> tuple[LayerType, ...]:
        """The properties of every layer, and of that of the head that guesses."""
        return (*self.layers, self.layer(self.num_layers)) if self.has_head else self.layers

    @property
    def has_head(self) -> bool:
        """Whether a head guesses further tokens, of its own or of other files."""
        return self.mtp is not None or self.eagle is not None

    @property
    def row_width(self) -> int:
        """Columns of the rows that are kept for the head."""
        return self.hidden_size if self.eagle is None else self.eagle.hidden_size

    @property
    def is_encoder(self) -> bool:
        """Whether it reads whole texts at once, each token seeing all of its text, and caches nothing."""
        return any(layer.attention is not None and not layer.attention.causal for layer in self._kinds)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each kind of layer that the model has, in the order of its first layer."""
        return tuple(dict.fromkeys(layer.attention for layer in self.layers if layer.attention is not None))

    @property
    def recurrents(self) -> tuple[Recurrent | None, ...]:
        """The recurrent block of every layer."""
        return tuple(layer.recurrent for layer in self.layers)

    @property
    def rotary_dim(self) -> int:
        """Rotated elements of a head, unless a layer type says otherwise; 0 without rotation."""
        return _rotary_dim(self.rope, self.attention)


def _rotary_dim(rope: Rope | None, attention: Attention | None) -> int:
    return 0 if rope is None or attention is None else rope.rotary_dim(attention.rope_dim)


def _latent_head_dim(latent: Any) -> int | None:
    """Elements of a head of latent attention as a spec says it, not yet checked; None where it does not."""
    parts = [latent.get(name) for name in ("nope_dim", "rope_dim")] if isinstance(latent, dict) else []
    counts = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    return sum(counts) if len(counts) == 2 else None


def _check_blocks(layer: LayerType, at: str, wrong: Contradictions) -> None:
    """Notes blocks that are named twice or without a section, and sections without a block."""
    for block in dict.fromkeys(layer.blocks):
        if layer.blocks.count(block) > 1:
            wrong.add(f"{at}blocks", f"{block} is named twice, and a layer has it once", "name it once")
        if getattr(layer, block) is None:
            wrong.add(f"{at}blocks", f"{block} is named, but nothing says what it is", f"give {block}")
    if "mlp" in layer.blocks[:-1]:
        wrong.add(f"{at}blocks", "mlp is what a layer ends with", "name it last")
    for block in SECTIONS if at else ():
        if block not in layer.blocks and getattr(layer, block) is not None:
            wrong.add(f"{at}{block}", "the layers do not have it: blocks does not name it", "add it to blocks")
