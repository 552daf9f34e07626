"""The model spec: an architecture by its properties, and how it is to be compiled.

First stage of the pipeline. Every class is frozen and refuses unknown keys. What is not implemented has no field, so it
cannot be accepted and then ignored. Sizes are counts of elements unless the name carries a unit.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS, Q4_GROUP, cache_row_bytes, stored_type
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.adapters import Adapters, adapted_matrices
from mlxr.compiler.spec.architecture import LayerType, Model, Norm
from mlxr.compiler.spec.attention import Attention, QkNorm, Temperature
from mlxr.compiler.spec.eagle import NUM_TAPS, Eagle
from mlxr.compiler.spec.fields import (
    AUTO,
    INT32_MAX,
    MAX_LAYERS,
    ActivationType,
    CacheType,
    Contradictions,
    Count,
    Flag,
    FloatType,
    FormatName,
    Output,
    SizeBytes,
    SizeOrSizes,
)
from mlxr.compiler.spec.latent import Latent
from mlxr.compiler.spec.matrices import matrix_shapes
from mlxr.compiler.spec.mlp import Experts, Mlp, SharedExpert
from mlxr.compiler.spec.parallel import Parallel
from mlxr.compiler.spec.record import Record
from mlxr.compiler.spec.recurrent import GatedDelta, Recurrent, ShortConv, Ssm
from mlxr.compiler.spec.rope import (
    BaseScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Rope,
    YarnScaling,
)

__all__ = [
    "Adapters",
    "Attention",
    "BaseScaling",
    "Cache",
    "Eagle",
    "Experts",
    "FloatType",
    "GatedDelta",
    "Latent",
    "LayerType",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mlp",
    "Model",
    "ModelSpec",
    "NoScaling",
    "Norm",
    "Parallel",
    "QkNorm",
    "Recurrent",
    "Rope",
    "SharedExpert",
    "ShortConv",
    "SizeBytes",
    "Ssm",
    "Temperature",
    "WeightFormats",
    "YarnScaling",
]


USUAL_CONTEXT = 8192
"""Tokens for which each of several sequences has room, where a model may run with less than its whole context."""


class Cache(Record):
    """The paged KV arena."""

    layout: Literal["block", "layer"] = "block"
    """`block`: [blocks, layers, block_size, kv_heads, head_dim]; `layer`: [layers, blocks, ...]."""
    mode: Literal["paged", "contiguous", "auto"] = "auto"
    """`contiguous` bakes an identity block table into the kernels (one sequence only); `auto` asks the chip's table."""
    block_size: Annotated[int, Field(ge=1, le=1024, strict=True)] = 16
    """Tokens of one block: a power of two."""
    dtype: CacheType = "bf16"
    """Element type of keys and values; `q8`: 8-bit integers with an f32 scale for each head of each token; `q4`: keys
    as 8-bit and values as 6-bit integers, with a bf16 scale for each 32 elements, which are mixed before; `auto`:
    chosen for each target."""
    max_sequences: Annotated[int, Field(ge=1, le=65536, strict=True)] = 1
    """Sequences held at once."""
    least_context: Count | None = None
    """The fewest tokens of a sequence with which the model may run; null: model.context. With fewer, the memory that is
    free when the model is loaded decides how many a sequence may have, up to model.context."""
    num_blocks: Count | None = None
    """Blocks of the arena; default: enough for max_sequences of full context, or, with least_context, for one of full
    context, and for max_sequences of 8192 tokens or of least_context."""
    memory_budget: SizeBytes | None = None
    """Most bytes for K and V together, instead of num_blocks."""
    keep_windows: bool = False
    """Whether layers that see a window of tokens keep all of them, as tiers of the cache need it."""

    @property
    def widest_dtype(self) -> DType:
        """The element type; if each target chooses one, the largest that it may choose."""
        return DType.F32 if self.dtype == AUTO else DType(self.dtype)

    @model_validator(mode="after")
    def _check(self) -> "Cache":
        wrong = Contradictions()
        if self.block_size & (self.block_size - 1):
            above = 1 << self.block_size.bit_length()
            wrong.add(
                "block_size",
                f"block_size {self.block_size} is not a power of two",
                f"nearest are {above // 2} and {above}" if above <= 1024 else "the largest is 1024",
            )
        if self.mode == "contiguous" and self.max_sequences > 1:
            wrong.add(
                "mode",
                f"mode contiguous holds one sequence, got max_sequences {self.max_sequences}",
                "use mode paged or auto, or max_sequences 1",
            )
        if self.num_blocks is not None and self.memory_budget is not None:
            wrong.add("memory_budget", "num_blocks and memory_budget both size the arena", "give one of them")
        if self.num_blocks is not None and self.num_blocks * self.block_size > INT32_MAX:
            wrong.add(
                "num_blocks",
                f"num_blocks {self.num_blocks} x block_size {self.block_size} is more than 2^31 - 1 token slots",
            )
        wrong.refuse()
        return self


