"""Parquet shards: their names, their encoding, and the receipt each leaves.

One shard is one call of a pure function of its `Shard`, so where it runs does not matter. Tables must equal the contract's schema to the
last nullability before they are written; a shard is rendered whole and put into place in one step.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from generator import places, stats
from generator.digest import row_digests, split_digest
from generator.episodes import build_range
from generator.errors import DataError
from generator.holdout import build_holdout
from generator.release import Release, held_out_shapes, held_out_triples
from schema.arrow import CONFIGS

SHARD_SIZE: Final = 400
"""Episodes a shard holds unless told otherwise: about 45 MB in memory, under 2 MB on disk."""

ENCODING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "row_group_size": 100,
    "write_page_index": True,
    "use_content_defined_chunking": True,
    # One source is submitted many times: a dictionary page that holds a whole row group's sources halves file and time.
    "dictionary_pagesize_limit": 16 << 20,
}
"""Arguments of `pq.write_table`: small pages and row groups for viewers, chunking so that a re-upload sends only what changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file to write: rows `start` to `stop` of a split of a config, as number `number` of `count`."""

    release: Release
    folder: Path | str
    """A folder, or an fsspec URL."""
    config: str
    split: str
    number: int
    count: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Path below the folder: `default/train-00000-of-00006.parquet`."""
        return shard_name(self.config, self.split, self.number, self.count)

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was written for one shard; enough for the manifest, the statistics and the card."""

    config: str
    split: str
    name: str
    rows: int
    file_bytes: int
    arrow_bytes: int
    sha256: str
    row_digests: bytes
    tally: stats.Tally | None

    @property
    def digest(self) -> str:
        """Digest of the shard's rows as hex."""
        return split_digest(CONFIGS[self.config], [self.row_digests])


class SchemaError(DataError):
    """A table is not of the contract's schema."""


def shard_name(config: str, split: str, number: int, count: int) -> str:
    return f"{config}/{split}-{number:05d}-of-{count:05d}.parquet"


def plan(release: Release, folder: Path | str, shard_size: int) -> list[Shard]:
    """Every shard of a release, `default` first, none of them empty."""
    shards = []
    for split, rows in release.splits().items():
        count = -(-rows // shard_size)
        for number in range(count):
            start = number * shard_size
            stop = min(start + shard_size, rows)
            shard = Shard(release=release, folder=folder, config="default", split=split, number=number, count=count, start=start, stop=stop)
            shards.append(shard)
    rows = _holdout_rows(release)
    if rows:
        shards.append(Shard(release=release, folder=folder, config="holdout", split="test", number=0, count=1, start=0, stop=rows))
    return shards


def _holdout_rows(release: Release) -> int:
    """Held-out tasks that pass the filters, without pricing them."""
    return sum(
        (not release.ops or task.op.name in release.ops) and (not release.gpus or task.gpu.name in release.gpus)
        for task in (*held_out_triples(), *held_out_shapes())
    )


def write_shard(shard: Shard) -> Receipt:
    """Build the rows of a shard and write its file."""
    holdout = shard.config == "holdout"
    return write_rows(shard, build_holdout(shard.release) if holdout else build_range(shard.release, shard.split, shard.start, shard.stop))


def write_rows(shard: Shard, table: pa.Table) -> Receipt:
    """Write the finished rows of a shard."""
    rendered = memoryview(render(table, CONFIGS[shard.config]))
    places.place(shard.folder).write(shard.name, rendered)
    return Receipt(
        config=shard.config,
        split=shard.split,
        name=shard.name,
        rows=table.num_rows,
        file_bytes=len(rendered),
        arrow_bytes=table.nbytes,
        sha256=hashlib.sha256(rendered).hexdigest(),
        row_digests=row_digests(table),
        tally=stats.tally(table) if shard.split == "train" else None,
    )


def render(table: pa.Table, schema: pa.Schema) -> pa.Buffer:
    """A whole Parquet file. Raises SchemaError unless the table has exactly `schema` and at least one row."""
    if not table.schema.equals(schema, check_metadata=True):
        differing = [str(a) for a, b in zip(table.schema, schema, strict=False) if not a.equals(b, check_metadata=True)]
        found = "; ".join(differing) or f"{len(table.schema)} columns, metadata {table.schema.metadata}"
        raise SchemaError(
            "a table is not of the contract's schema", found, "the fields of schema/arrow.py, no metadata", "build it on the schema"
        )
    if table.num_rows == 0:
        raise SchemaError("a shard has no rows", 0, "1 and up", "leave it out: readers refuse such a file")
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **ENCODING)
    return sink.getvalue()


def read_rows(folder: Path, shards: Sequence[tuple[str, int]], start: int, stop: int) -> pa.Table:
    """Rows `start` to `stop` of a split whose files are `(name, rows)` in order; reads only the row groups that hold them."""
    return pa.concat_tables(_slices(folder, shards, start, stop)).combine_chunks()


def _slices(folder: Path, shards: Sequence[tuple[str, int]], start: int, stop: int) -> Iterator[pa.Table]:
    first = 0
    for name, rows in shards:
        if first < stop and start < first + rows:
            with pq.ParquetFile(folder / name) as file:
                for group in range(file.num_row_groups):
                    size = file.metadata.row_group(group).num_rows
                    low, high = max(start - first, 0), min(stop - first, size)
                    if low < high:
                        yield file.read_row_group(group).slice(low, high - low)
                    first += size
        else:
            first += rows
