"""Fits the constants of boards and libraries to published measurements and writes them to `generator/calibration.py`.

    python benchmarks/calibrate.py MEASURED_GEMM.csv.gz MEASURED_DECODE.csv.gz [--write | --quarter 1] [--steps 120] [--ablate]

Only fit rows of the subset `core` are used, less rows faster than physics allows; on RTX PRO 6000 the small GEMMs too, without which the
overhead of a call is not seen, and full attention, all of it `edge`. What a sliding window adds is fitted to the windows alone. Constants
of a board (sustained DRAM bandwidth, power droop) are shared by its columns; those of a library belong to one.
Prints errors of fit and test rows and every constant that lies at a bound; with `--ablate` also what each constant is worth: the error of
the test rows with it at its neutral value and the others fitted anew.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import libraries
import numpy as np
import rooflines
from bench_costmodel import spearman
from measured import CORE_SYSTEMS, BadInputError, Column, Floats, Table, read
from search import Bounds, minimise

from generator.calibration import Board

ROOT: Final = Path(__file__).resolve().parents[1]

BOUNDS: Final[Bounds] = {
    "dram_sustained_fraction": (0.6, 0.967),
    "power_droop": (0.001, 1.0),
    "overhead_us": (0.1, 30.0),
    "split_us": (0.1, 10.0),
    "leak": (0.001, 0.5),
    "window_us": (0.01, 30.0),
    "window_ps": (0.1, 200.0),
    "step_ns": (1.0, 300.0),
    "store_ps": (0.001, 2.0),
    "quantise": (0.5, 3.0),
    "part_ns": (5.0, 1000.0),
    "warm": (0.02, 2.0),
    "inflight_kb": (4.0, 64.0),
    "generic": (0.2, 1.0),
    "group_us": (0.005, 5.0),
    "seq_ns": (0.5, 200.0),
    "short_us": (0.1, 30.0),
    "lone_us": (0.1, 30.0),
    "copy_us": (0.1, 30.0),
}
GEMM: Final = {"overhead_us": 2.0, "split_us": 1.5, "leak": 0.03, "step_ns": 60.0, "store_ps": 0.16}
DECODE: Final = {"overhead_us": 7.5, "part_ns": 150.0, "warm": 0.6, "inflight_kb": 30.0, "seq_ns": 25.0, "group_us": 1.5}
HOPPER: Final = {"generic": 0.8, "short_us": 6.0, "lone_us": 2.5}
AMPERE: Final = {
    "overhead_us": 14.0,
    "part_ns": 400.0,
    "warm": 0.32,
    "inflight_kb": 12.0,
    "generic": 0.53,
    "short_us": 10.0,
    "lone_us": 10.0,
    "copy_us": 4.0,
}
"""Nothing of what a sequence or a group costs is seen on A100: with `seq_ns` and `group_us` the error of the test rows falls by 0.2."""
WINDOW: Final = {"window_us": 2.0, "window_ps": 10.0}
BOARD: Final = {"dram_sustained_fraction": 0.9, "power_droop": 0.1}
NEAR_BOUND: Final = 1.02
"""A constant within 2 % of a bound is reported as lying at it."""

SEARCHED: Final = 400
"""Rows of a column that the search looks at; the last one takes them all."""
TURNS: Final = 3
NEUTRAL: Final = {
    "split_us": 0.0,
    "leak": 0.0,
    "step_ns": 0.0,
    "store_ps": 0.0,
    "quantise": 0.0,
    "part_ns": 0.0,
    "warm": 1e-3,
    "inflight_kb": 1e3,
    "generic": 1.0,
    "group_us": 0.0,
    "seq_ns": 0.0,
    "lone_us": 0.0,
    "copy_us": 0.0,
}
"""The value of each constant at which its term says nothing."""

HEAD: Final = '''"""Constants fitted to published measurements; written by `benchmarks/calibrate.py`, not by hand.

{files}

