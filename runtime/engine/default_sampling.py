"""How a model's own files say that its tokens are chosen: the defaults of options that a request leaves open.

Files: `generation_config.json` beside safetensors (or in the tokenizer's folder, where GGUF says nothing), and GGUF's
keys `general.sampling.*`, which llama.cpp's converter writes from that file. docs/SAMPLING.md has the rules. A value
that cannot be used is left out, with a note, and never keeps a model from loading: transformers and llama.cpp go on,
too.

Source: transformers' GenerationConfig, vLLM's `get_diff_sampling_param`, llama.cpp's common.cpp.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import MlxrError, RequestError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.json_file import read_json_object
from mlxr.runtime.weights.weight_file import WeightFile

USUAL: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What a model gets whose files say nothing: the defaults of llama.cpp."""
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")
_LLAMA_RANGE = 64
"""How many tokens llama.cpp's repetition penalty is for, where the file does not say."""
_FORBIDDEN = -100.0
"""The bias of a token that must not come: the least that `logit_bias` takes."""
_GGUF = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "repetition_range",
}
_NEUTRAL = Sampling()
_SUPPRESSED = f"{file_keys.TOKENIZER}suppress_tokens"
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (1,),
    "penalty_alpha": (0,),
    "guidance_scale": (0, 1),
    "diversity_penalty": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": ([],),
    "sequence_bias": ([], {}),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "xtc_probability": (0,),
    "mirostat": (0,),
    "sequence": (),
}
"""What changes text elsewhere and is not done here, each with the values at which it changes nothing there either."""


@dataclass(frozen=True)
class DefaultSampling:
    """A model's own sampling.

    Attributes:
        options: of `Sampling`, by their names; others are those of `Sampling()`.
        source: what says so, for people: the file, or that nothing does.
        notes: what the files say that cannot be done, for people.
    """

    options: Mapping[str, Any] = field(default_factory=lambda: dict(USUAL))
    source: str = "MLXR's, the model's files name none"
    notes: tuple[str, ...] = ()

    def completed(self, sampling: Sampling) -> Sampling:
        """Options in which the model's own take the places of those that were left open; itself if none were."""
        if not sampling.left_open:
            return sampling
        own = {name: value for name, value in self.options.items() if name in sampling.left_open}
        if sampling.logit_bias:
            own["logit_bias"] = {**self.options.get("logit_bias", {}), **sampling.logit_bias}
        return replace(sampling, **own, left_open=frozenset())

    def __str__(self) -> str:
        """As people read it: `temperature 0.6, top-k 20 (generation_config.json)`."""
        return f"{told(self.options)} ({self.source})"


def told(options: Mapping[str, Any]) -> str:
    """Options as people read them: `temperature 0.6, top-k 20`; greedy ones without filters, which have no effect."""
    greedy = options.get("temperature") == 0
    parts = ["temperature 0 (greedy)"] if greedy else []
    for name, value in options.items():
        words = name.replace("_", "-")
        if name in ("logit_bias", "stop") and not value:
            continue
        if name == "logit_bias":
            parts.append(f"{len(value)} tokens forbidden" if set(value.values()) == {_FORBIDDEN} else words)
        elif name == "stop":
            parts.append("stops at " + ", ".join(map(repr, value)))
        elif not (greedy and name in ("temperature", *_FILTERS)) and value != getattr(_NEUTRAL, name):
            parts.append(f"{words} {value:g}")
    return ", ".join(parts)


def default_sampling(
    file: WeightFile, vocab_size: int, tokenizer: "str | os.PathLike[str] | None" = None
) -> DefaultSampling:
    """What a model's files say.

    Args:
        file: its weights.
        vocab_size: tokens that it knows.
        tokenizer: where its tokenizer was said to be, if not in or beside the weights.
    """
    if file.format == "gguf":
        said = {name: value for name, value in file.metadata.items() if name.startswith(file_keys.SAMPLING)}
        if said or file.metadata.get(_SUPPRESSED):
            return _of_gguf(file.metadata, said, vocab_size)
        folder = None if tokenizer is None else Path(tokenizer)
    else:
        folder = file.path
    if folder is None:
        return DefaultSampling()
    path = (folder if folder.is_dir() else folder.parent) / file_keys.GENERATION_FILE
    return _of_config(path, vocab_size) if path.is_file() else DefaultSampling()


