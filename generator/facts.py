"""What compilers and checks said of a candidate: the evidence tables as the core asks them, without a price or a word of text.

A table holds per source text what nvcc or Triton made of it for each arch, and per point how far its results were from the reference; its
file is told in `generator.evidence.table`. Shapes that the tables do not cover have no facts: a variant's own estimates stand.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np

from generator import kernels, sources
from generator.ops.base import Bug, Demand, Op, Params, Shape, Variant

OK: Final = "ok"
NUMERIC: Final = "numeric"
"""Classes of a check: it matched the reference, or a value was off; any other is a fault of memory or synchronisation."""
WORD: Final = 4
"""Bytes of a register."""

Facts = tuple[int, int, int]
"""Registers, shared memory, spill stores."""
Profile = tuple[str, float, float]
"""Kernel, 32-byte sectors per warp-wide access of global memory, passes of shared memory over those without bank conflicts."""
Launches = tuple[tuple[str, int, int], ...]
"""Per launch: kernel, threads, dynamic shared memory."""


@dataclass(frozen=True, slots=True)
class Check:
    """What running a point on the cases of its op said."""

    kind: str
    """`OK`, `NUMERIC`, or the name of a fault."""
    error: float | None
    """Greatest `|y - r| / (1 + |r|)`; None where no finite one was measured."""
    case: str = ""
    """The case that failed."""
    message: str = ""
    """What the machine said of a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """What running a point said, and how an honest one is launched."""

    check: Check
    launch: tuple[Launches, ...] = ()
    """Per shape (release shapes, then the held-out one), or once if all are alike."""
    profile: tuple[Profile, ...] = ()
    """Per launch of a CUDA variant's start point on the first case of its op."""


