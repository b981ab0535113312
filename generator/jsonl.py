"""The file layout of the original dataset: batches of 100 episodes, all episodes in one file, the held-out tasks, the statistics.

Written from the finished Parquet, one batch at a time, training rows only. Rows look like the original's: what does not apply is left
out of `shape`, `params` and messages instead of being null. An agent's `best_ms` stays null where it has none.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa

from generator import files
from generator.parquet import read_rows
from generator.stats import elements
from schema.vocab import PAYLOAD_FIELDS

FOLDER: Final = "jsonl"
BATCH: Final = 100
"""Episodes per batch file."""
EPISODES: Final = f"{FOLDER}/episodes.jsonl"
HOLDOUT: Final = f"{FOLDER}/tasks_holdout.jsonl"
STATS: Final = f"{FOLDER}/stats.json"

_ALWAYS: Final = ("role", "agent", "kind", "content", "t", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch file to write: rows `start` to `stop` of the training split, whose Parquet files are `shards` (name, rows)."""

    folder: Path
    shards: tuple[tuple[str, int], ...]
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{FOLDER}/batches/batch_{self.number:03d}.jsonl"

    @property
    def rows(self) -> int:
        return self.stop - self.start


def plan(folder: Path, shards: Sequence[tuple[str, int]]) -> list[Batch]:
    """The batches of a training split stored in `shards` (name, rows)."""
    rows = sum(count for _, count in shards)
    starts = range(0, rows, BATCH)
    return [
        Batch(folder=folder, shards=tuple(shards), number=number, start=start, stop=min(start + BATCH, rows))
        for number, start in enumerate(starts)
    ]


def write_batch(batch: Batch) -> Batch:
    """Write one batch file; returns the batch as its own receipt."""
    table = read_rows(batch.folder, batch.shards, batch.start, batch.stop)
    with files.replacing(batch.folder / batch.name) as stream:
        for row in episode_rows(table):
            stream.write(_line(row))
    return batch


def finish(folder: Path, batches: Sequence[Batch], holdout: Sequence[tuple[str, int]]) -> None:
    """Write everything but the batches, which must lie there: joined episodes, held-out tasks, and the statistics last."""
    with files.replacing(folder / EPISODES) as stream:
        for batch in batches:
            with (folder / batch.name).open("rb") as part:
                shutil.copyfileobj(part, stream, 1 << 20)
    rows = sum(count for _, count in holdout)
    if rows:
        table = read_rows(folder, holdout, 0, rows)
        files.write(folder / HOLDOUT, b"".join(_line(row) for row in task_rows(table)))
    files.write(folder / STATS, (folder / "stats.json").read_bytes())


def complete(folder: Path, shards: Sequence[tuple[str, int]]) -> bool:
    """Whether the layout of the training split in `shards` lies in `folder`; its statistics are written last."""
    names = [batch.name for batch in plan(folder, shards)] + [EPISODES, STATS]
    return all((folder / name).is_file() for name in names)


def episode_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows of the `default` config as the original would have written them."""
    messages = _messages(elements(table, "messages"))
    for row in table.drop_columns(["messages"]).to_pylist():
        row["shape"] = _present(row["shape"])
        row["messages"] = list(itertools.islice(messages, row["num_messages"]))
        yield {name: row[name] for name in table.schema.names}


def task_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows of the `holdout` config, absent axes left out."""
    for row in table.to_pylist():
        yield {**row, "shape": _present(row["shape"])}


def _messages(flat: pa.StructArray) -> Iterator[dict[str, Any]]:
    """Messages without what does not apply; column by column, as most of 37 fields are null."""
    always = [flat.field(name).to_pylist() for name in _ALWAYS]
    payload = [
        (name, _params(cast("pa.StructArray", flat.field(name))) if name == "params" else flat.field(name).to_pylist())
        for name in PAYLOAD_FIELDS
    ]
    for number, values in enumerate(zip(*always, strict=True)):
        message = dict(zip(_ALWAYS, values, strict=True))
        message.update((name, column[number]) for name, column in payload if column[number] is not None)
        yield message


def _params(array: pa.StructArray) -> list[dict[str, int] | None]:
    rows: list[dict[str, int] | None] = [{} if valid else None for valid in array.is_valid().to_pylist()]
    for field, column in zip(array.type, array.flatten(), strict=True):
        if column.null_count < len(column):
            for row, value in zip(rows, column.to_pylist(), strict=True):
                if row is not None and value is not None:
                    row[field.name] = value
    return rows


def _present(struct: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in struct.items() if value is not None}


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(", ", ": "), allow_nan=False).encode() + b"\n"
