"""The first page that the Hub's viewer shows of a split: its size as JSON, and which columns it cuts.

The viewer takes the first ten rows; where their JSON exceeds its limit it goes through them from the last and cuts every cell above 100
bytes until the rest fits. https://github.com/huggingface/dataset-viewer/blob/main/libs/libcommon/src/libcommon/viewer_utils/rows.py
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS: Final = 10
MAX_BYTES: Final = 200_000
CELL_BYTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first page of a split."""

    config: str
    split: str
    rows: int
    json_bytes: int
    """Of the rows before anything is cut."""
    cut: tuple[str, ...]
    """Columns with cells that are cut, in order of the schema."""
    shown: tuple[dict[str, Any], ...]
    """The rows, whole."""

    def __str__(self) -> str:
        cut = f"cells of {', '.join(self.cut)} are cut" if self.cut else "nothing is cut"
        return f"{self.config}/{self.split}: first {self.rows} rows {self.json_bytes:,} bytes, {cut}"


def first_rows(paths: Sequence[Path], config: str, split: str) -> Preview:
    """The first page of the split that lies in `paths`."""
    tables: list[pa.Table] = []
    for path in paths:
        if sum(table.num_rows for table in tables) >= ROWS:
            break
        with pq.ParquetFile(path) as file:
            tables += [pa.Table.from_batches([batch]) for batch in _first(file.iter_batches(batch_size=ROWS))]
    table = pa.concat_tables(tables).slice(0, ROWS)
    rows = table.to_pylist()
    sizes = [{name: _size(value) for name, value in row.items()} for row in rows]
    total = sum(sum(cells.values()) for cells in sizes)
    left, cut = total, set()
    for cells in reversed(sizes):
        if left < MAX_BYTES:
            break
        over = {name: size for name, size in cells.items() if size > CELL_BYTES}
        left -= sum(over.values()) - CELL_BYTES * len(over)
        cut |= set(over)
    ordered = tuple(name for name in table.schema.names if name in cut)
    return Preview(config=config, split=split, rows=len(rows), json_bytes=total, cut=ordered, shown=tuple(rows))


def _first(batches: Any) -> list[Any]:
    return [batch for batch in [next(iter(batches), None)] if batch is not None]


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
