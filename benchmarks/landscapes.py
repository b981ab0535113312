"""What there is to explore: for every op over all boards and shapes, how far the best candidate is from the baseline and from the floor.

    python benchmarks/landscapes.py

Local optima are points no worse than all points one step away along one tunable, per variant; winners are the variants that hold the best
point on some board. A Markdown table, the one of docs/costmodel.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from generator import costmodel, facts
from generator.gpus import GPUS, Gpu
from generator.ops import OPS
from generator.ops.base import Op, Params, Shape, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One task, all legal candidates priced."""

    gpu: str
    gain: float
    """Baseline over best."""
    distance: float
    """Best over floor."""
    spread: float
    """Ninth decile of the times over the best."""
    optima: int
    winner: str


def survey(op: Op, gpu: Gpu, shape: Shape) -> Survey:
    """Prices every candidate of a task."""
    usable = [variant for variant in op.variants if variant.usable(gpu.features)]
    times = {variant.name: _times(op, gpu, shape, variant) for variant in usable}
    baseline = times[op.baseline.name][op.baseline.points.index(op.baseline.start)]
    winner = min(times, key=lambda name: float(times[name].min()))
    best = float(times[winner].min())
    every = np.concatenate(list(times.values()))
    return Survey(
        gpu=gpu.name,
        gain=float(baseline) / best,
        distance=best / costmodel.floor_ms(gpu, op.work(shape)),
        spread=float(np.quantile(every[np.isfinite(every)], 0.9)) / best,
        optima=sum(len(list(_optima(variant, times[variant.name]))) for variant in usable),
        winner=winner,
    )


def _times(op: Op, gpu: Gpu, shape: Shape, variant: Variant) -> costmodel.Floats:
    price = costmodel.price(gpu, facts.demand(op, variant, shape, gpu.arch, variant.points), op.work(shape))
    return np.broadcast_to(price.ms, (len(variant.points),))


def _optima(variant: Variant, times: costmodel.Floats) -> Iterator[Params]:
    values = {name: sorted({p[name] for p in variant.points}) for name in variant.start}

    def near(a: Params, b: Params) -> bool:
        return sum(abs(values[name].index(a[name]) - values[name].index(b[name])) for name in a) == 1

    for point, time in zip(variant.points, times, strict=True):
        around = [other for p, other in zip(variant.points, times, strict=True) if near(point, p)]
        if np.isfinite(time) and around and all(time <= other for other in around):
            yield point


def main() -> None:
    print(
        "| op | baseline / best: least, median, greatest | best / floor: least, median, greatest | 90 % / best | local optima | winners |"
    )
    print("|---|---|---|---|---|---|")
    for op in OPS:
        tasks = [survey(op, gpu, shape) for gpu in GPUS for shape in (*op.shapes, op.heldout)]
        gain, distance = (np.array([getattr(task, name) for task in tasks]) for name in ("gain", "distance"))
        winners = ", ".join(f"{name} {sum(t.winner == name for t in tasks)}" for name in dict.fromkeys(t.winner for t in tasks))
        optima = sorted(task.optima for task in tasks)
        spread = float(np.median([task.spread for task in tasks]))
        print(
            f"| {op.name} | {gain.min():.1f}, {np.median(gain):.1f}, {gain.max():.1f} "
            f"| {distance.min():.2f}, {np.median(distance):.2f}, {distance.max():.2f} | {spread:.1f} "
            f"| {optima[0]}-{optima[-1]} | {winners} |"
        )


if __name__ == "__main__":
    main()
