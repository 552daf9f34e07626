"""What the files of a head say that guesses for a model of other files (EAGLE-3), and a model's spec with it.

Published heads are of several programs, whose config.json differ: SafeAILab's EAGLE, SpecForge and AngelSlim
(`LlamaForCausalLMEagle3`); vLLM's speculators (`speculators_model_type: eagle3`, the layer in a section of its own);
NVIDIA's ModelOpt (`eagle_config`); and llama.cpp's GGUF files.

Sources: SafeAILab/EAGLE (cnets.py), vLLM (llama_eagle3.py, speculators/algos.py), SGLang (llama_eagle3.py), llama.cpp
(models/eagle3.cpp).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.file_keys import ARCHITECTURE, QUANTISATION
from mlxr.compiler.importers.evaluate import Evaluation
from mlxr.compiler.importers.facts import Facts
from mlxr.compiler.importers.gguf_rope import GgufRope
from mlxr.compiler.importers.rope_section import ConfigRope
from mlxr.compiler.importers.rules import load_rules
from mlxr.compiler.importers.tensors import TensorFact, Tensors
from mlxr.compiler.spec.eagle import NUM_TAPS
from mlxr.compiler.spec.explain import show
from mlxr.compiler.spec.family import EAGLE_FAMILY, load_family
from mlxr.compiler.spec.load import parse_spec
from mlxr.compiler.spec.model import ModelSpec

_LAYER, _IDS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
_OPTIONS = ("norm_before_fc", "norm_before_residual", "norm_output", "fc_norm")
_NO_WEIGHTS = (".d2t", ".t2d", ".rope_freqs.weight", ".rotary_emb.inv_freq")
"""How names of tensors end that no product reads."""
_NOT_HERE = {
    "use_aux_hidden_state": (True,),
    "use_mtp_layernorm": (False,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "parallel_draft_step": (1,),
    "parallel_drafting": (False,),
    "eh_proj_before_attn": (False,),
    "next_layer_regular": (True,),
}
"""Keys by which other heads compute otherwise, and the values with which they do not."""


@dataclass(frozen=True)
class EagleFiles:
    """What the files of a head say.

    Attributes:
        source: what messages call them.
        section: `model.eagle` of a spec, without `taps`.
        taps: as in the spec; None: the usual ones of the model.
        formats: of its matrices, by their roles.
        hidden_size: of the model that it reads.
        vocab_size: of that model; None: its files do not say.
    """

    source: str
    section: Mapping[str, Any]
    taps: tuple[int, ...] | None
    formats: Mapping[str, str]
    hidden_size: int
    vocab_size: int | None

    def of(self, spec: ModelSpec) -> ModelSpec:
        """The spec of a model with the head.

        Raises:
            SpecError: it is a head for another model.
        """
        model, name = spec.model, spec.name
        fix = f"take the one that was trained for {name}, or prompt lookup, which needs no head"
        what = f"{self.source}: this head cannot guess for {name}"
        if self.hidden_size != model.hidden_size:
            raise SpecError(
                f"{what}: it reads rows of {self.hidden_size} numbers (fc.weight has {NUM_TAPS} x {self.hidden_size} "
                f"columns), and the model's have {model.hidden_size}: {fix}"
            )
        if self.vocab_size is not None and self.vocab_size != model.vocab_size:
            raise SpecError(
                f"{what}: it is for a vocabulary of {self.vocab_size} tokens, and the model's has {model.vocab_size}: "
                f"{fix}"
            )
        count = model.num_layers
        taps = self.taps or (2, count // 2, count - 3)
        if min(taps) < 0 or max(taps) > count:
            raise SpecError(
                f"{what}: it reads the model before layers {', '.join(map(str, taps))}, and there are {count}: {fix}"
            )
        prefix = f"layers.{count}."
        formats = {prefix + role: format for role, format in self.formats.items()} | spec.weights.tensors
        update = {
            "model": model.model_copy(update={"mtp": None, "eagle": None}),
            "weights": spec.weights.model_copy(update={"tensors": {}}),
        }
        data = spec.model_copy(update=update).model_dump(mode="json")
        data["model"]["eagle"] = {**self.section, "taps": list(taps)}
        data["weights"]["tensors"] = formats
        with suppress(ValidationError):
            return ModelSpec.model_validate(data)
        text = yaml.safe_dump(data, sort_keys=False, width=1000)  # which messages show
        try:
            return parse_spec(text, "spec with the head")
        except SpecError as error:
            raise SpecError(f"{self.source}: no spec can be made of what it says:\n{error}") from error


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a head that reads what a model of other files computes."""
    marks = ("draft_vocab_size", "speculators_model_type", "eagle_config")
    return any(key in config for key in marks) or "eagle" in str(config.get("architectures")).lower()


