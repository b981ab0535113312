"""What an op is: its work, its reference, and the variants a team may submit.

An op file states facts and formulas; it never prices anything. `Demand` is the bridge to the cost model: a variant says, for
arrays of candidates at once, what it asks of a GPU (blocks, bytes, flops, ...), and `generator.costmodel` turns that into time.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Shape = Mapping[str, int]
"""Axis sizes of one workload, in the order of the op's axes."""

Params = Mapping[str, int]
"""Tunables of one candidate; names from `schema.vocab.TUNABLES`."""

Column = npt.NDArray[np.int64]
"""One tunable of many candidates, `[candidates]`."""

Columns = Mapping[str, Column]
"""All tunables of many candidates of one variant, each `[candidates]`."""

Quantity = float | npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""A scalar, or one value per candidate."""

Unit = Literal["fp32", "dp4a", "mma_fp16", "mma_int8", "mma_fp8", "mma_mxfp8", "mma_mxfp4", "wgmma_fp16", "wgmma_int8", "wgmma_fp8"]
"""The pipe that does the arithmetic: CUDA cores, the integer dot product, or tensor cores through one instruction."""

Math = Literal["fp32", "fp16", "int8", "fp8"]
"""The arithmetic an op needs; the floor takes the fastest pipe of a GPU that can do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least any correct kernel must do: bytes to and from DRAM once each, and useful flops."""

    bytes: int
    flops: int
    math: Math


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What candidates ask of a GPU. Every field is a scalar or an array `[candidates]`.

    Totals are over the whole grid of the main kernel; `*_per_block` are for one block.
    """

    blocks: Quantity
    """Thread blocks launched."""
    threads: Quantity
    """Threads per block."""
    registers: Quantity
    """Registers per thread: as compiled, or estimated from what the kernel keeps live."""
    spilled: Quantity = 0
    """Registers per thread that the compiler keeps in local memory."""
    smem_per_block: Quantity = 0
    """Shared memory per block, static and dynamic, in bytes."""
    dram_bytes: Quantity
    """Bytes that always come from or go to DRAM, in whole 32-byte sectors."""
    reread_bytes: Quantity = 0
    """Bytes read again after their first use: served by L2 while `footprint_bytes` fits there, by DRAM beyond."""
    footprint_bytes: Quantity = 0
    """Data that must stay in L2 between first and last use for `reread_bytes` to hit."""
    inflight_per_block: Quantity
    """Bytes of global loads one block keeps outstanding (Little's law)."""
    flops: Quantity = 0
    """Flops issued on `unit`, tile waste included."""
    unit: Unit = "fp32"
    efficiency: Quantity = 1.0
    """Fraction of the unit's issue rate that this instruction mix can reach."""
    alu_ops: Quantity = 0
    """Further scalar operations on the CUDA cores: unpacking, conversion, address arithmetic of scattered access."""
    sfu_ops: Quantity = 0
    """exp, log, rsqrt, sin, cos: 16 per clock and SM."""
    lsu_ops: Quantity = 0
    """Warp-wide load, store, shuffle and shared-memory instructions: one per clock and SM."""
    leak: Quantity = 1.0
    """Part of the lesser resource times not hidden under the greatest: 0.05 warp-specialised, 0.15 multistage, 0.35 double
    buffer or many independent warps, 1 none."""
    launches: Quantity = 1
    """Kernels launched one after another."""
    chain_ns: Quantity = 0.0
    """Dependent latency of one block that no parallelism inside it hides, in ns; each wave pays it."""
    tail_ns: Quantity = 0.0
    """Dependent latency of the short kernels after the main one (a merge, a finisher), in ns; paid once."""
    turn_ns: Quantity = 0.0
    """Time of one block before its first load and after its last, in ns: on top of all else, each wave pays it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Why a source that compiles gives wrong results."""

    slip: str
    """What a reviewer says of it: `tail tile is not masked when T % BLOCK_N != 0`."""
    symptom: str
    """What a numeric check sees of it: `last partial tile differs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug(Flaw):
    """A one-line slip in a variant's source: `old` occurs exactly once and becomes `new`."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegal:
    """A point that breaks one `static_assert` of the source; `rule` is that assertion's message."""

    params: Params
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One algorithm for an op: one source file and the legal points of its tunables."""

    name: str
    idea: str
    """What it does, as a phrase of at most eight words: `one block per row, row kept in registers`."""
    points: tuple[Params, ...]
    """Legal points, about twelve, all distinct, legal for every shape of the op."""
    start: Params
    """The point an engineer would write first; one of `points`."""
    demand: Callable[[Shape, Columns], Demand]
    needs: frozenset[str] = frozenset()
    """Features of a GPU without which the source does not compile."""
    parent: str | None = None
    """The variant it grows from; None for a baseline."""
    illegal: tuple[Illegal, ...] = ()
    bugs: tuple[Bug, ...] = ()
    flaw: Flaw | None = None
    """A shortcut that the op does not allow, whatever the params: where it runs, its results are wrong."""

    def usable(self, features: frozenset[str]) -> bool:
        """Whether its legal points give right results on a GPU with these features."""
        return self.flaw is None and self.needs <= features

    def spread(self, count: int, turn: int = 0) -> tuple[Params, ...]:
        """The start point and up to `count` others at even distances among the points; `turn` shifts them."""
        others = [params for params in self.points if params != self.start]
        places = {(turn + k * len(others) // count) % len(others) for k in range(count)}
        return self.start, *(others[place] for place in sorted(places))

    @property
    def offered_to_all(self) -> tuple[Params, ...]:
        """The points that a team submits also where the arch lacks what the variant needs."""
        return self.spread(3)

    def columns(self) -> dict[str, Column]:
        """All points as one int64 array `[points]` per tunable."""
        return {k: np.array([p[k] for p in self.points], dtype=np.int64) for k in self.start}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One inference primitive."""

    name: str
    impl: Literal["cuda", "triton"]
    dtype: str
    axes: tuple[str, ...]
    summary: str
    """What it computes, in one or two sentences with a formula, layouts included: the prompt of a held-out task quotes it."""
    shapes: tuple[Shape, ...]
    """The three shapes of the release."""
    heldout: Shape
    """The shape that occurs nowhere in training."""
    work: Callable[[Shape], Work]
    constants: Callable[[Shape], Mapping[str, int]]
    """Compile-time constants of the problem block of the sources, by name in the source."""
    reference: Callable[..., npt.NDArray[np.float64]]
    tolerance: float
    """An output `y` passes against reference `r` when `|y - r| <= tolerance * (1 + |r|)` everywhere."""
    variants: tuple[Variant, ...]
    """Weakest first; the first is the baseline."""

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    def variant(self, name: str) -> Variant:
        """The variant called `name`. Raises KeyError with the names there are."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(f"op {self.name} has no variant {name!r}; it has {', '.join(v.name for v in self.variants)}")


def shapes(axes: tuple[str, ...], *sizes: tuple[int, ...]) -> tuple[Shape, ...]:
    """One shape per tuple of sizes, the sizes in the order of `axes`."""
    return tuple(dict(zip(axes, row, strict=True)) for row in sizes)


def grid(keep: Callable[[Params], bool] = lambda _: True, /, **domain: Iterable[int]) -> tuple[Params, ...]:
    """The product of the domains, first tunable slowest, less the points that `keep` refuses."""
    names = tuple(domain)
    points: Iterable[Params] = (dict(zip(names, row, strict=True)) for row in itertools.product(*domain.values()))
    return tuple(p for p in points if keep(p))


def ceil_div(a: Quantity, b: Quantity) -> npt.NDArray[np.int64]:
    """`ceil(a / b)` in exact integer arithmetic; scalars or arrays."""
    return -(-np.asarray(a, dtype=np.int64) // np.asarray(b, dtype=np.int64))
