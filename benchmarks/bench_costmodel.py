"""How well the cost model predicts published library times: its best candidate per shape against the measured time of each.

    python benchmarks/bench_costmodel.py --decode FILE --gemm FILE [--fit FILE ...] [--rows all|fit|test] [--json]
    python benchmarks/bench_costmodel.py --gemm FILE --predictions OUT.csv
    python benchmarks/bench_costmodel.py --speed

Either input or both. By system, op, dtype and subset: rows, errors in percent, rank correlation, predictions below the physical floor, and
on the same rows the error of a roofline fitted to the fit rows of FILES and of the raw roofline. Without `--fit` the rooflines are those
kept in `generator/calibration.py`, fitted to the files the model's own constants come from. `core` is what the model answers for; `edge`
is the rest: RTX PRO 6000 where its 128 MB L2 is warm, windows, short sequences, more than 16 query heads to a KV head.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import libraries
import numpy as np
import rooflines
from measured import BadInputError, Column, Floats, Kind, Table, read

from generator import calibration, costmodel
from generator.gpus import H100
from generator.ops import BY_NAME

Cell = str | int | float | None
KEYS: Final = (
    "system",
    "op",
    "dtype",
    "subset",
    "n",
    "mape",
    "median_ape",
    "p90_ape",
    "spearman",
    "floor_violations",
    "fitted_roofline_mape",
    "raw_roofline_mape",
)


def main() -> int:
    given = arguments().parse_args()
    if given.speed:
        print(f"{speed() / 1e6:.1f} million candidate prices a second on one core (CPU time)")
        return 0
    try:
        if given.gemm is None and given.decode is None:
            raise BadInputError("no input; give --gemm FILE, --decode FILE or both")
        if given.predictions is not None and given.gemm is not None and given.decode is not None:
            raise BadInputError("--predictions takes exactly one of --gemm and --decode")
        tables = [read(path, kind) for path, kind in inputs(given.gemm, given.decode)]
        fits = rooflines.fit(column for path in given.fit for column in sniff(path).columns) if given.fit else kept()
        lines = [line for table in tables for column in table.columns for line in report(chosen(column, given.rows), fits)]
        if given.predictions is not None:
            write_predictions(tables[0], given.predictions)
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(lines, indent=1) if given.json else text(lines))
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemm", type=Path, metavar="FILE")
    parser.add_argument("--decode", type=Path, metavar="FILE")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="FILE", help="measurements whose fit rows the rooflines are fitted to")
    parser.add_argument("--rows", choices=("all", "fit", "test"), default="all", help="of the shapes: all, those fitted, those kept out")
    parser.add_argument("--predictions", type=Path, metavar="OUT", help="also write every input row with predicted_ms, floor_ms, subset")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--speed", action="store_true", help="only tell how many candidates are priced a second")
    return parser


def speed(size: int = 8192, seconds: float = 1.0) -> float:
    """Candidates of `gemm_fp16`, `size` at a time, priced a second of CPU time, floors and rounding included."""
    op = BY_NAME["gemm_fp16"]
    variant = op.variant("mma_cp_async")
    columns = {name: np.resize(values, size) for name, values in variant.columns().items()}
    demand, work = variant.demand(op.shapes[0], columns), op.work(op.shapes[0])
    start, priced = time.process_time(), 0
    while time.process_time() - start < seconds:
        costmodel.price(H100, demand, work)
        priced += size
    return priced / (time.process_time() - start)


def inputs(gemm: Path | None, decode: Path | None) -> list[tuple[Path, Kind]]:
    """The files given, with their kinds."""
    both: list[tuple[Path | None, Kind]] = [(gemm, "gemm"), (decode, "decode")]
    return [(path, kind) for path, kind in both if path is not None]


def sniff(path: Path) -> Table:
    """A file of either kind: the one whose columns it has."""
    try:
        return read(path, "gemm")
    except BadInputError as error:
        if "no column" not in str(error):
            raise
        return read(path, "decode")


def kept() -> dict[rooflines.Key, Mapping[str, float]]:
    """The rooflines fitted when the model was."""
    return {(system, op, dtype, subset): constants for (system, op, dtype, subset), constants in calibration.ROOFLINES.items()}


def chosen(column: Column, rows: str) -> Column:
    """The rows asked for."""
    return column if rows == "all" else column.rows(column.test if rows == "test" else ~column.test)


def report(column: Column, fits: Mapping[rooflines.Key, Mapping[str, float]]) -> list[dict[str, Cell]]:
    """One line per subset that has rows."""
    if not len(column.seconds):
        return []
    predicted, floor, raw = libraries.predict(column), libraries.floor(column), rooflines.raw(column)
    lines: list[dict[str, Cell]] = []
    for key, rows in rooflines.subsets(column):
        true = column.seconds[rows]
        apart = np.abs(predicted[rows] / true - 1.0)
        fit = mape(rooflines.fitted(column, fits[key])[rows], true) if key in fits else None
        values = (
            *key,
            len(true),
            percent(apart.mean()),
            percent(np.median(apart)),
            percent(np.quantile(apart, 0.9)),
            round(spearman(predicted[rows], true), 4),
            int((predicted[rows] < floor[rows]).sum()),
            fit,
            mape(raw[rows], true),
        )
        lines.append(dict(zip(KEYS, values, strict=True)))
    return lines


def mape(predicted: Floats, true: Floats) -> float:
    """Mean relative error in percent."""
    return percent(np.abs(predicted / true - 1.0).mean())


def percent(share: float | np.floating) -> float:
    """A share in percent, to 0.01."""
    return round(100.0 * float(share), 2)


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation, equal values sharing their mean rank; 1 for fewer than two distinct values."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size else 1.0


def ranks(values: Floats) -> Floats:
    """Ranks from 0, ties averaged."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: Floats = (last - count + last - 1) / 2.0
    return mean[place]


def write_predictions(table: Table, path: Path) -> None:
    """The input's rows in order, three columns added."""
    size = len(table.texts)
    predicted, floor, core = np.empty(size), np.empty(size), np.empty(size, dtype=np.bool_)
    for column in table.columns:
        predicted[column.index], floor[column.index] = libraries.predict(column), libraries.floor(column)
        core[column.index] = column.core
    try:
        with path.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow([*table.header, "predicted_ms", "floor_ms", "subset"])
            for row, time, least, is_core in zip(table.texts, predicted.tolist(), floor.tolist(), core.tolist(), strict=True):
                out.writerow([*row, f"{time * 1e3:.7g}", f"{least * 1e3:.7g}", "core" if is_core else "edge"])
    except OSError as error:
        raise BadInputError(f"{path}: cannot be written ({error})") from error


def text(lines: list[dict[str, Cell]]) -> str:
    """The table as text."""
    if not lines:
        return "no rows"
    cells = [list(KEYS), *([("-" if line[key] is None else str(line[key])) for key in KEYS] for line in lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(KEYS))]
    return "\n".join(
        "  ".join(f"{cell:<{w}}" if i < 4 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in cells
    )


if __name__ == "__main__":
    sys.exit(main())