def eagle_from_config(config: Mapping[str, Any], tensors: Mapping[str, TensorFact], source: str) -> EagleFiles:
    """What a config.json and the tensors beside it say.

    Args:
        config: the content of config.json.
        tensors: the head's, by their names in the family of such heads.
        source: what messages call config.json.

    Raises:
        SpecError: it is another kind of head, or has what is not supported; the message names it.
    """
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise SpecError(f"{source}: speculators_model_type is {show(kind)}; of heads for other models, eagle3 is run")
    own, options = _merged_sections(config, source)
    for key, neutral in _NOT_HERE.items():
        if (value := options.get(key)) is not None and value not in neutral:
            raise SpecError(f"{source}: {key} is {show(value)}, by which a head computes otherwise: not supported")
    if any(own.get(key) for key in QUANTISATION):
        raise SpecError(f"{source}: quantised heads are read as GGUF files alone; take one in 16 bits")
    rules = load_family(EAGLE_FAMILY).config.over(load_rules("config"))
    facts = Facts(source, own, rules)
    made = Evaluation(facts, ConfigRope(facts))
    placed = Tensors(source, tensors, EAGLE_FAMILY, "safetensors", 1)
    _check_tensors(source, placed, tensors, made.num_layers)
    model = made.model(placed)
    facts.check_all_read()
    flags = {key: _flag(options, key, source) for key in _OPTIONS}
    if "speculators_model_type" in config and options.get("norm_before_residual") is None:
        flags["norm_before_residual"] = True  # as vLLM reads speculators
    of_model = tensors.get("eagle.0.t2d")
    rows = of_model.shape[0] if of_model is not None and len(of_model.shape) == 1 else facts.integer("vocab_size", 0)
    return _files(source, model, placed, tensors, flags, _taps(config, source), rows or None)


def eagle_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    source: str,
    factors: Mapping[str, Sequence[float]],
) -> EagleFiles:
    """What a GGUF file of a head says.

    Args:
        metadata: all metadata of the file.
        tensors: as for `eagle_from_config`.
        source: what messages call the file.
        factors: as for `spec_from_gguf`.

    Raises:
        SpecError: as `eagle_from_config`.
    """
    rules = load_family(EAGLE_FAMILY).gguf.over(load_rules("gguf"))
    facts = Facts(source, metadata, rules, f"{metadata[ARCHITECTURE]}.")
    made = Evaluation(facts, GgufRope(facts, factors))
    placed = Tensors(source, tensors, EAGLE_FAMILY, "gguf", 1)
    _check_tensors(source, placed, tensors, made.num_layers)
    model = made.model(placed)
    flags = {key: facts.flag(key, False) for key in ("norm_before_fc", "norm_before_residual")}
    # Older files call it what the converter did; both count layers from 0, and mean what comes before them.
    taps = _three(facts.get("target_layers") or facts.get("extract_layers"), f"{source}: target_layers", 0)
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    rows = facts.integer("vocab_size", 0) or (len(vocabulary) if isinstance(vocabulary, list) else 0)
    facts.get("target_hidden_size")
    facts.check_all_read()
    return _files(source, model, placed, tensors, flags, taps, rows or None)