def _of_gguf(metadata: Mapping[str, Any], said: Mapping[str, Any], vocab_size: int) -> DefaultSampling:
    named = {name.removeprefix(file_keys.SAMPLING): _short(value) for name, value in said.items()}
    reader = _Reader(named, "the GGUF file")
    for name, option in _GGUF.items():
        reader.take(name, option)
    last = reader.options.pop("repetition_range", _LLAMA_RANGE)
    if last == 0:  # llama.cpp's way to say: no penalty
        reader.options.pop("repetition_penalty", None)
    elif last > 0 and reader.options.get("repetition_penalty", 1.0) != 1:
        reader.options["repetition_range"] = last
    reader.suppress(metadata.get(_SUPPRESSED), vocab_size)
    return reader.result(f"{file_keys.SAMPLING}* of the GGUF file", None)


def _of_config(path: Path, vocab_size: int) -> DefaultSampling:
    name = path.name
    try:
        config = read_json_object(path, file_keys.CONFIG_BYTES, RequestError)
    except MlxrError as error:
        return DefaultSampling(notes=(f"{error}; what it says is left out",))
    reader = _Reader(config, name)
    for option in ("temperature", *_FILTERS, "repetition_penalty"):
        reader.take(option, option)
    reader.suppress(config.get("suppress_tokens"), vocab_size)
    stops = config.get("stop_strings")
    stops = [stops] if isinstance(stops, str) else stops
    if isinstance(stops, list) and (texts := [text for text in stops if isinstance(text, str) and text]):
        reader.options["stop"] = tuple(texts)
    return reader.result(name, config.get("do_sample"))


class _Reader:
    """Reads one file's values into options, and notes what cannot be used."""

    def __init__(self, said: Mapping[str, Any], where: str) -> None:
        self.options: dict[str, Any] = {}
        self._said, self._where = said, where
        self._notes: list[str] = []

    def take(self, name: str, option: str) -> None:
        """Takes a number, as the loaders that know the name would."""
        value = self._said.get(name)
        if value is None:
            return
        number = _number(value)
        taken = None if number is None else _TAKEN[option](number)
        if taken is None:
            self._notes.append(f"{self._where} has {name} {value!r:.40}: such a value is left out")
        else:
            self.options[option] = taken

    def suppress(self, ids: Any, vocab_size: int) -> None:
        """Forbids tokens; what is no id of the vocabulary is left out."""
        if isinstance(ids, list) and (known := [i for i in ids if type(i) is int and 0 <= i < vocab_size]):
            self.options["logit_bias"] = dict.fromkeys(known, _FORBIDDEN)

    def result(self, source: str, do_sample: Any) -> DefaultSampling:
        """The defaults.

        Args:
            source: what says so.
            do_sample: whether the file says that tokens are sampled; None: it does not say.
        """
        self._notes.extend(
            f"{self._where} asks for {name} {value!r:.40}, which MLXR leaves out"
            for name, neutral in _WITHOUT_EFFECT.items()
            if (value := self._said.get(name)) is not None and value is not False and value not in neutral
        )
        own, base = self.options, dict(USUAL)
        if do_sample is False:
            own = {"temperature": 0.0} | {name: value for name, value in own.items() if name != "temperature"}
        elif do_sample is True or any(name in own for name in ("temperature", *_FILTERS)):
            base = {"temperature": 1.0}  # whoever names some means the neutral values of the others
        if not own and do_sample is not True:
            return DefaultSampling(notes=tuple(self._notes))
        return DefaultSampling(base | own, source, tuple(self._notes))


def _number(value: Any) -> float | None:
    """A number, or one that is written as text: llama.cpp reads such."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _short(value: Any) -> Any:
    """A number in f32 as people wrote it: 0.6, and not 0.6000000238418579."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _count(value: float) -> int | None:
    return int(min(value, 2**31 - 1)) if value == int(value) else None


def _share(value: float) -> float | None:
    return min(value, 1.0) if value > 0 else None


_TAKEN: Mapping[str, Callable[[float], float | None]] = {
    "temperature": lambda value: max(0.0, value) if value <= 100 else None,
    "top_k": lambda value: None if (count := _count(value)) is None else max(0, count),
    "top_p": _share,
    "min_p": lambda value: max(0.0, value) if value <= 1 else None,
    "typical_p": _share,
    "repetition_penalty": lambda value: value if 0.01 <= value <= 100 else None,
    "repetition_range": _count,
}
"""A value as llama.cpp and transformers take it (temperature 0 or less is greedy, top-k 0 or less is all); or None."""
