"""Makes the evidence tables, and makes them again to see whether they still hold.

`build` writes a table per op and tells what contradicts its claims; it keeps compiles and libraries in a cache folder, so that a second
build costs only what changed. `verify` does all of it cold, writes nothing, and tells every difference from the tables.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from generator import kernels
from generator.evidence import catalogue, emulate, judge, nvcc, table, triton_tools, work
from generator.evidence.catalogue import Point, Source
from generator.facts import Check, PointRecord, SourceRecord, Table
from generator.ops.base import Op

WORKERS: Final = 2
TOGETHER: Final = 10
"""Sources that share a call of nvcc."""
Report = Callable[[str], None]
J = TypeVar("J")
K = TypeVar("K")
R = TypeVar("R")


def build(ops: Sequence[Op], out: Path | None = None, *, workers: int = WORKERS, report: Report = print) -> int:
    """Write `<out>/<op>/evidence.json` for each op (`out`: the kernels folder). Returns the number of problems, all reported.

    Raises nvcc.ToolchainError, before any work, if a tool is missing.
    """
    _require_tools(ops)
    problems = 0
    with _pool(workers) as pool:
        for op in ops:
            made, wrong = collect(op, pool, _cache_folder(), report)
            path = table_path(op.name, out)
            path.parent.mkdir(parents=True, exist_ok=True)
            table.write(path, made)
            problems += _tell(wrong, report)
    report(f"{problems} problems")
    return problems


def verify(ops: Sequence[Op], out: Path | None = None, *, workers: int = WORKERS, report: Report = print) -> int:
    """Redo the tables of `ops` from nothing. Returns the number of differences from the files, and of problems, all reported.

    Raises nvcc.ToolchainError, before any work, if a tool is missing, and DataError if a table is.
    """
    _require_tools(ops)
    start, wrong, different = time.monotonic(), 0, 0
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="evidence-") as cold, _triton_cache(cold), _pool(workers) as pool:
        for op in ops:
            recorded = table.read(table_path(op.name, out))
            made, problems = collect(op, pool, Path(cold), report)
            wrong += _tell(problems, report)
            different += _tell(table.differences(recorded, made), report)
            totals += counts(op, made)
    report(f"all: {_said(totals)}")
    report(f"{different} differences, {wrong} problems, {time.monotonic() - start:.0f} s")
    return different + wrong


def table_path(op: str, out: Path | None = None) -> Path:
    """Where the table of an op lies."""
    root = Path(str(resources.files("generator.kernels"))) if out is None else out
    return root / op / kernels.EVIDENCE


def collect(op: Op, pool: Executor, folder: Path, report: Report = print) -> tuple[Table, list[str]]:
    """The table of an op, made in `pool`, and what contradicts the op's claims."""
    start = time.monotonic()
    made = Table(op=op.name, toolchain=_toolchain(op))
    problems = [f"{op.name}: {p}" for p in _shortcomings(op)]

    runs = {point.of: work.RunJob(op=op, point=point, folder=folder) for variant in op.variants for point in catalogue.points(variant)}
    for of, ran in _all(pool, work.run_one, runs, f"{op.name}: running", report).items():
        made.points[of] = PointRecord(check=ran.check, launch=ran.launch, profile=ran.profile)
        problems += [f"{op.name}: {p}" for p in (*_wrong_run(runs[of].point, ran.check), *ran.problems)]

    texts = [*catalogue.honest_and_illegal(op), *catalogue.buggy(op)]
    jobs = dict(enumerate(_groups(op, texts, folder)))
    for n, outcomes in _all(pool, work.compile_all, jobs, f"{op.name}: compiling, group", report).items():
        for source, found in zip(jobs[n].sources, outcomes, strict=True):
            arch = jobs[n].arch
            made.sources.setdefault(source.digest, SourceRecord(of=source.of)).archs[arch] = work.facts(found)
            problems += [f"{op.name}: {source.of} on {arch}: {p}" for p in _wrong_compile(source, arch, found)]
    problems += _entries_differ(op, texts)
    report(f"{op.name}: {_said(counts(op, made))}, {len(problems)} problems, {time.monotonic() - start:.0f} s")
    return made, problems


def _groups(op: Op, texts: Sequence[Source], folder: Path) -> Iterator[work.CompileJob]:
    """The texts of a variant for an arch, a few at a time; what should be refused by itself, for its message."""
    alike: dict[tuple[str, str], list[Source]] = {}
    for source in texts:
        variant = source.of.split()[0]
        for arch in source.archs:
            if source.rule or arch in source.unsupported:
                yield work.CompileJob(op=op, variant=variant, sources=(source,), arch=arch, folder=folder)
            else:
                alike.setdefault((variant, arch), []).append(source)
    for (variant, arch), some in alike.items():
        for at in range(0, len(some), TOGETHER):
            yield work.CompileJob(op=op, variant=variant, sources=tuple(some[at : at + TOGETHER]), arch=arch, folder=folder)


