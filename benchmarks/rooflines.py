"""The baselines any model must beat: a roofline with two or three constants fitted to a column, and the raw one with none.

Fitted: `t0 + max(flops / (e * peak), bytes / (eta * bandwidth))` for GEMM, `t0 + bytes / (eta * bandwidth)` for decode, by least mean
relative error on the fit rows of one system, op, dtype and subset. Raw: the larger of the two times at the datasheet's rates.
"""

from collections.abc import Iterable, Mapping

import libraries
import numpy as np
from measured import DTYPES, Column, Floats, Mask
from search import Bounds, minimise

Key = tuple[str, str, str, str]
"""System, op, dtype, subset."""
Constants = Mapping[str, float]

BOUNDS: Bounds = {"t0_us": (0.01, 100.0), "e": (0.05, 2.0), "eta": (0.05, 2.0)}
STARTS: tuple[Constants, ...] = ({"t0_us": 4.0, "e": 0.8, "eta": 0.85}, {"t0_us": 10.0, "e": 0.5, "eta": 0.6})


def subsets(column: Column) -> Iterable[tuple[Key, Mask]]:
    """The subsets of a column that have rows, and their rows."""
    for name, rows in (("core", column.core), ("edge", ~column.core)):
        if rows.any():
            yield (column.system, column.kind, column.dtype, name), rows


def raw(column: Column) -> Floats:
    """Seconds at the datasheet's rates."""
    compute, memory = _bounds(column)
    return np.maximum(compute, memory) if column.kind == "gemm" else memory


def fitted(column: Column, constants: Constants) -> Floats:
    """Seconds of a fitted roofline."""
    compute, memory = _bounds(column)
    memory = memory / constants["eta"]
    if column.kind == "gemm":
        memory = np.maximum(memory, compute / constants["e"])
    return constants["t0_us"] * 1e-6 + memory


def fit(columns: Iterable[Column]) -> dict[Key, dict[str, float]]:
    """The constants of each subset of the columns, from its fit rows."""
    found: dict[Key, dict[str, float]] = {}
    for column in columns:
        for key, rows in subsets(column):
            if (rows & ~column.test).any():
                found[key] = _fit(column.rows(rows & ~column.test))
    return found


def _fit(rows: Column) -> dict[str, float]:
    wanted = ("t0_us", "e", "eta") if rows.kind == "gemm" else ("t0_us", "eta")

    def error(constants: Constants) -> float:
        return float(np.mean(np.abs(fitted(rows, constants) / rows.seconds - 1.0)))

    tries = []
    for start in STARTS:
        found, _ = minimise(error, {name: start[name] for name in wanted}, BOUNDS, 300)
        tries.append(minimise(error, found, BOUNDS, 300, 0.05))
    return min(tries, key=lambda one: one[1])[0]


def _bounds(column: Column) -> tuple[Floats, Floats]:
    gpu = libraries.SYSTEMS[column.system]
    nbytes, flops = libraries.work(column)
    peaks = {"fp8": gpu.fp8_tflops or gpu.fp16_tflops, "int8": gpu.int8_tops}
    rate = peaks.get(column.dtype, gpu.fp16_tflops) if DTYPES[column.dtype] == 1 else gpu.fp16_tflops
    return flops / (rate * 1e12), nbytes / (gpu.dram_gbps * 1e9)