TensorClass = Literal["embedding", "attention", "mlp", "output", "norm"]


class WeightFormats(Record):
    """How each class of tensor is held in memory.

    Tensors of other float types are converted at load, and quantised ones widened; a quantised format takes tensors of
    that very type.
    """

    default: FormatName = "bf16"
    """Format of every class that is not named."""
    embedding: FormatName | None = None
    """The embedding table; null for `default`."""
    attention: FormatName | None = None
    """Projections of attention and of recurrent blocks; null for `default`."""
    mlp: FormatName | None = None
    """Gate, up and down projections, and routers; null for `default`."""
    output: FormatName | None = None
    """The output projection; null for `default`. With tied embeddings it must equal `embedding`."""
    norm: FloatType = "f32"
    """Norm weights and biases, attention sinks, and biases of the choice of experts. What recurrent blocks have besides
    their projections is f32."""
    tensors: dict[str, FormatName] = Field(default_factory=dict)
    """Exceptions: a tensor's name, such as `layers.3.mlp.down`, or a pattern with * and [], to its format. The first
    that matches counts."""

    def of(self, tensor_class: TensorClass) -> WeightFormat:
        """The format of a tensor class."""
        return WeightFormat(getattr(self, tensor_class) or self.default)

    def of_tensor(self, name: str) -> WeightFormat:
        """The format of a matrix by its canonical name, e.g. `layers.0.attention.q`."""
        for pattern, format_name in self.tensors.items():
            if fnmatchcase(name, pattern):
                return WeightFormat(format_name)
        return self.of(_class_of(name))

    def of_vector(self, name: str) -> DType:
        """The type of a norm or bias: a bias has its matrix's class, and f32 where that is quantised."""
        return self.of("norm" if name.endswith(_NORM_CLASS) else _class_of(name)).dtype


_NORM_CLASS = ("norm", "norm_bias", "sinks", "selection_bias", ".scale", ".expert_scales")


def _class_of(name: str) -> TensorClass:
    if name in ("embedding", "position_embedding", "token_type_embedding", "layer_embedding"):
        return "embedding"
    if name in ("output", "output_bias"):
        return "output"
    return "attention" if ".attention." in name or ".recurrent." in name else "mlp"


