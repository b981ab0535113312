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


def by_evidence(task: Task, source: Source, point: Point) -> str | None:
    """An Oracle: compiled for the task's arch, launchable on its board, and right on the cases of its op."""
    record = facts.table(task.op.name).sources.get(source.digest)
    found = None if record is None else facts.outcome(record, task.gpu.arch)
    if isinstance(found, str):
        return "compile_error" if facts.broken_rule(found) else "unsupported_arch"
    if found is None and source.bug is None:
        return "no evidence of this text"
    if found is not None and not _launches(task, point, found):
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
