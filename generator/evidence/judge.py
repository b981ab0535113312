"""Is what a kernel computed right? The classes of a verdict, and the error that decides it.

The error of an output `y` against its reference `r` is the greatest `|y - r| / (1 + |r|)`, the quantity that `Op.tolerance` bounds; a
value that is not finite counts as infinite. Faults (races, accesses out of bounds, ...) come from the machine that ran the kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from generator import facts
from generator.evidence.harness import Buffers, Case

OK: Final = facts.OK
NUMERIC: Final = facts.NUMERIC
FAULTS: Final = ("race", "bounds", "deadlock", "misaligned", "trap")
"""Stopped: shared-memory race, access out of bounds, threads that wait for ever, misaligned access, anything else."""
CLASSES: Final = (OK, NUMERIC, *FAULTS)
"""Of a verdict: right, a value off by more than the tolerance, or a fault."""


class FaultError(Exception):
    """A kernel did what a GPU would not survive, or what racecheck and memcheck report."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What running one source on all cases said."""

    kind: str
    """One of `CLASSES`."""
    error: float | None
    """Greatest error; None where no finite one was measured (a fault, or an output that is not finite)."""
    case: str = ""
    """The case that failed."""
    message: str = ""
    """What the machine said of a fault."""


def error_of(case: Case, buffers: Buffers) -> float:
    """Greatest error of the outputs in `buffers`; `inf` for values that are not finite or an input that was written."""
    if case.error is not None:
        error = float(case.error(buffers))
        return float("inf") if np.isnan(error) else error
    for name, before in case.buffers.items():
        if name not in case.expected and before.tobytes() != np.ascontiguousarray(buffers[name]).tobytes():
            return float("inf")
    return max(relative_error(buffers[name], want) for name, want in case.expected.items())


def relative_error(got: npt.NDArray[np.generic], want: npt.NDArray[np.float64]) -> float:
    """Greatest `|got - want| / (1 + |want|)`; `inf` where `got` is not finite. Raises ValueError if the shapes differ."""
    if got.shape != want.shape:
        raise ValueError(f"output has shape {got.shape}, its reference {want.shape}")
    values = got.astype(np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.max(np.abs(values - want) / (1.0 + np.abs(want)), initial=0.0))


def summary(errors: Mapping[str, float], tolerance: float) -> Verdict:
    """The verdict on a source that ran to the end: `errors` by case, in order. The first case past the tolerance decides."""
    for case, error in errors.items():
        if not error <= tolerance:
            return Verdict(kind=NUMERIC, error=error if np.isfinite(error) else None, case=case)
    return Verdict(kind=OK, error=max(errors.values()))