class ModelSpec(Record):
    """A whole spec: what `mlxr-compile` reads."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """The spec's name: letters, digits, dots, underscores and hyphens, 64 at most."""
    model: Model
    """The model's dimensions and properties."""
    cache: Cache = Cache()
    """Layout, mode and size of the KV arena."""
    output: Output = "logits"
    """What a step gives of the tokens that are asked for: logits, or, for embeddings, rows after the final norm."""
    activation_dtype: ActivationType = "bf16"
    """Element type of activations between kernels; sums are always in f32. `auto`: chosen for each target."""
    weights: WeightFormats = WeightFormats()
    """Formats of the weights in memory."""
    compute: Literal["exact", "fast"] = "fast"
    """What a host may round: `exact` multiplies by f32 activations; `fast` lets it round them to 8 bits with a scale
    for each 32, or to bf16, where that is faster. Sums are in f32 either way."""
    deterministic: Flag = False
    """Whether a token's logits, K and V have the same bits whatever else is in its batch, and however its sequence is
    cut into steps: one arithmetic for every number of rows, and no functions of MLX. With `compute: exact`, target cpu
    always computes so."""
    prefill_chunk: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = 512
    """Most prompt tokens of one step; null: as many as the chip's table says. A step in which all sequences decode may
    have max_sequences."""
    memory_budget: SizeOrSizes | None = None
    """Most bytes for weights, arena and activations together; a spec that needs more is refused. With `parallel`, that
    of every rank, or a list with one for each."""
    parallel: Parallel | None = None
    """How the model is split over several machines; null: it is not."""
    adapters: Adapters | None = None
    """Places for low-rank adapters (LoRA); null: the model is compiled without any."""
    experts_on_cpu: Annotated[int, Field(ge=0, le=MAX_LAYERS, strict=True)] = 0
    """How many layers, from the first on, have their chosen experts in the machine's memory, where the CPU computes
    them, beside a card that computes all else."""

    @model_validator(mode="after")
    def _check(self) -> "ModelSpec":
        wrong = Contradictions()
        self._check_formats(wrong)
        embedding, output = self.weights.of("embedding"), self.weights.of("output")
        if self.model.tie_embeddings and embedding != output:
            wrong.add(
                "weights.output" if self.weights.output else "weights.embedding",
                f"tied embeddings are one tensor, but embedding is {embedding} and output is {output}",
                f"set both to {embedding}, or model.tie_embeddings to false",
            )
        self._check_arena(wrong)
        width = self.widest_activation
        if (self.prefill_chunk or 1) * width > INT32_MAX:
            wrong.add(
                "prefill_chunk",
                f"prefill_chunk {self.prefill_chunk} x {width}, the widest activation, is more than 2^31 - 1 elements",
                f"use at most {INT32_MAX // width}",
            )
        self._check_parallel(wrong)
        if self.experts_on_cpu:
            self._check_experts_on_cpu(wrong)
        if self.adapters is not None and self.output == "hidden":
            wrong.add("adapters", "a model that makes embeddings has no adapters", "leave adapters out")
        elif self.adapters is not None and not adapted_matrices(self.model):
            wrong.add("adapters", "no layer has a projection that adapters may change", "leave adapters out")
        if self.model.is_encoder:
            self._check_encoder(wrong)
        wrong.refuse()
        return self

    def _check_encoder(self, wrong: Contradictions) -> None:
        if self.output != "hidden":
            what = f"attention is not causal, so the model generates nothing, but output is {self.output}"
            wrong.add("output", what, "set output to hidden")
        if self.parallel is not None:
            wrong.add("parallel", "a model that sees whole texts is not split", "leave parallel out")
        if self.prefill_chunk is not None and self.prefill_chunk < self.model.context:
            what = f"a step reads whole texts, of up to {self.model.context} tokens, but has {self.prefill_chunk}"
            wrong.add("prefill_chunk", what, "leave it null, or use a context that is no longer")

    def _check_experts_on_cpu(self, wrong: Contradictions) -> None:
        key, fix = "experts_on_cpu", "set experts_on_cpu to 0"
        layers = self.model.layers[: self.experts_on_cpu]
        if not any(layer.mlp is not None and layer.mlp.experts is not None for layer in layers):
            wrong.add(key, f"none of the first {self.experts_on_cpu} layers has experts", fix)
        if self.parallel is not None:
            wrong.add(
                key, "a model that is split over ranks keeps its experts on them", f"{fix}, or leave parallel out"
            )
        if self.adapters is not None:
            wrong.add(key, "a model with experts on the CPU has no adapters", f"{fix}, or leave adapters out")
        if self.model.has_head:
            head = "mtp" if self.model.mtp is not None else "eagle"
            wrong.add(key, "a model with experts on the CPU has no head that guesses", f"{fix}, or leave {head} out")
        if self.model.is_encoder:
            wrong.add(key, "a model that sees whole texts keeps its experts", fix)

    def _check_parallel(self, wrong: Contradictions) -> None:
        split, budget = self.parallel, self.memory_budget
        if isinstance(budget, tuple) and len(budget) != (split.size if split else 1):
            count = f"parallel has {split.size} ranks" if split else "without parallel there is one machine"
            wrong.add("memory_budget", f"memory_budget has {len(budget)} numbers, but {count}", "give one for each")
        if split is None:
            return
        if self.model.has_head:
            key = "mtp" if self.model.mtp is not None else "eagle"
            wrong.add(f"model.{key}", "a model that is split has no head that guesses", f"leave {key} out, or parallel")
        if self.adapters is not None:
            wrong.add("adapters", "a model that is split has no adapters", "leave adapters out, or parallel")
        layers = self.model.num_layers
        if split.layers is not None and sum(split.layers) != layers:
            wrong.add("parallel.layers", f"layers are {sum(split.layers)} together, the model has {layers}")
        elif split.pipeline > layers:
            wrong.add("parallel.pipeline", f"pipeline has {split.pipeline} stages, the model only {layers} layers")

    def budget_of(self, rank: int) -> int | None:
        """The memory budget of a rank, in bytes; rank 0 is the only one of a model that is not split."""
        return self.memory_budget[rank] if isinstance(self.memory_budget, tuple) else self.memory_budget

    def _check_formats(self, wrong: Contradictions) -> None:
        shapes = self.matrix_shapes()
        for pattern in self.weights.tensors:
            if not any(fnmatchcase(name, pattern) for name in shapes):
                wrong.add(
                    f"weights.tensors.{pattern}",
                    f'"{pattern}" matches no matrix of the model',
                    "matrices are " + ", ".join(name for name in shapes if ".0." in name or "." not in name),
                )
        reported = set()
        for name, (_, width) in shapes.items():
            format = self.weights.of_tensor(name)
            if width % format.block_elements and (format, width) not in reported:
                reported.add((format, width))
                wrong.add(
                    "weights",
                    f"{name} has rows of {width} elements, which {format} cannot hold: its blocks have "
                    f"{format.block_elements}",
                    "name another format for it in weights.tensors",
                )

    @property
    def widest_activation(self) -> int:
        """Columns of the widest activation."""
        vectors = self.model.layer_embeddings
        all_layers = 0 if vectors is None else self.model.num_layers * vectors.width
        of_head = 0 if self.model.eagle is None else max(self.model.eagle.widest, NUM_TAPS * self.model.hidden_size)
        return max(self.model.hidden_size, all_layers, of_head, *map(_widest, self.model.all_layers))

    @property
    def num_logits(self) -> int:
        """Columns of the logits: a head may guess fewer tokens than there are."""
        head = self.model.eagle if self.output == "guesses" else None
        return self.model.vocab_size if head is None else head.vocab_size

    def matrix_shapes(self) -> dict[str, tuple[int, int]]:
        """Every weight matrix by its canonical name: its rows (outputs) and columns (inputs)."""
        return matrix_shapes(self.model)

    @property
    def least_context(self) -> int:
        """The fewest tokens of a sequence with which the model may run."""
        return self.model.context if self.cache.least_context is None else self.cache.least_context

    @property
    def usual_blocks(self) -> int:
        """Blocks of the arena, if nothing else says how many."""
        cache, context = self.cache, self.model.context
        each = max(self.least_context, min(context, USUAL_CONTEXT))
        return max(-(-context // cache.block_size), cache.max_sequences * -(-each // cache.block_size))

    def _check_arena(self, wrong: Contradictions) -> None:
        cache, model = self.cache, self.model
        blocks_of_one = -(-self.least_context // cache.block_size)
        if self.least_context > model.context:
            wrong.add(
                "cache.least_context",
                f"least_context {cache.least_context} is more than context {model.context}",
                "lower it, or leave it out",
            )
        if cache.num_blocks is None and cache.memory_budget is None:
            if self.usual_blocks * cache.block_size > INT32_MAX:
                wrong.add(
                    "cache.max_sequences",
                    f"max_sequences {cache.max_sequences} of context {model.context} are more than "
                    "2^31 - 1 token slots",
                    "lower one of them, or give cache.num_blocks or cache.memory_budget",
                )
        elif cache.num_blocks is not None and cache.mode == "contiguous" and cache.num_blocks < blocks_of_one:
            wrong.add(
                "cache.num_blocks",
                f"num_blocks {cache.num_blocks} x block_size {cache.block_size} is less than context "
                f"{self.least_context}, and a contiguous arena holds a whole sequence",
                f"use {blocks_of_one} blocks, or leave num_blocks out",
            )
        attentions = [layer.attention for layer in model.all_layers]
        if cache.dtype == "q4" and not _suits_q4(attentions, wrong):
            return
        rows = [row for a in attentions if a is not None and a.kv_from is None for row in a.cached_rows]
        row_bytes = sum(cache_row_bytes(stored_type(name, cache.widest_dtype), size) for name, size in rows)
        block_bytes = cache.block_size * row_bytes
        if cache.memory_budget is not None and not block_bytes <= cache.memory_budget:
            wrong.add(
                "cache.memory_budget",
                f"memory_budget of {cache.memory_budget} bytes is less than one block of {block_bytes} bytes",
            )
        elif (
            cache.memory_budget is not None
            and rows
            and cache.memory_budget // block_bytes * cache.block_size > INT32_MAX
        ):
            wrong.add("cache.memory_budget", "memory_budget holds more than 2^31 - 1 token slots")


def _suits_q4(attentions: Sequence[Attention | None], wrong: Contradictions) -> bool:
    """Whether keys and values of every layer may be in q4; if not, what is wrong is added."""
    rows = {row for a in attentions if a is not None and a.causal for row in a.cached_rows}
    latent = any(name == LATENTS for name, _ in rows)
    odd = sorted(size for _, size in rows if size % Q4_GROUP)
    if latent:
        what = "latent attention keeps one row for keys and values, and keys have more bits than values"
        wrong.add("cache.dtype", f"q4 with latent attention: {what}", "use q8")
    elif odd:
        what = f"q4 with heads of {odd[0]} elements, which is not a multiple of {Q4_GROUP}"
        wrong.add("cache.dtype", what, "use q8")
    return not latent and not odd


def _widest(layer: LayerType) -> int:
    """Columns of the widest activation within a layer."""
    attention, mlp, recurrent = layer.attention, layer.mlp, layer.recurrent
    widest = [0 if recurrent is None else max(recurrent.widest, recurrent.result_width)]
    if mlp is not None:
        chosen = 1 if mlp.experts is None else mlp.experts.per_token
        widest += [2 * width * chosen for _, width in mlp.widths]
    if attention is not None:
        latent = attention.latent
        widest += [attention.packed_width, attention.num_heads * attention.result_dim]
        if latent is not None:
            widest.append(attention.num_heads * max(latent.row_dim, latent.qk_dim) + latent.row_dim)
    return max(widest)