def counts(op: Op, made: Table) -> "Counter[str]":
    """What a table holds, by kind.

    `flawed` are points of shortcuts that are wrong by design; `silent` those at which a slip changes nothing: it is never submitted there.
    """
    honest = [record for of, record in made.points.items() if " bug=" not in of]
    slips = {of: record.check.kind != judge.OK for of, record in made.points.items() if " bug=" in of}
    return Counter(
        {
            "variants": len(op.variants),
            "points": len(honest),
            "matching": sum(record.check.kind == judge.OK for record in honest),
            "flawed": sum(len(variant.points) for variant in op.variants if variant.flaw),
            "bugs": sum(len(variant.bugs) for variant in op.variants),
            "caught": len({(of.split()[0], of.partition(" bug=")[2]) for of, shows in slips.items() if shows}),
            "bug points": len(slips),
            "silent": len(slips) - sum(slips.values()),
            "runs": len(made.points),
            "texts": len(made.sources),
            "compiles": sum(len(record.archs) for record in made.sources.values()),
            "refused": sum(isinstance(found, str) for record in made.sources.values() for found in record.archs.values()),
        }
    )


def missing_tools(op: Op) -> list[str]:
    """Why the evidence of an op cannot be made here; empty if it can."""
    needed = (nvcc.available, emulate.available) if op.impl == "cuda" else (triton_tools.available,)
    return [problem for available in needed if (problem := available())]


def _require_tools(ops: Sequence[Op]) -> None:
    """Raise nvcc.ToolchainError if the evidence of some op cannot be made here."""
    missing = dict.fromkeys(problem for op in ops for problem in missing_tools(op))
    if missing:
        raise nvcc.ToolchainError("; ".join(missing))


def _wrong_run(point: Point, check: Check) -> list[str]:
    if point.variant.flaw is not None:
        return [] if check.kind == judge.NUMERIC else [f"{point.of}: its flaw does not show: {check}"]
    if point.bug is None:
        return [] if check.kind == judge.OK else [f"{point.of}: an honest point fails: {check}"]
    if check.kind == judge.OK and point.params == point.variant.start:
        return [f"{point.of}: the bug does not show at the start point: error {check.error}"]
    return []


def _wrong_compile(source: Source, arch: str, found: nvcc.Compiled) -> list[str]:
    if source.rule:
        return [] if source.rule in found.diagnostic else [f"does not break {source.rule!r}: {found.diagnostic or 'it compiles'}"]
    if arch in source.unsupported:
        return [] if found.diagnostic else ["compiles, though the arch lacks what the variant needs"]
    return [f"does not compile: {found.diagnostic}"] * bool(found.diagnostic) + [f"warns: {warning}" for warning in found.warnings[:1]]


def _shortcomings(op: Op) -> list[str]:
    """What the catalogue of an op lacks."""
    out = []
    if len(catalogue.cases(op.name)) < 2:
        out.append("fewer than two cases: a ragged and an adversarial one")
    if sum(len(variant.bugs) for variant in op.variants) < 4:
        out.append("fewer than four bugs")
    if sum(len(variant.illegal) for variant in op.variants) < 2:
        out.append("fewer than two compile errors")
    legal = [
        f"{v.name} {dict(i.params)}: an illegal point is among the legal ones"
        for v in op.variants
        for i in v.illegal
        if i.params in v.points
    ]
    return out + legal


def _entries_differ(op: Op, texts: list[Source]) -> list[str]:
    """Triton texts that are compiled with other constants from shape to shape: a digest would not say which."""
    if op.impl != "triton":
        return []
    harness, out = catalogue.harness(op.name), []
    for source in texts:
        if source.bug or source.rule:
            continue
        variant = op.variant(source.of.split()[0])
        same = [s for s in catalogue.all_shapes(op) if catalogue.render(op, variant, source.params, s) == source.text]
        if len({repr(harness.entries(variant.name, source.params, shape)) for shape in same}) > 1:
            out.append(f"{op.name}: {source.of}: one text, but other entries from shape to shape: put the constant in the source")
    return out


def _all(pool: Executor, task: Callable[[J], R], jobs: Mapping[K, J], what: str, report: Report) -> dict[K, R]:
    """Results by key, in the order of `jobs`; progress every ten seconds."""
    futures: dict[Future[R], K] = {pool.submit(task, job): key for key, job in jobs.items()}
    told, results = time.monotonic(), dict[K, R]()
    for future in as_completed(futures):
        try:
            results[futures[future]] = future.result()
        except Exception as problem:
            raise RuntimeError(f"{what} {futures[future]}: {type(problem).__name__}: {problem}") from problem
        if time.monotonic() - told > 10:
            told = time.monotonic()
            report(f"{what} {len(results)} of {len(jobs)}")
    return {key: results[key] for key in jobs}


def _pool(workers: int) -> ProcessPoolExecutor:
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # the workers are the parallelism
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def _triton_cache(folder: str) -> Iterator[None]:
    """Keeps Triton from answering out of the user's cache."""
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
    try:
        yield
    finally:
        os.environ.pop("TRITON_CACHE_DIR")
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before


def _cache_folder() -> Path:
    """Where builds keep compiles and libraries: $XDG_CACHE_HOME/kernelswarm-evidence."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "kernelswarm-evidence"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _toolchain(op: Op) -> dict[str, str]:
    if op.impl == "triton":
        return {"triton": triton_tools.VERSION, "python": ".".join(map(str, sys.version_info[:2]))}
    return {"nvcc": nvcc.VERSION, "gxx": emulate.version(), "emulator": emulate.digest()}


def _said(counted: "Counter[str]") -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.items())


def _tell(lines: list[str], report: Report) -> int:
    for line in lines:
        report(line)
    return len(lines)