Least mean relative error on the fit rows of the subset `core`; one shape in four is kept out. Measurements: best clean library per shape of
https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce (Apache-2.0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROVENANCE: Final = (
    "https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce (fitted by benchmarks/calibrate.py)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What is fitted of a board; the fields of `generator.gpus.Gpu` of the same names say what they mean."""

    dram_sustained_fraction: float
    power_droop: float

'''
UNITS: Final = '''"""Of the libraries measured on a board, by op and dtype; `benchmarks/libraries.py` uses them, campaigns do not.

overhead_us: a call beyond launch and fill. split_us: merging split K. part_ns: each part of a split sequence, at head size 128. leak:
share of the lesser resources not hidden. step_ns: one 128-byte step of a block along K. store_ps: stores of the last wave, per element of
C. quantise: bytes of the activation quantisation over the least (3 M K). warm: share of L2 that keeps weights, or K and V, between replays.
inflight_kb: bytes a block keeps in flight, at head size 128. generic: the same share where only an untuned kernel exists. seq_ns: each
sequence of a call. group_us: each wave but the first, several query heads to a KV head, at head size 128. short_us: a call of the kernel
for short sequences, or of masked MHA. lone_us: splitting in an untuned kernel. copy_us: a copy of the cache's layout, several sequences
and KV heads. window_us, window_ps: a window at all, and per token of the sequences.
"""'''

Constants = dict[str, float]


def start(column: Column) -> Constants:
    """Where the search for a column's constants begins: by the kernels its libraries have; 8 bits apart."""
    if column.kind == "decode":
        return {"sm_80": AMPERE, "sm_90a": DECODE | HOPPER}.get(libraries.SYSTEMS[column.system].arch, DECODE).copy()
    kept = {} if column.system in CORE_SYSTEMS else {"warm": 0.2}
    if column.dtype in ("fp8", "int8"):
        return {name: value for name, value in GEMM.items() if name != "split_us"} | {"quantise": 1.2} | kept
    return GEMM | kept


def usable(column: Column) -> Column:
    """The rows the model is fitted on or judged by: core rows, all of RTX PRO 6000 but its windows; none faster than its floor."""
    keep = column.core
    if column.system not in CORE_SYSTEMS:
        keep = np.ones_like(keep)
    if column.kind == "decode" and not column.core.any():
        a = column.axes
        keep = (a["window_size"] == 0) & (a["heads"] <= 16 * a["kv_heads"]) & (a["T"] >= 256)
    return column.rows(keep & (column.seconds >= libraries.floor(column)))


def error(column: Column, board: Board, constants: Mapping[str, float]) -> float:
    """Mean relative error of the column's rows."""
    return float(np.mean(np.abs(predicted(column, board, constants) / column.seconds - 1.0)))


def predicted(column: Column, board: Board, constants: Mapping[str, float]) -> Floats:
    """Seconds of the column's rows."""
    return libraries.predict(column, libraries.gpu_of(column.system, board), constants)


def thinned(column: Column, rows: int) -> Column:
    """About `rows` of the rows, evenly taken."""
    return column.rows(np.arange(len(column.seconds)) % max(1, len(column.seconds) // rows) == 0)


def fit_system(columns: list[Column], steps: int) -> tuple[Constants, list[Constants]]:
    """Constants of one board, and of the libraries of each of its columns: each column's own, then the board's, three times over."""
    board, own = dict(BOARD), [start(column) for column in columns]
    few = [thinned(column, SEARCHED) for column in columns]
    for turn in range(TURNS):
        for i, column in enumerate(few):
            own[i], _ = minimise(_cost(column, board), own[i], BOUNDS, steps, 0.2 / (turn + 1))
        board, _ = minimise(_board_cost(few, own), board, BOUNDS, 30, 0.05)
    for i, column in enumerate(columns):
        own[i], _ = minimise(_cost(column, board), own[i], BOUNDS, steps, 0.05)
    return {name: rounded(value) for name, value in board.items()}, [{name: rounded(v) for name, v in one.items()} for one in own]


def rounded(value: float) -> float:
    """Four significant digits: more are not known."""
    return float(f"{value:.4g}")


def _cost(column: Column, board: Constants, fixed: Mapping[str, float] | None = None) -> Callable[[Constants], float]:
    def cost(constants: Constants) -> float:
        return error(column, Board(**board), constants | dict(fixed or {}))

    return cost


def _board_cost(columns: list[Column], own: list[Constants]) -> Callable[[Constants], float]:
    def cost(board: Constants) -> float:
        return sum(error(column, Board(**board), constants) for column, constants in zip(columns, own, strict=True))

    return cost


def fit_window(column: Column, board: Constants, own: Constants, steps: int) -> Constants:
    """What a sliding window adds in a decode column, the other constants as they are."""
    rows = thinned(column.rows((column.axes["window_size"] > 0) & ~column.test), 2 * SEARCHED)
    found, _ = minimise(_cost(rows, board, own), WINDOW, BOUNDS, steps)
    return {name: rounded(value) for name, value in found.items()}


def at_bounds(constants: Mapping[str, float]) -> list[str]:
    """The constants that lie at a bound: the data does not identify them."""
    told = []
    for name, value in constants.items():
        low, high = BOUNDS[name]
        if value <= low * NEAR_BOUND or value >= high / NEAR_BOUND:
            told.append(f"{name} = {value:g} at a bound of {low:g} to {high:g}")
    return told


def ablate(column: Column, board: Constants, own: Constants, steps: int) -> dict[str, float]:
    """Percent of error on the test rows without each constant of the column: it is held at its neutral value, the others fitted anew."""
    fit, test = thinned(column.rows(~column.test), SEARCHED), column.rows(column.test)
    found = {}
    for name, neutral in NEUTRAL.items():
        if name in own and name != "overhead_us":
            rest = {other: value for other, value in own.items() if other != name}
            rest, _ = minimise(_cost(fit, board, {name: neutral}), rest, BOUNDS, steps, 0.1)
            found[name] = 100 * error(test, Board(**board), rest | {name: neutral})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gemm", type=Path)
    parser.add_argument("decode", type=Path)
    parser.add_argument("--write", action="store_true", help="write generator/calibration.py")
    parser.add_argument("--steps", type=int, default=120, help="steps of each search")
    parser.add_argument("--ablate", action="store_true", help="also tell what each constant is worth")
    parser.add_argument("--quarter", type=int, choices=range(4), default=0, help="the quarter of the shapes kept out; only 0 is written")
    given = parser.parse_args()
    if given.write and given.quarter:
        parser.error("--write goes with --quarter 0, the one every report keeps out")
    try:
        tables = [read(given.gemm, "gemm", given.quarter), read(given.decode, "decode", given.quarter)]
    except BadInputError as told:
        print(f"error: {told}", file=sys.stderr)
        return 2
    boards: dict[str, Constants] = {}
    own: dict[str, dict[str, Constants]] = {}
    for system, columns in by_system(tables).items():
        name = libraries.SYSTEMS[system].name
        boards[name], found = fit_system([column.rows(~column.test) for column in columns], given.steps)
        own[name] = {label(column): constants for column, constants in zip(columns, found, strict=True)}
        whole = next(column for column in tables[1].columns if column.system == system)
        if (whole.axes["window_size"] > 0).any():
            own[name]["decode"] |= fit_window(whole, boards[name], own[name]["decode"], given.steps)
        tell(name, columns, boards[name], own[name], given.steps if given.ablate else 0)
    if given.write:
        lines = rooflines.fit(column for table in tables for column in table.columns)
        (ROOT / "generator" / "calibration.py").write_text(module(provenance(given, tables), boards, own, lines))
    return 0


def by_system(tables: list[Table]) -> dict[str, list[Column]]:
    """The usable rows of every system's columns."""
    found: dict[str, list[Column]] = {}
    for table in tables:
        for column in table.columns:
            found.setdefault(column.system, []).append(usable(column))
    return found


def label(column: Column) -> str:
    """`gemm fp8` or `decode`."""
    return f"gemm {column.dtype}" if column.kind == "gemm" else "decode"


def tell(name: str, columns: list[Column], board: Constants, own: Mapping[str, Constants], ablation: int) -> None:
    """Prints what was found for one board."""
    print(f"{name}: {board} {'; '.join(at_bounds(board))}")
    for column in columns:
        constants = own[label(column)]
        fit, test = (100 * error(column.rows(rows), Board(**board), constants) for rows in (~column.test, column.test))
        rank = spearman(predicted(column.rows(column.test), Board(**board), constants), column.seconds[column.test])
        errors = f"fit {fit:.2f} %, test {test:.2f} %, Spearman {rank:.4f}"
        print(f"  {label(column)}: {errors}, {constants} {'; '.join(at_bounds(constants))}", flush=True)
        if ablation:
            for lost, percent in ablate(column, board, constants, ablation).items():
                print(f"    without {lost}: test {percent:.2f} %", flush=True)


def provenance(given: argparse.Namespace, tables: list[Table]) -> list[str]:
    """What the constants come from: files by name, size and digest; rows used."""
    lines = []
    for path, table in zip((given.gemm, given.decode), tables, strict=True):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        used = sum(int((~usable(column).test).sum()) for column in table.columns)
        lines.append(f"{path.name} (sha256 {digest}...): {len(table.texts)} rows, {used} fitted on")
    return lines


def module(
    files: list[str], boards: Mapping[str, Constants], own: Mapping[str, Mapping[str, Constants]], lines: Mapping[rooflines.Key, Constants]
) -> str:
    """The text of `generator/calibration.py`."""
    out = [HEAD.format(files="\n".join(f"- {line}" for line in files))]
    out.append("BOARDS: Final[Mapping[str, Board]] = {")
    for name, board in boards.items():
        inside = ", ".join(f"{key}={value!r}" for key, value in board.items())
        out.append(f'    "{name}": Board({inside}),')
    out += [
        "}",
        '"""Of each board, shared by all its kernels."""',
        "",
        "LIBRARIES: Final[Mapping[str, Mapping[str, Mapping[str, float]]]] = {",
    ]
    for name, found in own.items():
        out.append(f'    "{name}": {{')
        for what, constants in found.items():
            out.append(f'        "{what}": {{')
            out += [f'            "{key}": {value!r},' for key, value in constants.items()]
            out.append("        },")
        out.append("    },")
    out += ["}", UNITS, "", "ROOFLINES: Final[Mapping[tuple[str, str, str, str], Mapping[str, float]]] = {"]
    for key, constants in lines.items():
        inside = ", ".join(f'"{name}": {rounded(value)!r}' for name, value in constants.items())
        out.append(f"    ({', '.join(f'{part!r}' for part in key)}): {{{inside}}},".replace("'", '"'))
    out += ["}", '"""By system, op, dtype, subset: microseconds at no work, shares of the datasheet\'s compute and bandwidth."""', ""]
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
