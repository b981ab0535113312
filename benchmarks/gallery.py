"""The gallery of kernels, docs/gallery.md: every op's ladder, what its steps compile to, and what they take on each board.

    python benchmarks/gallery.py > docs/gallery.md

Registers, shared memory and memory patterns are the evidence's (start points, first shape); times are the landscape's, without noise, of
the best point of a variant.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from generator import facts
from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op, Shape, Variant
from generator.phrases import ms
from generator.task import Landscape, Task, landscape, params_text, shape_text

ARCHS = tuple(dict.fromkeys(gpu.arch for gpu in GPUS))

HEAD = """# Gallery of kernels

{variants} variants of {ops} ops, {points} legal points, {bugs} bugs that a check catches. Made by `python benchmarks/gallery.py` from the
registry and its evidence.

- **registers** per thread, and **smem**, static and dynamic shared memory of a block in bytes: the start point at the op's first shape, in
  the order {archs}; one figure where all are alike, `-` where the arch lacks what the variant needs.
- **sectors**: 32-byte sectors per warp-wide access of global memory (4 is full coalescing of 4-byte words, 16 of 16-byte vectors);
  **conflicts**: passes over shared memory for each one that bank conflicts leave. Of a CUDA start point on a small ragged case in the
  emulator, main kernel.
- Times are the best point's of each variant, in ms, modelled, cold L2, without noise; the winner of a board is bold; `-`: does not run.
"""


def gallery() -> Iterator[str]:
    """The lines of the page."""
    variants = [variant for op in OPS for variant in op.variants]
    yield HEAD.format(
        variants=len(variants),
        ops=len(OPS),
        points=sum(len(v.points) for v in variants),
        bugs=sum(len(v.bugs) for v in variants),
        archs=", ".join(ARCHS),
    )
    for op in OPS:
        yield from _op(op)


def _op(op: Op) -> Iterator[str]:
    yield f"## {op.name}\n\n{op.summary}\n"
    yield from _table(
        ("variant", "grows from", "step", "needs", "points", "start", "registers", "smem", "sectors", "conflicts"),
        [_step(op, variant) for variant in op.variants],
    )
    for shape in (*op.shapes, op.heldout):
        held = " (held out)" if shape is op.heldout else ""
        yield f"\n`{shape_text(shape)}`{held}\n"
        yield from _table((op.impl, *(gpu.name for gpu in GPUS)), _times(op, shape))
    yield ""


def _step(op: Op, variant: Variant) -> tuple[str, ...]:
    flawed = f" **wrong on purpose**: {variant.flaw.slip}" if variant.flaw else ""
    claimed = {gpu.arch for gpu in GPUS if variant.needs <= gpu.features}
    threads = int(np.ravel(facts.demand(op, variant, op.shapes[0], sorted(claimed)[0], [variant.start]).threads)[0])
    built = [
        facts.main(facts.compiled(op, variant, variant.start, op.shapes[0], arch), threads) if arch in claimed else None for arch in ARCHS
    ]
    main = next(b for b in built if b is not None).kernel
    profile = next((p for p in facts.profile(op, variant) if p[0] == main), None)
    return (
        f"`{variant.name}`",
        f"`{variant.parent}`" if variant.parent else "",
        variant.idea + flawed,
        " ".join(sorted(variant.needs)),
        str(len(variant.points)),
        f"`{params_text(variant.start)}`",
        _alike([str(b.registers) if b else "-" for b in built]),
        _alike([str(b.smem) if b else "-" for b in built]),
        *((f"{profile[1]:g}", f"{profile[2]:g}") if profile else ("", "")),
    )


def _alike(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def _times(op: Op, shape: Shape) -> list[tuple[str, ...]]:
    """One row per variant that is not a shortcut, one column per board."""
    lands = [landscape(Task(op=op, gpu=gpu, shape=shape)) for gpu in GPUS]
    return [(f"`{v.name}`", *(_best(land, v) for land in lands)) for v in op.variants if v.flaw is None]


def _best(land: Landscape, variant: Variant) -> str:
    points = [p.ms for p in (land.baseline, *land.legal.get(variant.name, ())) if p.variant is variant]
    if not points:
        return "-"
    return f"**{ms(min(points))}**" if land.best.variant is variant else ms(min(points))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print("\n".join(gallery()))
