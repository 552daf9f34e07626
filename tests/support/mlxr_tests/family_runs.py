"""Steps of a family's model on a host beside the reference, also with mistakes in its kernels."""

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_specs import family_spec
from mlxr_tests.host_pair import HostPair
from mlxr_tests.rounding_pair import RoundingPair
from mlxr_tests.specs import compiled

SPLIT = Geometry.of(partition=16)
"""Contexts of `generate` on both sides of the shortest partition."""


def generate(pair: HostPair) -> None:
    """Prompts in one chunk and in several, decode of one and of several sequences past windows, a fork."""
    a = pair.add()
    pair.step([(a, [3, 1, 4, 1, 5, 9, 2, 6, 5])])
    pair.step([(a, [3])])
    b = pair.fork(a)
    pair.step([(b, [5]), (a, [8])])
    c = pair.add()
    pair.step([(a, [9, 7, 9, 3, 2, 3, 8]), (c, [1, 2, 3, 4, 5]), (b, [6])])
    pair.step([(a, [4]), (c, [33]), (b, [60])])
    pair.step([(a, [4])])


def planted(artifact: Artifact, label: str = "", old: str = "", new: str = "") -> Artifact:
    """With `new` for `old` in every kernel of this label that has it."""
    texts = {k.file: artifact.kernel_text(k.name) for k in artifact.plan.first.kernels if k.label == label}
    mistaken = {file: text.replace(old, new) for file, text in texts.items() if old in text}
    assert mistaken or not label, "the mistake must be possible"
    return Artifact({**artifact.files, **mistaken})


def check_q8_cache(name: str, layout: str = "block", mistake: tuple[str, ...] = ()) -> None:
    """Compares a model with a q8 cache."""
    cache = {"dtype": "q8", "block_size": 4, "max_sequences": 3, "layout": layout}
    generate(HostPair(planted(compiled(family_spec(name, cache=cache), SPLIT), *mistake)))


def check_types(name: str, dtype: str, mistake: tuple[str, ...] = ()) -> None:
    """Compares how exact a model with weights and activations of this type is."""
    rounded, exact = (
        compiled(family_spec(name, activation_dtype=activations, weights={"default": dtype}), SPLIT)
        for activations in (dtype, "f32")
    )
    pair = RoundingPair(planted(rounded, *mistake), exact)
    generate(pair)
    pair.check()
