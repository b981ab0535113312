"""Digests over Arrow values: equal for equal rows, whatever the chunks, row groups, shards, codec or writer.

A row is hashed level by level: the row itself, then the elements of each list, depth first in schema order. A level gives one fixed-width
record per element (per leaf: a presence byte where the schema allows null, then the value, little-endian; for a string or list its
length), then the UTF-8 bytes of each string leaf in turn. Whatever is absent counts as zeros, so no byte behind a null is ever seen.
A split's digest is SHA-256 over its column list and its row digests in order, so it can be joined from shards of any size.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROW_BYTES: Final = 32
"""Length of the digest of one row."""

_KIND: Final = {pa.StructType: "struct", pa.ListType: "list"}


@dataclass(slots=True, kw_only=True)
class _Level:
    """The elements of one list level: where each row's begin, their fixed-width columns and their strings."""

    starts: npt.NDArray[np.int64]
    """`[rows + 1]`: row r has elements `starts[r]` to `starts[r + 1]`."""
    columns: list[npt.NDArray[np.generic]] = field(default_factory=list)
    strings: list[tuple[memoryview, npt.NDArray[np.int64]]] = field(default_factory=list)
    """Bytes of a string leaf, and where each row's begin, `[rows + 1]`."""


def row_digests(table: pa.Table) -> bytes:
    """SHA-256 of every row, joined: `[rows * ROW_BYTES]` bytes."""
    return b"".join(digest for batch in table.to_batches() for digest in _batch_digests(batch))


def split_digest(schema: pa.Schema, rows: Iterable[bytes]) -> str:
    """Digest of a split as hex, from its row digests in order, joined in pieces of any size."""
    total = hashlib.sha256("\n".join(_leaves("", pa.struct(list(schema)))).encode())
    for piece in rows:
        total.update(piece)
    return total.hexdigest()


def table_digest(table: pa.Table) -> str:
    """Digest of a whole table as hex."""
    return split_digest(table.schema, [row_digests(table)])


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """One line per field below `kind`, such as `messages[].params.block_m: int64 null`."""
    if isinstance(kind, pa.ListType):
        yield from _leaves(f"{path}[]", kind.value_type)
    elif isinstance(kind, pa.StructType):
        for item in (kind.field(i) for i in range(kind.num_fields)):
            name = f"{path}.{item.name}".lstrip(".")
            yield f"{name}: {_KIND.get(type(item.type), item.type)} {'null' if item.nullable else 'strict'}"
            yield from _leaves(name, item.type)


def _batch_digests(batch: pa.RecordBatch) -> Iterator[bytes]:
    rows = batch.num_rows
    levels = [_Level(starts=np.arange(rows + 1, dtype=np.int64))]
    for item, column in zip(batch.schema, batch.columns, strict=True):
        _add(item, column, levels[0], levels)
    pieces = [piece for level in levels for piece in _pieces(level)]
    for row in range(rows):
        digest = hashlib.sha256()
        for data, starts in pieces:
            digest.update(data[starts[row] : starts[row + 1]])
        yield digest.digest()


def _add(item: pa.Field, array: pa.Array, level: _Level, levels: list[_Level]) -> None:
    """Append the columns of one field to its level, opening further levels for lists. Null structs have made their children null."""
    if item.nullable:
        level.columns.append(_numpy(pc.is_valid(array), np.uint8))
    if isinstance(array, pa.StructArray):
        for i, child in enumerate(array.flatten()):
            _add(array.type.field(i), child, level, levels)
    elif isinstance(array, pa.ListArray):
        lengths = _lengths(pc.list_value_length(array))
        level.columns.append(lengths)
        below = _Level(starts=_starts(lengths)[level.starts])
        levels.append(below)
        _add(array.type.value_field, array.flatten(), below, levels)
    elif pa.types.is_string(array.type):
        lengths = _lengths(pc.binary_length(array))
        level.columns.append(lengths)
        level.strings.append((_string_bytes(array), _starts(lengths)[level.starts]))
    else:
        level.columns.append(_values(array))


def _pieces(level: _Level) -> Iterator[tuple[memoryview, list[int]]]:
    """What each row hashes of a level: its records, then the bytes of each string leaf, with the row's bounds in bytes."""
    if level.columns:
        kind = np.dtype([(f"f{i}", column.dtype) for i, column in enumerate(level.columns)])
        records = np.empty(len(level.columns[0]), dtype=kind)
        for i, column in enumerate(level.columns):
            records[f"f{i}"] = column
        yield records.view(np.uint8).data, (level.starts * kind.itemsize).tolist()
    for data, starts in level.strings:
        yield data, starts.tolist()


def _values(array: pa.Array) -> npt.NDArray[np.generic]:
    if pa.types.is_boolean(array.type):
        return _numpy(array.fill_null(False) if array.null_count else array, np.uint8)
    if array.type not in (pa.int64(), pa.float64()):
        raise TypeError(f"no digest is defined for {array.type}; the tables hold int64, double, bool, string, list and struct")
    filled = array.fill_null(0) if array.null_count else array
    return _numpy(filled, np.dtype("<i8") if array.type == pa.int64() else np.dtype("<f8"))


def _string_bytes(array: pa.Array) -> memoryview:
    """The bytes of all strings, end to end, nothing of null slots among them."""
    compact = array.fill_null("") if array.null_count else array
    _, offsets, data = compact.buffers()
    if data is None or offsets is None or len(compact) == 0:
        return memoryview(b"")
    ends = np.frombuffer(memoryview(offsets), dtype=np.int32)[compact.offset : compact.offset + len(compact) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    filled = lengths.fill_null(0) if lengths.null_count else lengths
    found: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _numpy(array: pa.Array, kind: npt.DTypeLike) -> npt.NDArray[np.generic]:
    found: npt.NDArray[np.generic] = array.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    return found
