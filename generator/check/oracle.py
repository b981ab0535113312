"""What becomes of a source by the evidence tables alone: no landscape, no price.

The stored text is found by its digest, so that a status is held to what a compiler said of exactly those bytes.
"""

from typing import Final

from generator import costmodel, facts
from generator.check.library import Source
from generator.facts import Facts
from generator.task import Point, Task

RUNS: Final = "runs"
"""Instead of a status: the candidate ran, and its time decides."""
_ASSERTIONS: Final = ("static assertion failed", "CompileTimeAssertionFailure")
"""What a compiler says of a point that breaks a rule of the source; anything else that it refuses, the arch lacks."""


def by_evidence(task: Task, source: Source, point: Point) -> str | None:
    """An Oracle: compiled for the task's arch, launchable on its board, and right on the cases of its op."""
    record = facts.table(task.op.name).sources.get(source.digest)
    if record is None:
        return None if source.bug is not None else "no evidence of this text"
    arch = task.gpu.arch
    found = record.archs.get(arch, "") if source.bug is not None else record.archs.get(arch) or next(iter(record.archs.values()))
    if isinstance(found, str) and found:
        return "compile_error" if any(words in found for words in _ASSERTIONS) else "unsupported_arch"
    if isinstance(found, dict) and not _launches(task, point, found):
        return "compile_error"
    check = facts.check(task.op, point.variant, point.params, source.bug)
    return RUNS if check.kind == facts.OK else "wrong_result"


def _launches(task: Task, point: Point, found: dict[str, Facts]) -> bool:
    """Whether one block of every kernel fits on a multiprocessor."""
    launches = facts.launches(task.op, point.variant, point.params, task.shape)
    return all(
        int(costmodel.occupancy(task.gpu, threads, found[kernel][0], found[kernel][1] + dynamic)) > 0
        for kernel, threads, dynamic in launches
    )
