"""The evidence of one op, `evidence.json` beside its kernels: what compilers and checks said of every source.

One JSON object, one record a line, sorted, so that a change of one point is a change of its lines:

    {
    "op": "rmsnorm",
    "toolchain": {"nvcc": "13.0.88", "gxx": "12.2.0", "emulator": "0f1e2d3c4b5a", ...},
    "points": {
    "vec threads=256 vec=8 min_blocks=1": {"check": ["ok", 0.000318], "launch": [[["rmsnorm", 256, 0]]]},
    "vec threads=256 vec=8 min_blocks=1 bug=sum_not_shared": {"check": ["numeric", 0.0206, "ragged"]},
    "vec threads=512 vec=8 min_blocks=1 bug=no_barrier": {"check": ["race", null, "ragged", "block (0,0,0) thread 32: ..."]}
    },
    "sources": {
    "0123456789abcdef": {"of": "vec COLS=4096 threads=256 vec=8 min_blocks=1", "sm_80": {"rmsnorm": [30, 32, 0]}, ...},
    "89abcdef01234567": {"of": "vec COLS=4096 threads=256 vec=3 min_blocks=1", "sm_90a": "vec.cu(27): error: static assertion ..."}
    }
    }

`points`, by variant, params (order of the source) and bug; constants of the problem do not enter.
- `check`: class (see `judge.CLASSES`), greatest error `|y - r| / (1 + |r|)` (null where no finite one was measured); if it failed, the
  case and, for a fault, the message. A bug that is `ok` at a point does not show there: such a candidate must not be called wrong.
- `launch`, honest points only: per shape (release shapes, then the held-out one; a single entry if all are alike) the launches in order,
  each `[kernel, threads per block, dynamic shared memory in bytes]`. Triton has its shared memory in `sources`.

`sources`, by the first 16 hex digits of the sha256 of the text.
- `of`: its label, `variant CONSTANT=... param=... bug=...`.
- per arch, kernel -> `[registers per thread, shared memory in bytes, spill stores in bytes]` (shared memory is static for CUDA, all of it
  for Triton); or, if it did not compile, the first error line as a string. An illegal point has one arch: its diagnostic holds for all.
  A bug is compiled at some (constants, arch) pairs only, see `catalogue`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

Facts = tuple[int, int, int]
"""Registers, shared memory, spill stores."""
Check = tuple[str, float | None] | tuple[str, float | None, str] | tuple[str, float | None, str, str]
Launches = tuple[tuple[tuple[str, int, int], ...], ...]
"""Per shape, per launch: kernel, threads, dynamic shared memory."""

FILE: Final = "evidence.json"
ERROR_SLACK: Final = 0.02
"""Errors differ by less than this part between libraries of mathematics (glibc versions): no difference."""
PROVENANCE: Final = ("gxx", "emulator", "python")
"""Tools whose version is told but decides no fact."""


@dataclass(slots=True, kw_only=True)
class PointRecord:
    """What running a point said."""

    check: Check
    launch: Launches = ()


@dataclass(slots=True, kw_only=True)
class SourceRecord:
    """What compiling a text said, per arch."""

    of: str
    archs: dict[str, dict[str, Facts] | str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Table:
    """All evidence of one op."""

    op: str
    toolchain: dict[str, str]
    points: dict[str, PointRecord] = field(default_factory=dict)
    sources: dict[str, SourceRecord] = field(default_factory=dict)


def dumps(table: Table) -> str:
    """The text of a table file."""
    points: dict[str, dict[str, object]] = {}
    for of, record in sorted(table.points.items()):
        points[of] = {"check": record.check} | ({"launch": record.launch} if record.launch else {})
    ordered = sorted(table.sources.items(), key=lambda item: (item[1].of, item[0]))
    sources: dict[str, dict[str, object]] = {digest: {"of": record.of, **_by_arch(record)} for digest, record in ordered}
    return (
        f'{{\n"op": {json.dumps(table.op)},\n"toolchain": {json.dumps(table.toolchain, sort_keys=True)},\n'
        f'"points": {_lines(points)},\n"sources": {_lines(sources)}\n}}\n'
    )


def loads(text: str) -> Table:
    """The table of a file's text."""
    raw = json.loads(text)
    table = Table(op=raw["op"], toolchain=raw["toolchain"])
    for of, point in raw["points"].items():
        launch = tuple(tuple((k, t, s) for k, t, s in one) for one in point.get("launch", ()))
        table.points[of] = PointRecord(check=tuple(point["check"]), launch=launch)
    for digest, source in raw["sources"].items():
        archs = {a: v if isinstance(v, str) else {k: tuple(f) for k, f in v.items()} for a, v in source.items() if a != "of"}
        table.sources[digest] = SourceRecord(of=source["of"], archs=archs)
    return table


def read(path: Path) -> Table:
    """The table at `path`. Raises FileNotFoundError with the command that makes it."""
    if not path.exists():
        raise FileNotFoundError(f"no evidence at {path}: python -m generator evidence build --op {path.parent.name}")
    return loads(path.read_text(encoding="utf-8"))


def write(path: Path, table: Table) -> None:
    """Write a table, atomically."""
    part = path.with_suffix(".part")
    part.write_text(dumps(table), encoding="utf-8")
    part.replace(path)


def differences(old: Table, new: Table) -> list[str]:
    """One line per record that differs: what it is, what the file says, what was found."""
    out = []
    was_made, is_made = ({t: v for t, v in made.toolchain.items() if t not in PROVENANCE} for made in (old, new))
    if was_made != is_made:
        out.append(f"{new.op}: toolchain: recorded {was_made}, found {is_made}")
    for of in sorted(old.points.keys() | new.points.keys()):
        was, now = old.points.get(of), new.points.get(of)
        if was is None or now is None or was.launch != now.launch or not _same_check(was.check, now.check):
            out.append(f"{new.op}: {of}: recorded {_show(was)}, found {_show(now)}")
    for digest in sorted(old.sources.keys() | new.sources.keys()):
        before, after = old.sources.get(digest), new.sources.get(digest)
        if before != after:
            name = (after or before or SourceRecord(of="?")).of
            out.append(f"{new.op}: {digest} {name}: recorded {_show(before)}, found {_show(after)}")
    return out


def _by_arch(record: SourceRecord) -> dict[str, object]:
    return {arch: record.archs[arch] for arch in sorted(record.archs)}


def _same_check(a: Check, b: Check) -> bool:
    if a[0] != b[0] or a[2:] != b[2:] or (a[1] is None) != (b[1] is None):
        return False
    return a[1] is None or b[1] is None or abs(a[1] - b[1]) <= ERROR_SLACK * max(abs(a[1]), abs(b[1]))


def _show(record: PointRecord | SourceRecord | None) -> str:
    if record is None:
        return "nothing"
    return f"check {record.check} launch {record.launch}" if isinstance(record, PointRecord) else str(record.archs)


def _lines(records: Mapping[str, Mapping[str, object]]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items()) + "\n}"
