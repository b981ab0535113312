"""What the check derives once and looks up often: what a source text is, and what a task knows of each candidate.

Sources repeat by the thousand, so each distinct text is read back once and remembered by its hash. Params are compared as packed bytes,
which an Arrow column gives for all messages at once.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from generator import environment, sources
from generator import facts as facts_
from generator.ops.base import Bug, Params
from generator.release import held_out_shapes, held_out_triples, training_tasks
from generator.task import Landscape, Point, Task, landscape
from schema.arrow import PARAMS, SHAPE

REMEMBERED: Final = 100_000
"""Source texts remembered: ten times what all ops have, so honest builds never forget and hostile ones cannot fill memory."""
LONGEST_TEXT: Final = 200_000
LONGEST_LINE: Final = 500
"""Characters; beyond either a text is no source of ours and is not parsed."""
NORMAL_REACH: Final = 2.0 * 3.0**0.5
"""Bound of `Dice.normal`, in sigmas."""
DISTURBED: Final = 1.5
"""Bound of the factor of a disturbed bench."""
ROUNDING: Final = 1e-6
"""Relative width of a stored real: seven significant digits."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a text says it is, and proves to be when rendered again."""

    op: str = ""
    variant: str = ""
    params: bytes = b""
    constants: Mapping[str, int] = field(default_factory=dict)
    bug: Bug | None = None
    digest: str = ""
    """By which the evidence table knows it."""
    fault: str = ""
    """Why it is no source of ours; empty if it is one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate of a task and the times it can be measured at, in ms."""

    point: Point
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Facts:
    """A task as rows refer to it."""

    task: Task
    land: Landscape
    constants: Mapping[str, int]
    columns: Mapping[str, object]
    """What a row of this task must say in its own columns."""
    shape: bytes
    entries: Mapping[tuple[str, bytes], Entry]
    """By variant and packed params; every point an agent could submit."""


class Library:
    """Distinct source texts, read back."""

    def __init__(self) -> None:
        self._known: dict[bytes, Source] = {}

    def source(self, text: str) -> Source:
        digest = hashlib.sha256(text.encode()).digest()
        found = self._known.get(digest)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[digest] = read_back(text)
        return found


def read_back(text: str) -> Source:
    """Op, variant, params and bug of a text: what renders to exactly it. Any other text is a Source with a fault."""
    if len(text) > LONGEST_TEXT or max(map(len, text.split("\n"))) > LONGEST_LINE:
        return Source(fault="too long for a source")
    try:
        parsed = sources.parse(text)
        return Source(parsed.op, parsed.variant, pack(parsed.params), parsed.constants, parsed.bug, facts_.digest(text))
    except (ValueError, KeyError, struct.error) as error:
        return Source(fault=f"not a source: {error}")


@cache
def known_tasks() -> Mapping[str, Task]:
    """Every task there is, by id: those of training first."""
    return {task.task_id: task for task in (*training_tasks(), *held_out_triples(), *held_out_shapes())}


def facts(task_id: str) -> Facts | None:
    """What is known of a task; None if there is no such task."""
    task = known_tasks().get(task_id)
    return None if task is None else _facts(task.task_id)


@cache
def _facts(task_id: str) -> Facts:
    task = known_tasks()[task_id]
    land = landscape(task)
    points = [
        land.baseline,
        *land.lacking,
        *land.flawed,
        *(p for group in (land.legal, land.faulty) for some in group.values() for p in some),
    ]
    op, gpu = task.op, task.gpu
    return Facts(
        task=task,
        land=land,
        constants=op.constants(task.shape),
        columns={"op": op.name, "impl": op.impl, "gpu": gpu.name, "arch": gpu.arch, "dtype": op.dtype},
        shape=pack(task.shape, SHAPE),
        entries={(p.variant.name, pack(p.params)): Entry(p, *measurable(land, p.ms)) for p in points},
    )


def measurable(land: Landscape, ms: float) -> tuple[float, float]:
    """Least and greatest time, in ms, that `Bench.measure` can give a noiseless time; nothing if it does not run."""
    if not np.isfinite(ms):
        return np.inf, -np.inf
    session = environment.SESSION_SIGMA[land.baseline.ms > environment.LONG_MS] * NORMAL_REACH
    run = environment.RUN_SIGMA[ms > environment.SHORT_MS] * NORMAL_REACH
    least = land.floor_ms + environment.HEADROOM * (ms - land.floor_ms)
    low = max(ms * (1.0 - session) * (1.0 - run), least) * (1.0 - ROUNDING)
    high = max(ms * (1.0 + session) * (1.0 + run) * DISTURBED, least) * (1.0 + ROUNDING)
    return max(low, land.floor_ms), high


def pack(values: Params, kind: pa.StructType = PARAMS) -> bytes:
    """A struct of optional integers as bytes: which fields there are, then each. Raises KeyError or struct.error for what does not fit."""
    places = _places(kind)
    row = [0] * (len(places) + 1)
    for name, value in values.items():
        at = places[name]
        row[0] |= 1 << at
        row[at + 1] = value
    return struct.pack(f"={len(row)}q", *row)


@cache
def _places(kind: pa.StructType) -> Mapping[str, int]:
    return {item.name: at for at, item in enumerate(kind)}


def pack_column(structs: pa.StructArray) -> list[bytes]:
    """`pack` of each struct of a column without nulls."""
    children = structs.flatten()
    rows = np.zeros((len(structs), len(children) + 1), dtype=np.int64)
    for at, child in enumerate(children):
        valid = pc.is_valid(child).to_numpy(zero_copy_only=False)
        rows[:, 0] |= valid.astype(np.int64) << at
        rows[:, at + 1] = pc.fill_null(child, 0).to_numpy(zero_copy_only=False)
    packed: list[bytes] = rows.view(f"V{rows.shape[1] * 8}").ravel().tolist() if len(rows) else []
    return packed


def unpack_text(packed: bytes | None, kind: pa.StructType = PARAMS) -> str | None:
    """Packed fields as text: `block_n=64 splits=8`."""
    if packed is None:
        return None
    row = np.frombuffer(packed, dtype=np.int64).tolist()
    return " ".join(f"{item.name}={row[at + 1]}" for at, item in enumerate(kind) if row[0] >> at & 1)