def _merged_sections(config: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the layer, and those of the head, whichever section they are in."""
    sections = []
    for key in (_LAYER, "eagle_config"):
        section = config.get(key) or {}
        if not isinstance(section, dict):
            raise SpecError(f"{source}: {key} is {show(section)}; expected a section")
        sections.append(section)
    layer, eagle = sections
    if _LAYER in config and layer.get("model_type", "llama") not in ("llama", "qwen3"):
        what = f"{_LAYER}.model_type is {show(layer.get('model_type'))}"
        raise SpecError(f"{source}: {what}; heads whose layer is one of llama are run")
    return {**config, **layer}, {**config, **eagle}


def _check_tensors(source: str, placed: Tensors, tensors: Mapping[str, TensorFact], num_layers: int) -> None:
    """Refuses heads of another kind, and tensors that mean something that is not known here."""
    if not placed.has("eagle.fc") or not placed.has("attention.q") or num_layers != 1:
        layers = f"{num_layers} layers" if num_layers != 1 else "no fc.weight or no q_proj"
        raise SpecError(
            f"{source}: this is a head with {layers}; of heads for other models, those of EAGLE-3 with one layer of "
            "llama are run (--draft): they have fc.weight, which reads three of the model's layers"
        )
    if strange := [name for name in tensors if name not in placed.names and not name.endswith(_NO_WEIGHTS)]:
        listed = ", ".join(name.removeprefix("eagle.0.")[:100] for name in strange[:4])
        raise SpecError(f"{source}: holds tensors of which nobody knows what they do in a head: {listed}")


def _taps(config: Mapping[str, Any], source: str) -> tuple[int, ...] | None:
    """The layers before which the model is read.

    At the top of config.json, as speculators and vLLM have it, the numbers are those; in `eagle_config`, as NVIDIA,
    SpecForge and SGLang have it, they are those of the layers behind which it is read.
    """
    section = config.get("eagle_config") or {}
    if (top := config.get(_IDS)) is not None:
        return _three(top, f"{source}: {_IDS}", 0)
    return _three(section.get(_IDS), f"{source}: eagle_config.{_IDS}", 1)


def _three(ids: Any, where: str, more: int) -> tuple[int, ...] | None:
    if ids is None or ids == []:
        return None
    is_list = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    if not is_list or len(ids) != NUM_TAPS:
        raise SpecError(f"{where} is {show(ids)}; expected the numbers of {NUM_TAPS} layers")
    return tuple(sorted(number + more for number in ids))  # engines read them in this order, whatever the list's


def _flag(options: Mapping[str, Any], key: str, source: str) -> bool:
    value = options.get(key)
    if value is not None and not isinstance(value, bool):
        raise SpecError(f"{source}: {key} is {show(value)}; expected true or false")
    return bool(value)


def _files(
    source: str,
    model: Mapping[str, Any],
    placed: Tensors,
    tensors: Mapping[str, TensorFact],
    flags: Mapping[str, bool],
    taps: tuple[int, ...] | None,
    vocab_size: int | None,
) -> EagleFiles:
    """What was found, with the widths of the tensors."""
    fc, output = placed.fact("eagle.fc"), placed.fact("eagle.output")
    for fact in (fc, output):
        if fact is not None and len(fact.shape) != 2:
            raise SpecError(
                f"{source}: fc.weight and lm_head.weight are matrices, and one has shape {list(fact.shape)}"
            )
    columns = fc.shape[1] if fc is not None else 0
    if columns % NUM_TAPS:
        raise SpecError(f"{source}: fc.weight has {columns} columns, which are not those of {NUM_TAPS} layers")
    guessed = output.shape[0] if output is not None else vocab_size
    if guessed is None:
        raise SpecError(f"{source}: has no lm_head.weight, and nothing says how many tokens the model has")
    if guessed != vocab_size and "eagle.0.d2t" not in tensors:
        raise SpecError(f"{source}: has no tensor d2t, which would say which {guessed} tokens lm_head.weight guesses")
    section = {
        "hidden_size": model["hidden_size"],
        "vocab_size": guessed,
        "eps": model["norm"]["eps"],
        "rope": model["rope"],
        "attention": model["attention"],
        "mlp": model["mlp"],
        "tap_norm": "all" if flags.get("norm_before_fc") else "each" if flags.get("fc_norm") else None,
        "norm_residual": flags["norm_before_residual"],
        "norm_rows": flags.get("norm_output", False),
        "embedding": placed.has("eagle.embedding"),
        "output": output is not None,
    }
    return EagleFiles(source, section, taps, placed.each_format(0), columns // NUM_TAPS, vocab_size)
