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
- `profile`, start points of CUDA variants only: per launch on the op's first case `[kernel, sectors per request of global memory, passes
  over shared memory for each that bank conflicts leave]`, of g++'s accesses: a pattern, not a count of instructions.

`sources`, by the first 16 hex digits of the sha256 of the text.
- `of`: its label, `variant CONSTANT=... param=... bug=...`.
- per arch, kernel -> `[registers per thread, shared memory in bytes, spill stores in bytes]` (shared memory is static for CUDA, all of it
  for Triton); or, if it did not compile, the first error line as a string. An illegal point has one arch: its diagnostic holds for all.
  Not every text is compiled for every arch, see `catalogue`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from generator import kernels
from generator.facts import Check, PointRecord, SourceRecord, Table, loads

ERROR_SLACK: Final = 0.02
"""Errors differ by less than this part between libraries of mathematics (glibc versions): no difference."""
PROVENANCE: Final = ("gxx", "emulator", "python")
"""Tools whose version is told but decides no fact."""


def dumps(table: Table) -> str:
    """The text of a table file."""
    points: dict[str, dict[str, object]] = {}
    for of, record in sorted(table.points.items()):
        optional = {"launch": record.launch, "profile": record.profile}
        points[of] = {"check": _trimmed(record.check)} | {name: value for name, value in optional.items() if value}
    ordered = sorted(table.sources.items(), key=lambda item: (item[1].of, item[0]))
    sources: dict[str, dict[str, object]] = {digest: {"of": record.of, **_by_arch(record)} for digest, record in ordered}
    return (
        f'{{\n"op": {json.dumps(table.op)},\n"toolchain": {json.dumps(table.toolchain, sort_keys=True)},\n'
        f'"points": {_lines(points)},\n"sources": {_lines(sources)}\n}}\n'
    )


def read(path: Path) -> Table:
    """The table at `path`. Raises DataError with the command that makes it."""
    if not path.exists():
        raise kernels.missing(path.parent.name, path)
    return loads(path.read_text(encoding="utf-8"))


def write(path: Path, table: Table) -> None:
    """Write a table, atomically."""
    part = path.with_suffix(".part")
    part.write_text(dumps(table), encoding="utf-8")
    part.replace(path)


def differences(old: Table, new: Table) -> list[str]:
    """One line per record that differs: what it is, what the file says, what was found."""
    out = []
    same_compiler = old.toolchain.get("gxx") == new.toolchain.get("gxx")

    def unlike(was: PointRecord, now: PointRecord) -> bool:
        """Profiles of one g++ are alike; another may order accesses otherwise."""
        return same_compiler and was.profile != now.profile

    was_made, is_made = ({t: v for t, v in made.toolchain.items() if t not in PROVENANCE} for made in (old, new))
    if was_made != is_made:
        out.append(f"{new.op}: toolchain: recorded {was_made}, found {is_made}")
    for of in sorted(old.points.keys() | new.points.keys()):
        was, now = old.points.get(of), new.points.get(of)
        if was is None or now is None or was.launch != now.launch or not _same_check(was.check, now.check) or unlike(was, now):
            out.append(f"{new.op}: {of}: recorded {_show(was)}, found {_show(now)}")
    for digest in sorted(old.sources.keys() | new.sources.keys()):
        before, after = old.sources.get(digest), new.sources.get(digest)
        if before != after:
            name = (after or before or SourceRecord(of="?")).of
            out.append(f"{new.op}: {digest} {name}: recorded {_show(before)}, found {_show(after)}")
    return out


def _trimmed(check: Check) -> list[object]:
    """A check as a list, without the empty words at its end."""
    return [check.kind, check.error, *(word for word in (check.case, check.message) if word)]


def _by_arch(record: SourceRecord) -> dict[str, object]:
    return {arch: record.archs[arch] for arch in sorted(record.archs)}


def _same_check(a: Check, b: Check) -> bool:
    if (a.kind, a.case, a.message) != (b.kind, b.case, b.message) or (a.error is None) != (b.error is None):
        return False
    return a.error is None or b.error is None or abs(a.error - b.error) <= ERROR_SLACK * max(abs(a.error), abs(b.error))


def _show(record: PointRecord | SourceRecord | None) -> str:
    if record is None:
        return "nothing"
    return f"check {_trimmed(record.check)} launch {record.launch}" if isinstance(record, PointRecord) else str(record.archs)


def _lines(records: Mapping[str, Mapping[str, object]]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items()) + "\n}"
