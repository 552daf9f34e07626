"""How models' own files say that tokens are chosen: the files that are published, and what nobody can use."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.runtime.engine.default_sampling import USUAL, DefaultSampling, default_sampling
from mlxr.runtime.weights.weight_file import WeightFile

NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0, "repetition_range": 0}


def of_folder(folder: Path, content: Any) -> DefaultSampling:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text)
    return default_sampling(WeightFile(folder / "model.safetensors", "safetensors", {}), 1000)


def of_gguf(keys: dict[str, Any], tokenizer: Path | None = None) -> DefaultSampling:
    metadata = {(key if "." in key else f"general.sampling.{key}"): value for key, value in keys.items()}
    return default_sampling(WeightFile(Path("m.gguf"), "gguf", {}, metadata), 1000, tokenizer)


def chosen(own: DefaultSampling, **given: Any) -> dict[str, Any]:
    """All options of a request, whatever is left open."""
    sampling = own.completed(mlxr.Sampling.of_model(**given))
    return {name: getattr(sampling, name) for name in ("temperature", *NEUTRAL)}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # Qwen3: what transformers 5.0 samples with, but for the neutral values of what is absent.
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643]},
         {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        # Qwen2.5
        ({"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8},
         {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}),
        # Gemma 3, whose makers ask for temperature 1
        ({"cache_implementation": "hybrid", "do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 106]},
         {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        # gpt-oss: the model's own distribution
        ({"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999, 200012]}, {"temperature": 1.0}),
        # Mistral, SmolLM2, Phi 4: nothing
        ({"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2}, USUAL),
        ({"do_sample": False, "temperature": None, "top_p": None}, {**USUAL, "temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {**USUAL, "temperature": 0.0, "top_p": 0.9}),
        ({"temperature": 0.3}, {"temperature": 0.3}),
        ({"repetition_penalty": 1.1}, {**USUAL, "repetition_penalty": 1.1}),
        # What llama.cpp and transformers' loaders take without a word
        ({"do_sample": True, "temperature": 0, "top_k": -1, "top_p": 1.5, "min_p": -1}, {"temperature": 0.0}),
    ],
)  # fmt: skip
def test_published_files(tmp_path: Path, content: dict[str, Any], expected: dict[str, Any]) -> None:
    own = of_folder(tmp_path, content)
    assert chosen(own) == {**NEUTRAL, **expected} and own.notes == ()
    assert (own.source == "generation_config.json") is (expected is not USUAL)


def test_a_gguf_file_says_what_llama_cpp_reads() -> None:
    # Converted from Gemma 3's file; f32 as GGUF has it. llama-server's /props: top_k 64, top_p 0.949999988079071.
    own = of_gguf({"top_k": 64, "top_p": 0.949999988079071})
    assert chosen(own) == {**NEUTRAL, "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    own = of_gguf({"temp": 0.6000000238418579, "penalty_repeat": 1.0499999523162842})
    assert chosen(own) == {**NEUTRAL, "temperature": 0.6, "repetition_penalty": 1.05, "repetition_range": 64}
    assert str(own) == (
        "temperature 0.6, repetition-penalty 1.05, repetition-range 64 (general.sampling.* of the GGUF file)"
    )
    everything = of_gguf({"temp": 0.5, "penalty_repeat": 1.5, "penalty_last_n": -1})
    assert chosen(everything)["repetition_range"] == 0 and chosen(everything)["repetition_penalty"] == 1.5
    assert chosen(of_gguf({"temp": 0.5, "penalty_repeat": 1.5, "penalty_last_n": 0}))["repetition_penalty"] == 1
    assert chosen(of_gguf({"temp": "0.25"}))["temperature"] == 0.25, "llama.cpp reads numbers that are text"
    assert chosen(of_gguf({"general.name": "x"})) == {**NEUTRAL, **USUAL}


def test_a_gguf_file_without_any_has_those_of_the_tokenizers_folder(tmp_path: Path) -> None:
    of_folder(tmp_path, {"temperature": 0.2})
    (tmp_path / "tokenizer.json").touch()
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert chosen(of_gguf({}, place))["temperature"] == 0.2
        assert chosen(of_gguf({"temp": 0.4}, place))["temperature"] == 0.4


def test_what_a_request_names_wins_one_by_one(tmp_path: Path) -> None:
    own = of_folder(tmp_path, {"temperature": 0.6, "top_k": 20, "suppress_tokens": [7, 5000], "stop_strings": "END"})
    assert chosen(own, top_k=0, min_p=0.1) == {**NEUTRAL, "temperature": 0.6, "min_p": 0.1}
    sampling = own.completed(mlxr.Sampling.of_model(temperature=0.0, max_tokens=5))
    assert sampling.is_greedy and sampling.max_tokens == 5 and sampling.stop == ("END",)
    assert sampling.logit_bias == {7: -100}, "5000 is no token of the vocabulary"
    assert own.completed(mlxr.Sampling.of_model(logit_bias={3: 1.0}, stop=["."])).logit_bias == {7: -100, 3: 1}
    explicit = mlxr.Sampling(top_p=0.5)
    assert own.completed(explicit) is explicit, "the library's own options are greedy and complete"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ({"temperature": "hot"}, "generation_config.json has temperature 'hot': such a value is left out"),
        ({"temperature": True}, "has temperature True"),
        ({"top_k": 2.5}, "has top_k 2.5"),
        ({"top_p": 0}, "has top_p 0"),
        ({"min_p": 3}, "has min_p 3"),
        ({"temperature": 1e9}, "has temperature 1000000000.0"),
        ('{"temperature": NaN}', "has temperature nan"),
        ({"repetition_penalty": [1]}, "has repetition_penalty [1]"),
        ({"no_repeat_ngram_size": 3, "num_beams": 1}, "asks for no_repeat_ngram_size 3, which MLXR leaves out"),
        ({"num_beams": 4}, "asks for num_beams 4"),
        ("{", "generation_config.json: cannot be read as JSON"),
        ("[]", "holds no JSON object"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_note(tmp_path: Path, content: Any, note: str) -> None:
    own = of_folder(tmp_path, content)
    assert len(own.notes) == 1 and note in own.notes[0]
    assert chosen(own) == {**NEUTRAL, **USUAL}
