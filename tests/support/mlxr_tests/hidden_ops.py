"""Good ops of the head that guesses, for the tests of all kinds: rows of 48 elements."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Tensor

_BF16, _F32, _I32 = DType.BF16, DType.F32, DType.I32
_TOKEN, _IDS = Tensor((8,), DType.U32), Tensor(("tokens",), _I32)
_WEIGHT, _ARENA = Tensor((48,), _F32), Tensor((9, 1, 4, 48), _BF16)
_HIDDEN = {"x": Tensor(("tokens", 48), _BF16), "weight": _WEIGHT, "hidden_arena": _ARENA}
_ROWS = Tensor(("tokens", 48), _BF16)
GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "hidden_write": ("hidden_write", _HIDDEN | {"slots": _IDS}, {"kind": "rms", "eps": 1e-5}, {"token": _TOKEN}),
    "guess_write": (
        "guess_write",
        _HIDDEN
        | {"rows": Tensor(("rows",), _I32), "positions": _IDS}
        | {"query_start": Tensor(("seqs+1",), _I32), "block_tables": Tensor(("seqs", 4), _I32)},
        {"kind": "rms", "eps": 1e-5},
        {"token": _TOKEN},
    ),
    "guess_input": (
        "guess_input",
        _HIDDEN | {"slots": _IDS, "hidden_weight": _WEIGHT},
        {"kind": "rms", "eps": 1e-5, "hidden_first": False, "gives": None},
        {"out": Tensor(("tokens", 96), _BF16), "token": _TOKEN},
    ),
    "guess_input of another file's head": (
        "guess_input",
        _HIDDEN | {"slots": _IDS, "hidden_weight": _WEIGHT},
        {"kind": "rms", "eps": 1e-5, "hidden_first": False, "gives": "raw"},
        {"out": Tensor(("tokens", 96), _BF16), "token": _TOKEN, "row": Tensor(("tokens", 48), _BF16)},
    ),
    "hidden_write of another file's head": (
        "hidden_write",
        {name: tensor for name, tensor in _HIDDEN.items() if name != "weight"} | {"slots": _IDS},
        {"kind": None, "eps": 1e-5},
        {"token": _TOKEN},
    ),
    "join_columns": (
        "join_columns",
        dict.fromkeys("xyz", _ROWS),
        {},
        {"out": Tensor(("tokens", 144), _BF16)},
    ),
}
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("join_columns", {"y": ("tokens", 40)}, {}, "y is"),
    ("hidden_write", {}, {"kind": None}, "rows that are kept as they are have no weight"),
    ("guess_input", {}, {"kind": None}, "rows that are kept as they are have no weight"),
]
"""Changes to good ops after which they are wrong, and what is said of them."""
