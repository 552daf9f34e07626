"""The text in an op's box, its colour, and the smallest size that holds it.

The font is monospaced, so that the width of a text is known: 0.602 of the font's size for each character, which no
common font exceeds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import Op, OpGraph, Value
from mlxr.inspect.picture.folded import Folded

ADVANCE = 0.602
TITLE_SIZE = 11.5
NOTE_SIZE = 9.5
CHIP_SIZE = 9.5
LINE = 13.0
CHIP_HEIGHT = 16.0
CHIP_PITCH = 20.0
CHIP_GAP = 5.0
PAD_X = 8.0
PAD_Y = 6.0


@dataclass(frozen=True)
class Badge:
    """A replaced op inside a fused box; x and y from the box's top left."""

    x: float
    y: float
    width: float
    text: str
    family: str


@dataclass(frozen=True)
class BoxText:
    """The text of a box. `chips` are (text, family) of the ops that it replaced."""

    title: str
    family: str
    notes: tuple[str, ...]
    chips: tuple[tuple[str, str], ...]

    @property
    def width(self) -> float:
        """The least width."""
        texts = [text_width(self.title, TITLE_SIZE), *(text_width(note, NOTE_SIZE) for note in self.notes)]
        return max([*texts, *(chip_width(text) for text, _ in self.chips)]) + 2 * PAD_X

    def height(self, width: float) -> float:
        """The least height of a box of that width."""
        lines = LINE * (1 + len(self.notes))
        chips = self.placed_chips(width)
        return lines + 2 * PAD_Y + ((chips[-1].y - chips[0].y + CHIP_PITCH) if chips else 0.0)

    def placed_chips(self, width: float) -> list[Badge]:
        """The chips in lines below the text, each line centred."""
        lines: list[list[tuple[str, str]]] = []
        used = math.inf
        for text, family in self.chips:
            if used + CHIP_GAP + chip_width(text) > width - 2 * PAD_X:
                lines.append([])
                used = -CHIP_GAP
            lines[-1].append((text, family))
            used += CHIP_GAP + chip_width(text)
        chips: list[Badge] = []
        y = PAD_Y + LINE * (1 + len(self.notes)) + (CHIP_PITCH - CHIP_HEIGHT)
        for line in lines:
            x = (width - sum(chip_width(text) + CHIP_GAP for text, _ in line) + CHIP_GAP) / 2
            for text, family in line:
                chips.append(Badge(x, y, chip_width(text), text, family))
                x += chip_width(text) + CHIP_GAP
            y += CHIP_PITCH
        return chips


def text_width(text: str, font_size: float) -> float:
    """Width of monospaced text."""
    return len(text) * font_size * ADVANCE


def chip_width(text: str) -> float:
    """Width of a chip."""
    return text_width(text, CHIP_SIZE) + 12


def content_of(graph: OpGraph, op: Op, replaced: Sequence[Op]) -> BoxText:
    """The content of an op's box. An op that replaced only an op like itself shows no chips."""
    weights = [value for value in map(graph.value, op.inputs.values()) if value.role == "weight"]
    notes = tuple(f"{_weight_name(w)} {dims(w)}" for w in weights if len(w.shape) == 2)
    return BoxText(op.kind, op.attrs.family, notes, tuple(_chips(replaced)) if len(replaced) > 1 else ())


def _chips(replaced: Sequence[Op]) -> list[tuple[str, str]]:
    families = {op.kind: op.attrs.family for op in replaced}
    counts = Counter(op.kind for op in replaced)
    return [(f"{n}×{kind}" if n > 1 else kind, families[kind]) for kind, n in counts.items()]


def _weight_name(weight: Value) -> str:
    return weight.name.rpartition(".")[2]


def dims(value: Value) -> str:
    """A shape for people: `tokens×512`."""
    return "×".join(str(dim) for dim in value.shape)


def label_of(graph: Folded, value: Value) -> str:
    """The shape of a value, and its type if most values have another."""
    return dims(value) if value.dtype == graph.dtype else f"{dims(value)} {value.dtype}"


def label_width(text: str) -> float:
    """Width of a label on a line."""
    return text_width(text, NOTE_SIZE) + 10
