"""The tolerance table: how far two correct implementations may differ, by the type of the rounded result."""

import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.mlx_ops.cache_rows import hadamard

Floats = npt.NDArray[np.floating]

ULP = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "q8": 2.0**-20, "q4": 2.0**-7, "q4_keys": 2.0**-7}
"""Distance of neighbouring numbers, relative to the smaller one's power of two; for q8 and q4, the error of scales."""

SUM_ERROR = 3e-6
"""Error of an fp32 sum in a different order, relative to the largest element of the result."""

LOGIT_ERROR = {
    "f32": 5e-6,
    "states": 1e-5,
    "minima": 3e-5,
    "f16": 3e-3,
    "q8": 5e-3,
    "bf16": 2.5e-2,
    "fast": 5e-2,
    "q4": 8e-2,
}
"""Relative norm of the difference of a whole model's logits, by the least exact type in use. `states`: f32
behind recurrent states; the largest one seen is 5.9e-6, in a row of V on an H200. `minima`: f32 sums of
weights that cancel the minima of their blocks; the largest one seen is 2.3e-5, in one row of K of q4_k. `fast`:
activations in 8 bits or bf16."""

AS_EXACT, AS_EXACT_IN_A_ROW = 1.5, 5.0
"""How far a host's rows may be from f32 arithmetic, all together and a single row, in units of the distance of the
reference with the same 16-bit types (root mean square). For 1600 random models on sim: 0.8, at most 1.23; a row 3.1."""


class Mismatch(AssertionError):  # noqa: N818 - the result of a comparison
    """A result differs from the expected one. Other assertions are faults of the harness."""


Q8_ROUNDED_OTHERWISE = 0.02
"""The share of a q8 or q4 cache's numbers that may be one step off, because they were half-way between two steps."""


def check_op(what: str, got: Floats, want: Floats, dtype: str, *, sum_error: float = SUM_ERROR) -> None:
    """Checks that an op's result is equal except for the order of fp32 sums and a last rounding to `dtype`.

    The check is elementwise; NaN and infinities are never equal. In q8, each row [..., head_dim] has its own step.

    Raises:
        Mismatch: it is not equal.
    """
    _check_shape(what, got, want)
    want, got = want.astype(np.float64), got.astype(np.float64)
    assert np.isfinite(want).all(), f"{what}: the reference is not finite"
    allowed = sum_error * np.abs(want).max(initial=0.0) + ULP[dtype] * np.abs(want) * (8 if dtype == "f32" else 1)
    if dtype in ("q4", "q4_keys"):
        got, want, step = _mixed(got, want, dtype)
        allowed = sum_error * np.abs(want).max(initial=0.0) + ULP[dtype] * np.abs(want)
        _check_few_steps_off(what, np.abs(got - want) > allowed)
        allowed = allowed + step
    if dtype == "q8":
        off = np.abs(got - want) > allowed
        _check_few_steps_off(what, off)
        allowed = allowed + np.abs(want).max(axis=-1, keepdims=True) / 127
    _check_elements(what, got, want, allowed)


def check_stored(what: str, got: Floats, numbers: Floats, dtype: str, *, sum_error: float = SUM_ERROR) -> None:
    """Checks rows of a cache, [..., head_dim], against the f32 numbers before rounding.

    They may differ by the order of fp32 sums and half of the distance of neighbours in `dtype` (in q8, half of a row's
    step).

    Raises:
        Mismatch: they differ by more.
    """
    _check_shape(what, got, numbers)
    want, got = numbers.astype(np.float64), got.astype(np.float64)
    assert np.isfinite(want).all(), f"{what}: the reference is not finite"
    sizes = np.abs(want)
    sums, half = sum_error * sizes.max(initial=0.0) + 8 * ULP["f32"] * sizes, ULP[dtype] / 2 * sizes
    if dtype in ("q4", "q4_keys"):
        # The extreme of a value that is not -32 steps may be 32 steps, and is stored as 31.
        got, want, step = _mixed(got, want, dtype)
        sums, sizes = sum_error * np.abs(want).max(initial=0.0) + ULP[dtype] * np.abs(want), np.abs(want)
        half = np.where((sizes > 31.4 * step) & (dtype == "q4"), step, step / 2)
    if dtype == "q8":
        step = sizes.max(axis=-1, keepdims=True) / 127
        whole = np.rint(np.divide(got, step, out=np.zeros_like(got), where=step > 0)) * step
        _check_elements(f"{what}, as multiples of their row's step", got, whole, sums)
        half = step / 2
    _check_elements(what, got, want, half + sums)


def _mixed(got: Floats, want: Floats, dtype: str) -> tuple[Floats, Floats, Floats]:
    """Rows as a q4 cache stores them, and the step of each group of 32."""
    got, want = (hadamard(x.reshape(*x.shape[:-1], -1, 32)) / 8 for x in (got, want))
    return got, want, np.abs(want).max(axis=-1, keepdims=True) / (32 if dtype == "q4" else 127)


def _check_few_steps_off(what: str, off: npt.NDArray[np.bool_]) -> None:
    if off.sum() > max(1.0, Q8_ROUNDED_OTHERWISE * off.size):
        raise Mismatch(f"{what}: {off.sum()} of {off.size} numbers are another step")


def check_logits(what: str, got: Floats, want: Floats, dtype: str) -> None:
    """Checks each row of logits by the relative norm of its difference.

    Raises:
        Mismatch: a row differs.
    """
    _check_shape(what, got, want)
    want, got = want.astype(np.float64), got.astype(np.float64)
    assert np.isfinite(want).all(), f"{what}: the reference is not finite"
    errors = (np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).reshape(-1)
    wrong = np.nonzero(~(errors <= LOGIT_ERROR[dtype]))[0]
    if len(wrong):
        raise Mismatch(f"{what}: relative error {errors[wrong[0]]:.3g} in row {wrong[0]}, {len(wrong)} rows wrong")


def check_as_exact(what: str, got: Floats, want: Floats, exact: Floats) -> None:
    """Checks that rows are about as near to f32 arithmetic as the reference's rows, in root mean square.

    Raises:
        Mismatch: they are too far away.
    """
    _check_shape(what, got, want)
    assert np.isfinite(want).all() and np.isfinite(exact).all(), f"{what}: the reference is not finite"
    size = np.linalg.norm(exact.astype(np.float64), axis=-1)
    host, reference = (np.linalg.norm(rows.astype(np.float64) - exact, axis=-1) / size for rows in (got, want))
    unit = np.sqrt(np.mean(reference**2))
    together, single = np.sqrt(np.mean(host**2)) / unit, host.max() / unit
    if not (together <= AS_EXACT and single <= AS_EXACT_IN_A_ROW):
        raise Mismatch(
            f"{what}: rounding moved the reference by {unit:.3g}, this by {together:.3g} times as much and in row "
            f"{host.argmax()} by {single:.3g} times; {AS_EXACT} and {AS_EXACT_IN_A_ROW} are allowed"
        )


def _check_elements(what: str, got: Floats, want: Floats, allowed: Floats) -> None:
    wrong = ~(np.abs(got - want) <= allowed)
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise Mismatch(
            f"{what}: {wrong.sum()} of {wrong.size} elements differ, the first at {at}: {got[at]:.8g}, expected "
            f"{want[at]:.8g} +- {allowed[at]:.2g}"
        )


def _check_shape(what: str, got: Floats, want: Floats) -> None:
    if got.shape != want.shape:
        raise Mismatch(f"{what}: shape {got.shape}, expected {want.shape}")
