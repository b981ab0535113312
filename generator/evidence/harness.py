"""What an op's `harness.py` says: inputs that expose faults, and how its kernels are launched.

A harness lies in the op's kernel folder and is loaded by `generator.evidence` alone. Two cases at least: one ragged (no size a multiple of
any tile) and one adversarial (what a slip of this op would get wrong: ties, large magnitudes, extreme exponents, empty splits).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Buffers = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A 2-D tensor map over a buffer, `box` elements (columns, rows) a load: a TMA argument."""

    buffer: str
    box: tuple[int, int]
    columns: int | None = None
    """Elements of a row of the map; None: the buffer's last axis."""
    swizzle: bool = True
    """Whether rows lie in shared memory in the 128-byte swizzle, or as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload small enough to run on a CPU, with its answer."""

    name: str
    shape: Mapping[str, int]
    buffers: Buffers
    """Inputs by name, and outputs filled with NaN (or an impossible integer)."""
    scalars: Mapping[str, int | float]
    expected: Mapping[str, npt.NDArray[np.float64]]
    """Output buffer -> what the op's reference gives."""
    error: Callable[[Buffers], float] | None = None
    """Greatest error of the outputs where a plain comparison will not do (samplers): `inf` for garbage. None: relative error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel of a CUDA variant. Arguments are names (of buffers, scratch, scalars or axes), numbers, or tiles."""

    kernel: str
    grid: tuple[int, int, int]
    block: int
    args: tuple[str | int | float | Tile, ...]
    smem: int = 0
    """Dynamic shared memory in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The launches of one candidate on one case, in order, and the scratch buffers they need."""

    launches: tuple[Launch, ...]
    scratch: Buffers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One Triton kernel to compile ahead of time: its name, argument types, constants and launch options."""

    kernel: str
    signature: Mapping[str, str]
    """Argument -> `*fp16`, `*i32`, `i32`, `fp32` or `constexpr`, in order."""
    constants: Mapping[str, int]
    warps: int
    stages: int = 3
