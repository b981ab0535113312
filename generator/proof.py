"""How far the kernel sources were tried for real: counted from the evidence tables that lie beside them.

A table tells of each source for which boards it compiled, and of each legal point whether it computed the right result on a CPU.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from generator import kernels
from generator.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the tables of some ops say of sources without a planted fault."""

    ops: int
    """Ops that have a table."""
    sources: int
    compiled: int
    """Pairs of a source and a compile target that the compiler took."""
    points: int
    """Legal points, a variant with its params each."""
    right: int
    """Points whose results matched the reference."""
    tools: tuple[str, ...]
    """Compilers and their versions."""


def gather(ops: Iterable[Op]) -> Proof:
    """Count the tables of the given ops; ops without a table count nothing."""
    tables = [table for op in ops if (table := _table(op.name)) is not None]
    sources = [source for table in tables for source in table["sources"].values() if "bug=" not in source["of"]]
    checks = [point["check"][0] for table in tables for of, point in table["points"].items() if "bug=" not in of]
    targets = [outcome for source in sources for name, outcome in source.items() if name != "of"]
    tools = {(name, table["toolchain"][name]) for table in tables for name in ("nvcc", "triton") if name in table["toolchain"]}
    return Proof(
        ops=len(tables),
        sources=len(sources),
        compiled=sum(isinstance(outcome, dict) for outcome in targets),
        points=len(checks),
        right=checks.count("ok"),
        tools=tuple(f"{name} {version}" for name, version in sorted(tools)),
    )


def _table(op: str) -> Mapping[str, Any] | None:
    path = kernels.folder(op).joinpath("evidence.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def sentence(found: Proof, played: int) -> str:
    """What was compiled and run, for the card."""
    if found.ops == 0:
        return "This build was made from sources without evidence tables: nothing is claimed of how they compile."
    compiled = f"{found.sources:,} sources of {found.ops} of the {played} ops were compiled with {' and '.join(found.tools)}"
    right = f"{found.right:,} of {found.points:,} points were run on a CPU"
    return (
        f"{compiled}: {found.compiled:,} pairs of source and compile target without an error. {right}, CUDA on an emulator and Triton in "
        "its interpreter, and matched their reference."
    )
