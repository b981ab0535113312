"""The held-out tasks as rows: what a policy is asked, and what it is scored against.

Times are the landscape's, without noise. The prompt states the task in full: what the op computes, sizes, board, the variants there are
with their legal params, the baseline time and the score.
"""

import pyarrow as pa

from generator.environment import significant
from generator.gpus import Gpu
from generator.ops.base import Variant
from generator.phrases import ms
from generator.release import Release, held_out_shapes, held_out_triples
from generator.task import Landscape, Task, landscape, shape_text
from schema import rules
from schema.arrow import HOLDOUT


def build_holdout(release: Release) -> pa.Table:
    """All held-out tasks that pass the release's op and gpu filters, on `schema.arrow.HOLDOUT`; they do not depend on the seed."""
    kinds = [("unseen_triple", t) for t in held_out_triples()] + [("unseen_shape", t) for t in held_out_shapes()]
    rows = [
        _row(kind, task)
        for kind, task in kinds
        if (not release.ops or task.op.name in release.ops) and (not release.gpus or task.gpu.name in release.gpus)
    ]
    table = pa.Table.from_pylist(rows, schema=HOLDOUT)
    rules.check_holdout(table)
    return table


def _row(kind: str, task: Task) -> dict[str, object]:
    land = landscape(task)
    return {
        "task_id": task.task_id,
        "op": task.op.name,
        "impl": task.op.impl,
        "gpu": task.gpu.name,
        "arch": task.gpu.arch,
        "dtype": task.op.dtype,
        "shape": task.shape,
        "baseline_ms": land.baseline.ms,
        "floor_ms": land.floor_ms,
        "best_known_ms": land.best.ms,
        "best_known_speedup": significant(land.baseline.ms / land.best.ms),
        "kind": kind,
        "prompt": prompt(land),
    }


def prompt(land: Landscape) -> str:
    """The task as a policy reads it."""
    task = land.task
    op, gpu = task.op, task.gpu
    variants = "\n".join(_variant(variant, land, gpu) for variant in op.variants if variant.flaw is None)
    features = ", ".join(sorted(gpu.features))
    return f"""Optimise one inference kernel.

op: {op.name} ({op.impl}, {op.dtype})
computes: {op.summary}
shape: {shape_text(task.shape)}
gpu: {gpu.name} ({gpu.board}, {gpu.arch}; features: {features}; {gpu.sm_count} SMs, {gpu.dram_gbps} GB/s, \
{gpu.smem_block_bytes} B shared memory per block)

variants and their legal params on this board:
{variants}

baseline: {land.baseline.variant.name} {land.baseline.label}, {ms(land.baseline.ms)} ms (cold L2, median of 100)
floor: {ms(land.floor_ms)} ms (compulsory bytes, useful flops, one launch); no time can be below it

Answer with a variant and its params, or with the full source of the kernel. A candidate must compile for {gpu.arch} and match the \
reference within |y - r| <= {op.tolerance:g} * (1 + |r|). A result earns min(1, log2(best so far / time)) when it is faster than \
the best so far, -0.05 when it is not, -0.1 when it does not compile or launch, -0.3 when its result is wrong, -0.05 when the arch does \
not support it; the final score is log2(baseline / best) / 4.
"""


def _variant(variant: Variant, land: Landscape, gpu: Gpu) -> str:
    points = [p for p in (land.baseline, *land.legal.get(variant.name, ())) if p.variant is variant]
    if not points:
        missing = " and ".join(sorted(variant.needs - gpu.features))
        return f"- {variant.name}: {variant.idea}; " + (
            f"needs {missing}, not on this board" if missing else "no point can be launched here"
        )
    listed = "; ".join(p.label for p in sorted(points, key=lambda p: p.key))
    return f"- {variant.name}: {variant.idea}. {listed}"
