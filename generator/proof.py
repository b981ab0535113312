"""How far the kernel sources were tried for real: counted from the evidence tables that lie beside them.

A table tells of each source for which boards it compiled, and of each point whether it computed the right result on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from generator import facts
from generator.facts import Table
from generator.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the tables of some ops say."""

    ops: int
    sources: int
    """Texts without a planted fault that compile for some target."""
    compiled: int
    """Pairs of such a source and a target it compiles for."""
    right: int
    """Legal points, a variant with its params each, whose results matched the reference."""
    bugs: int
    """Faults that a check caught at one point or more."""
    tools: tuple[str, ...]
    """Compilers and their versions."""


def gather(ops: Sequence[Op]) -> Proof:
    """Count the tables of the given ops."""
    tables = [facts.table(op.name) for op in ops]
    records = [record for table in tables for record in table.sources.values() if "bug=" not in record.of]
    targets = [sum(isinstance(outcome, dict) for outcome in record.archs.values()) for record in records]
    points = [(table.op, of, point.check.kind) for table in tables for of, point in table.points.items()]
    return Proof(
        ops=len(tables),
        sources=sum(number > 0 for number in targets),
        compiled=sum(targets),
        right=sum(kind == facts.OK for _, of, kind in points if "bug=" not in of),
        bugs=len({(op, of.split()[0], of.split("bug=")[1]) for op, of, kind in points if "bug=" in of and kind != facts.OK}),
        tools=tuple(f"{name} {version}" for name, version in sorted(_compilers(tables))),
    )


def sentence(found: Proof) -> str:
    """What was compiled and run, for the card."""
    return (
        f"{found.sources:,} sources of {found.ops} ops were compiled with {' and '.join(found.tools)}, {found.compiled:,} pairs of source "
        f"and compile target. {found.right:,} points were run on a CPU, CUDA on an emulator that reports races and stray accesses and "
        f"Triton in its interpreter, and matched their reference; each of the {found.bugs} known faults was caught the same way. The "
        "registers, shared memory, spills, diagnostics and errors that a result quotes are what these tools said of its source."
    )


def _compilers(tables: Sequence[Table]) -> set[tuple[str, str]]:
    return {(name, table.toolchain[name]) for table in tables for name in ("nvcc", "triton") if name in table.toolchain}