@dataclass(slots=True, kw_only=True)
class SourceRecord:
    """What compiling a text said, per arch: facts by kernel, or the first error line."""

    of: str
    archs: dict[str, dict[str, Facts] | str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Table:
    """All evidence of one op: points by label, sources by digest."""

    op: str
    toolchain: dict[str, str]
    points: dict[str, PointRecord] = field(default_factory=dict)
    sources: dict[str, SourceRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made of one kernel of a source."""

    kernel: str
    threads: int
    """Per block, as launched."""
    registers: int
    """Per thread."""
    smem: int
    """Shared memory per block, static and dynamic, in bytes."""
    spills: int
    """Bytes of registers kept in local memory, per thread."""


def digest(text: str) -> str:
    """First 16 hex digits of the sha256 of a source: its key in a table."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def loads(text: str) -> Table:
    """The table of a file's text."""
    raw = json.loads(text)
    table = Table(op=raw["op"], toolchain=raw["toolchain"])
    for of, point in raw["points"].items():
        launch = tuple(tuple((k, t, s) for k, t, s in one) for one in point.get("launch", ()))
        profile = tuple((k, sectors, conflicts) for k, sectors, conflicts in point.get("profile", ()))
        table.points[of] = PointRecord(check=Check(*point["check"]), launch=launch, profile=profile)
    for digest, source in raw["sources"].items():
        archs = {a: v if isinstance(v, str) else {k: tuple(f) for k, f in v.items()} for a, v in source.items() if a != "of"}
        table.sources[digest] = SourceRecord(of=source["of"], archs=archs)
    return table


@cache
def table(op: str) -> Table:
    """The evidence of an op. Raises DataError, with the command that makes it, if there is none."""
    return loads(kernels.evidence(op))


def check(op: Op, variant: Variant, params: Params, bug: Bug | None = None) -> Check:
    """How a point's results compared with the reference. Raises KeyError if the table is older than the point."""
    return _point(op, sources.label(variant.name, params, bug=bug.name if bug else "")).check


def caught(op: Op, variant: Variant, params: Params) -> tuple[Bug, ...]:
    """The bugs of a variant that were run at a point and did not pass."""
    known = table(op.name).points
    labels = {bug.name: sources.label(variant.name, params, bug=bug.name) for bug in variant.bugs}
    return tuple(bug for bug in variant.bugs if labels[bug.name] in known and known[labels[bug.name]].check.kind != OK)


def profile(op: Op, variant: Variant) -> tuple[Profile, ...]:
    """How the start point of a CUDA variant uses memory, per launch; nothing for Triton."""
    return _point(op, sources.label(variant.name, variant.start)).profile


def diagnostic(op: Op, variant: Variant, params: Params, shape: Shape, arch: str) -> str:
    """The compiler's first error line, empty if there was none. An illegal point's holds for all archs."""
    found = _outcome(op, variant, params, shape, arch)
    return found if isinstance(found, str) else ""


def compiled(op: Op, variant: Variant, params: Params, shape: Shape, arch: str) -> tuple[Compiled, ...]:
    """The kernels of an honest source on a shape and arch, in order of launch. Raises KeyError if the table lacks them."""
    found = _outcome(op, variant, params, shape, arch)
    if isinstance(found, str):
        raise KeyError(f"{op.name}: {variant.name} {dict(params)} does not compile for {arch}: {found}")
    return tuple(
        Compiled(name, threads, found[name][0], found[name][1] + dynamic, found[name][2])
        for name, threads, dynamic in launches(op, variant, params, shape)
    )


def launches(op: Op, variant: Variant, params: Params, shape: Shape) -> Launches:
    """The launches of an honest point on a shape, in order."""
    by_shape = _point(op, sources.label(variant.name, params)).launch
    return by_shape[(*op.shapes, op.heldout).index(shape) if len(by_shape) > 1 else 0]


def outcome(record: SourceRecord, arch: str) -> dict[str, Facts] | str | None:
    """What a compiler made of a text for an arch; a broken rule, told for one arch, holds for all. None where nothing was asked."""
    if arch in record.archs:
        return record.archs[arch]
    return next((said for said in record.archs.values() if isinstance(said, str) and broken_rule(said)), None)


def broken_rule(diagnostic: str) -> bool:
    """Whether a compiler's words are those of a static assertion, the front end's on every arch."""
    return "static assertion failed" in diagnostic or "CompileTimeAssertionFailure" in diagnostic


def main(built: Sequence[Compiled], threads: int) -> Compiled:
    """The kernel that a candidate's demand describes: of those with its size of block, the one with most registers."""
    return max([k for k in built if k.threads == threads] or built, key=lambda k: k.registers)


def demand(op: Op, variant: Variant, shape: Shape, arch: str, points: Sequence[Params]) -> Demand:
    """What candidates ask of a GPU, with registers, spills and shared memory as compiled where the table covers the shape."""
    columns = {name: np.array([p[name] for p in points], dtype=np.int64) for name in variant.start}
    estimate = variant.demand(shape, columns)
    if shape not in (*op.shapes, op.heldout):
        return estimate
    return as_compiled(estimate, mains(op, variant, shape, arch, points, estimate))


def mains(op: Op, variant: Variant, shape: Shape, arch: str, points: Sequence[Params], estimate: Demand) -> list[Compiled]:
    """The kernel of each point that its estimated demand describes."""
    sizes = np.broadcast_to(np.asarray(estimate.threads), len(points)).tolist()
    return [main(compiled(op, variant, params, shape, arch), threads) for params, threads in zip(points, sizes, strict=True)]


def as_compiled(estimate: Demand, built: Sequence[Compiled]) -> Demand:
    """A demand with the registers, spills and shared memory of compiled kernels."""
    return dataclasses.replace(
        estimate,
        registers=np.array([b.registers for b in built], dtype=np.int64),
        spilled=np.array([b.spills // WORD for b in built], dtype=np.int64),
        smem_per_block=np.array([b.smem for b in built], dtype=np.int64),
    )


def _point(op: Op, label: str) -> PointRecord:
    found = table(op.name).points.get(label)
    if found is None:
        raise KeyError(_lacks(op, label))
    return found


def _outcome(op: Op, variant: Variant, params: Params, shape: Shape, arch: str) -> dict[str, Facts] | str:
    """Facts by kernel, or a diagnostic."""
    template = kernels.template(op.name, variant.name, op.impl)
    label = sources.label(variant.name, params, sources.constants_of(template, op.constants(shape)))
    record = _honest(op.name).get(label)
    if record is None:
        raise KeyError(_lacks(op, label))
    found = outcome(record, arch)
    if found is None:
        raise KeyError(f"the evidence of {op.name} does not tell what {label} is on {arch}")
    return found


@cache
def _honest(op: str) -> Mapping[str, SourceRecord]:
    """The compiled texts of an op without a bug, by label."""
    return {record.of: record for record in table(op).sources.values() if "bug=" not in record.of}


def _lacks(op: Op, label: str) -> str:
    return f"the evidence of {op.name} lacks {label}: python -m generator evidence build --op {op.name}"
