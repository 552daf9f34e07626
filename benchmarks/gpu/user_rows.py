"""Rows of the user's path: models on disk, which each engine loads with its own function and default options."""

from dataclasses import dataclass
from typing import Literal

from peers.beside_llama import LlamaRow

from mlxr.bench.lengths import LengthRange

UserKind = Literal["first", "unseen", "seen", "decode", "batch"]
FORMATS = ("bf16", "affine4", "q4_k_m")
_AS_GGUF = ("bf16", "q4_k_m")


@dataclass(frozen=True)
class UserWork:
    """What users' prompts are like.

    Attributes:
        ranges: ranges of prompt lengths, and how many prompts of each.
        tokens: tokens of a prompt before decoding.
        decoded: tokens that are timed after it.
        batch: prompts at once, in the row of several.
    """

    ranges: tuple[tuple[LengthRange, int], ...]
    tokens: int
    decoded: int
    batch: int


_WORK = UserWork(((LengthRange(300, 700), 24), (LengthRange(1500, 3500), 8)), 512, 128, 16)
WORK = {
    "tinyllama": _WORK,
    "llama-3-8b": _WORK,
    "toy": UserWork(((LengthRange(10, 40), 5), (LengthRange(41, 60), 3)), 24, 12, 3),
}


@dataclass(frozen=True)
class UserRow:
    """One row of the table.

    Attributes:
        kind: `first`: the first three prompts after loading; `unseen`: prompts of lengths that are new to the process;
            `seen`: prompts of the same lengths again; `decode` and `batch`: tokens after one prompt, and after several.
        within: the range of lengths, for the kinds that have one.
    """

    model: str
    format: str
    kind: UserKind
    within: LengthRange | None = None

    @property
    def id(self) -> str:
        """Its name: model/format/user-work."""
        more = {"first": "-3", "decode": f"-{self.work.tokens}", "batch": f"-{self.work.batch}"}
        return f"{self.model}/{self.format}/user-{self.kind}{more.get(self.kind, f'-{self.within}')}"

    @property
    def process(self) -> str:
        """The name of the process that measures the row: rows of one model share a process and its files."""
        return f"{self.model} user"

    @property
    def work(self) -> UserWork:
        """What prompts are like."""
        return WORK[self.model]

    @property
    def num_prompts(self) -> int:
        """How many prompts there are, for `unseen` and `seen`."""
        return dict(self.work.ranges)[self.within] if self.within else 3

    @property
    def beside_llama(self) -> LlamaRow | None:
        """What llama.cpp is asked for: for prompts those of the middle of their range. None: it has no such row."""
        if self.format not in _AS_GGUF or self.kind == "first":
            return None
        if self.within:
            return LlamaRow((self.within.least + self.within.most) // 2, lengths=self.within)
        work = self.work
        return LlamaRow(work.tokens, work.batch if self.kind == "batch" else 1, decoded=work.decoded)

    @property
    def title(self) -> str:
        """What is done, in words."""
        work = self.work
        return {
            "first": "first three prompts after loading",
            "unseen": f"{self.num_prompts} prompts of unseen lengths {self.within}",
            "seen": f"{self.num_prompts} prompts of the same lengths again",
            "decode": f"{work.decoded} tokens after {work.tokens}",
            "batch": f"{work.decoded} tokens after {work.tokens}, {work.batch} prompts at once",
        }[self.kind]


def user_rows_of(model: str) -> list[UserRow]:
    """Every row of a model, in the order in which they are measured: see `gpu.user_group`."""
    rows = []
    for name in FORMATS:
        rows.append(UserRow(model, name, "first"))
        for within, _ in WORK[model].ranges:
            rows += [UserRow(model, name, "unseen", within), UserRow(model, name, "seen", within)]
        rows += [UserRow(model, name, "decode"), UserRow(model, name, "batch")]
    return rows
