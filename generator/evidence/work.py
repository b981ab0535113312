"""The two jobs that evidence is made of, as they run in worker processes: compile texts for one arch, run one point on all cases."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from generator.evidence import catalogue, emulate, judge, nvcc, triton_tools
from generator.evidence.catalogue import Point, Source
from generator.evidence.harness import Case, Entry, Launch
from generator.facts import Check, Facts, Launches, Profile, digest
from generator.ops.base import Op

GRID_LIMITS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """Compile some sources of one variant for `arch`; `folder` keeps results between builds."""

    op: Op
    variant: str
    sources: tuple[Source, ...]
    arch: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """Run `point` on the cases of its op until one fails; `folder` keeps built libraries."""

    op: Op
    point: Point
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a RunJob found."""

    check: Check
    launch: tuple[Launches, ...] = ()
    profile: tuple[Profile, ...] = ()
    problems: tuple[str, ...] = ()


def compile_all(job: CompileJob) -> list[nvcc.Compiled]:
    """The outcomes of a CompileJob, from `folder` where that was done before with the same tools and inputs."""
    paths = {source.digest: _kept_at(job, source) for source in job.sources}
    missing = [source for source in job.sources if not paths[source.digest].exists()]
    for source, found in zip(missing, _compiled(job, missing), strict=True):
        part = paths[source.digest].with_suffix(f".{job.arch}")
        part.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
        part.replace(paths[source.digest])
    return [_revive(json.loads(paths[source.digest].read_text(encoding="utf-8"))) for source in job.sources]


def _compiled(job: CompileJob, sources: Sequence[Source]) -> list[nvcc.Compiled]:
    """Sources compiled: together if that goes well, else one by one."""
    if job.op.impl == "triton":
        return [triton_tools.compile(s.text, _entries(job, s), job.arch, s.file) for s in sources]
    together = nvcc.compile_together([s.text for s in sources], job.arch) if len(sources) > 1 else None
    return together or [nvcc.compile(s.text, job.arch, s.file) for s in sources]


def _kept_at(job: CompileJob, source: Source) -> Path:
    tool = f"nvcc {nvcc.VERSION}" if job.op.impl == "cuda" else f"triton {triton_tools.VERSION} {_entries(job, source)}"
    return job.folder / f"{digest(f'{tool} {job.arch} {source.file} {source.text}')}.json"


def _entries(job: CompileJob, source: Source) -> tuple[Entry, ...]:
    return catalogue.harness(job.op.name).entries(job.variant, source.params, source.shape)


def run_one(job: RunJob) -> Ran:
    """The verdict of a RunJob: the first case that fails decides. An honest CUDA point also tells its launches on every shape."""
    verdicts = []
    for case in catalogue.cases(job.op.name):
        verdicts.append(_run_case(job, case))
        if verdicts[-1].kind != judge.OK:
            break
    if job.point.bug is not None:
        return Ran(check=_check(verdicts))
    launch, problems = _launches(job)
    return Ran(check=_check(verdicts), launch=launch, profile=_profile(job), problems=problems)


def facts(found: nvcc.Compiled) -> dict[str, Facts] | str:
    """As the table holds them."""
    return found.diagnostic or {name: (k.registers, k.smem, k.spills) for name, k in sorted(found.kernels.items())}


def _run_case(job: RunJob, case: Case) -> judge.Verdict:
    op, point = job.op, job.point
    text = catalogue.render(op, point.variant, point.params, case.shape, point.bug)
    if op.impl == "triton":
        return triton_tools.judged(text, case, op.tolerance, f"{point.variant.name}.py")
    harness = catalogue.harness(op.name)
    return emulate.judged(text, lambda c: harness.plan(point.variant.name, point.params, c), case, op.tolerance, job.folder)


def _check(verdicts: list[judge.Verdict]) -> Check:
    last = verdicts[-1]
    if last.kind == judge.OK:
        return Check(judge.OK, emulate.finite(max(v.error or 0.0 for v in verdicts)))
    if last.kind == judge.NUMERIC:
        return Check(last.kind, emulate.finite(last.error), last.case)
    return Check(last.kind, None, last.case, last.message)


def _profile(job: RunJob) -> tuple[Profile, ...]:
    """Memory patterns of a CUDA variant's start point; of other points nothing."""
    op, variant, params = job.op, job.point.variant, job.point.params
    if op.impl == "triton" or params != variant.start:
        return ()
    case = catalogue.cases(op.name)[0]
    library = emulate.build(catalogue.render(op, variant, params, case.shape), job.folder)
    launches = emulate.profiled(library, catalogue.harness(op.name).plan(variant.name, params, case), case)
    return tuple((p.kernel, _ratio(p.sectors, p.requests), _ratio(p.conflicted, p.wavefronts)) for p in launches)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 2) if whole else 0.0


def _launches(job: RunJob) -> tuple[tuple[Launches, ...], tuple[str, ...]]:
    """The launches of a point on every shape of its op, and what no GPU would accept of them."""
    harness, name, params = catalogue.harness(job.op.name), job.point.variant.name, job.point.params
    first = catalogue.cases(job.op.name)[0]
    rows, problems = [], []
    for shape in catalogue.all_shapes(job.op):
        if job.op.impl == "triton":
            rows.append(tuple((e.kernel, 32 * e.warps, 0) for e in harness.entries(name, params, shape)))
            continue
        with mock.patch.object(np, "full", _view):
            launches = harness.plan(name, params, dataclasses.replace(first, shape=shape)).launches
        rows.append(tuple((launch.kernel, int(launch.block), int(launch.smem)) for launch in launches))
        problems += [f"{job.point.of}: {launch} on {dict(shape)} cannot be launched" for launch in launches if not _launchable(launch)]
    return tuple(rows) if len(set(rows)) > 1 else tuple(rows[:1]), tuple(problems)


def _launchable(launch: Launch) -> bool:
    return 0 < launch.block <= 1024 and all(0 < n <= most for n, most in zip(launch.grid, GRID_LIMITS, strict=True))


def _view(shape: Any, value: Any, dtype: Any = None) -> npt.NDArray[np.generic]:
    """As np.full, but one element seen everywhere: a plan on a real shape names gigabytes of scratch that nobody touches."""
    return np.broadcast_to(np.asarray(value, dtype=dtype), shape)


def _revive(raw: dict[str, Any]) -> nvcc.Compiled:
    kernels = {name: nvcc.Kernel(**values) for name, values in raw["kernels"].items()}
    return nvcc.Compiled(kernels=kernels, diagnostic=raw["diagnostic"], warnings=tuple(raw["warnings"]))
