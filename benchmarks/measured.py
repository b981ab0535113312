"""Reads published measurements of library kernels: GEMM and decode attention, one row a shape, best clean library.

A file's header tells which it is. Shapes become integer columns; rows keep their text, so that predictions can be written beside them.
The split into fit and test rows hashes the shape alone: a shape lies on the same side on every system.
"""

import csv
import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["gemm", "decode"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

AXES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "decode": ("batch_size", "heads", "kv_heads", "head_dim", "T", "window_size", "tokens_read"),
}
TEST_SHARE: Final = 4
"""One shape in four is kept out of every fit."""
SYSTEMS: Final = ("a100_sxm", "h100_sxm", "h200_sxm", "rtx_pro_6000_server")
DTYPES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
"""Bytes of an operand of a GEMM."""
LARGEST: Final = 2**20
"""No size of a shape is larger: the product of three stays a 64-bit integer."""
CORE_SYSTEMS: Final = frozenset(SYSTEMS[:3])
CORE_WEIGHTS: Final = 192_000_000
"""Bytes of weights on RTX PRO 6000 beyond which its L2 cannot hold what a benchmark rotates."""


class BadInputError(ValueError):
    """A file that is not what it should be: what, the value, what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Rows of one system, op and dtype; every array `[rows]`."""

    kind: Kind
    system: str
    dtype: str
    axes: Mapping[str, Ints]
    seconds: Floats
    """Measured."""
    test: Mask
    """Kept out of the fit."""
    core: Mask
    """Of the subset `core`; the others are `edge`."""
    index: Ints
    """Place in the file."""

    def rows(self, keep: Mask) -> "Column":
        """The rows where `keep` holds."""
        return Column(
            kind=self.kind,
            system=self.system,
            dtype=self.dtype,
            axes={name: values[keep] for name, values in self.axes.items()},
            seconds=self.seconds[keep],
            test=self.test[keep],
            core=self.core[keep],
            index=self.index[keep],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file: its rows as text, and as columns."""

    kind: Kind
    header: list[str]
    texts: list[list[str]]
    columns: list[Column]


def read(path: Path, kind: Kind, quarter: int = 0) -> Table:
    """The measurements in a CSV file, plain or gzip; one `quarter` of the shapes is kept out of fits.

    Raises BadInputError with the file, the line and what is wrong.
    """
    header, texts = _lines(path)
    wanted = ("system", "measured_ms", *AXES[kind], *(("dtype",) if kind == "gemm" else ()))
    missing = [name for name in wanted if name not in header]
    if missing:
        raise BadInputError(f"{path}: no column {missing[0]!r}; a {kind} file has {', '.join(wanted)}")
    place = {name: header.index(name) for name in wanted}
    _check(path, header, texts)
    systems = _closed(path, [row[place["system"]] for row in texts], SYSTEMS, "system")
    dtypes = _closed(path, [row[place["dtype"]] for row in texts], tuple(DTYPES), "dtype") if kind == "gemm" else ["bfloat16"] * len(texts)
    axes = {name: _numbers(path, texts, place[name], name) for name in AXES[kind]}
    seconds = _numbers(path, texts, place["measured_ms"], "measured_ms") * 1e-3
    whole = {name: _whole(path, name, values) for name, values in axes.items()}
    if kind == "decode":
        for i in np.flatnonzero(whole["heads"] % whole["kv_heads"]):
            raise BadInputError(f"{path}:{i + 2}: heads {whole['heads'][i]} are no multiple of kv_heads {whole['kv_heads'][i]}")
    test = np.array([_held_out(kind, row, quarter) for row in zip(*whole.values(), strict=True)], dtype=np.bool_)
    groups = dict.fromkeys(zip(systems, dtypes, strict=True))
    columns = []
    for system, dtype in sorted(groups):
        keep = np.array([pair == (system, dtype) for pair in zip(systems, dtypes, strict=True)], dtype=np.bool_)
        mine = {name: values[keep] for name, values in whole.items()}
        columns.append(
            Column(
                kind=kind,
                system=system,
                dtype=dtype,
                axes=mine,
                seconds=seconds[keep],
                test=test[keep],
                core=core(kind, system, dtype, mine),
                index=np.flatnonzero(keep),
            )
        )
    return Table(kind=kind, header=header, texts=texts, columns=columns)


def _lines(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows below it, as text."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            header, *texts = list(csv.reader(file)) or [[]]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error
    return header, texts


def _check(path: Path, header: list[str], texts: list[list[str]]) -> None:
    """There are rows, and each has the fields of the header."""
    if not texts:
        raise BadInputError(f"{path}: no rows below the header")
    for line, row in enumerate(texts, 2):
        if len(row) != len(header):
            raise BadInputError(f"{path}:{line}: {len(row)} fields, the header has {len(header)}")


def core(kind: Kind, system: str, dtype: str, axes: Mapping[str, Ints]) -> Mask:
    """Rows of the subset `core`: data-centre boards, and RTX PRO 6000 GEMMs too large for its L2 or with many rows."""
    if kind == "gemm":
        large = (axes["n"] * axes["k"] * DTYPES[dtype] > CORE_WEIGHTS) | (axes["m"] >= 1024)
        return np.asarray(large | (system in CORE_SYSTEMS), dtype=np.bool_)
    full = (axes["window_size"] == 0) & (axes["heads"] <= 16 * axes["kv_heads"]) & (axes["T"] >= 256)
    return np.asarray(full & (system in CORE_SYSTEMS), dtype=np.bool_)


def _held_out(kind: Kind, shape: tuple[int, ...], quarter: int = 0) -> bool:
    return zlib.crc32(f"{kind}:{','.join(map(str, shape))}".encode()) % TEST_SHARE == quarter


def _closed(path: Path, values: list[str], allowed: tuple[str, ...], what: str) -> list[str]:
    for line, value in enumerate(values, 2):
        if value not in allowed:
            raise BadInputError(f"{path}:{line}: {what} {value!r}; allowed: {', '.join(allowed)}")
    return values


def _numbers(path: Path, texts: list[list[str]], place: int, name: str) -> Floats:
    out = np.empty(len(texts))
    for i, row in enumerate(texts):
        try:
            out[i] = float(row[place])
        except ValueError as error:
            raise BadInputError(f"{path}:{i + 2}: {name} {row[place]!r} is no number") from error
        if not np.isfinite(out[i]) or out[i] < 0 or (out[i] == 0 and name != "window_size"):
            raise BadInputError(f"{path}:{i + 2}: {name} {row[place]!r}; it must be positive")
    return out


def _whole(path: Path, name: str, values: Floats) -> Ints:
    bad = np.flatnonzero((values != np.floor(values)) | (values > LARGEST))
    if len(bad):
        raise BadInputError(f"{path}:{bad[0] + 2}: {name} {values[bad[0]]:g}; it must be a whole number, at most {LARGEST}")
    return values.astype(np.int64)
