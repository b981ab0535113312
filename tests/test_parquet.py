import json

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from generator import files, manifest, parquet, stats
from generator.digest import row_digests, split_digest, table_digest
from generator.parquet import SchemaError, Shard, plan, read_rows, shard_name, write_rows
from generator.release import Release
from schema.arrow import CONFIGS, EPISODES


def shard(folder, table, number=0, count=1):
    return Shard(release=Release(), folder=folder, config="default", split="train", number=number, count=count, start=0, stop=len(table))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, train):
    """250 rows in one file."""
    folder = tmp_path_factory.mktemp("whole")
    write_rows(shard(folder, train.slice(0, 250)), train.slice(0, 250))
    return folder / shard_name("default", "train", 0, 1)


def test_shards_are_named_numbered_and_never_empty(tmp_path):
    shards = plan(Release(episodes=68, validation=10), tmp_path, 30)
    assert [(s.name, s.rows) for s in shards[:4]] == [
        ("default/train-00000-of-00003.parquet", 30),
        ("default/train-00001-of-00003.parquet", 30),
        ("default/train-00002-of-00003.parquet", 8),
        ("default/validation-00000-of-00001.parquet", 10),
    ]
    assert shards[4].name == "holdout/test-00000-of-00001.parquet"
    assert not [s for s in plan(Release(episodes=68, validation=0), tmp_path, 400) if s.split == "validation"]


@pytest.mark.parametrize("filters", [{}, {"ops": ("rmsnorm",)}, {"gpus": ("a10", "h200")}, {"ops": ("rope",), "gpus": ("a100",)}])
def test_planned_holdout_rows_are_the_built_ones(tmp_path, filters):
    release = Release(**filters)
    planned = [s for s in plan(release, tmp_path, 400) if s.config == "holdout"]
    assert [s.rows for s in planned] == [parquet.build_holdout(release).num_rows]


def test_a_file_has_exactly_the_contracts_schema_and_no_metadata(export):
    for config, schema in CONFIGS.items():
        for path in (export / config).iterdir():
            file = pq.ParquetFile(path)
            assert file.schema_arrow.equals(schema, check_metadata=True)
            assert set(file.metadata.metadata) == {b"ARROW:schema"}


def test_row_groups_pages_and_codec(whole):
    metadata = pq.ParquetFile(whole).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [100, 100, 50]
    assert all(group.total_byte_size < 100e6 for group in groups)
    for group in groups:
        columns = [group.column(i) for i in range(group.num_columns)]
        assert all(column.has_offset_index for column in columns)
        # Bounds beyond 4 kB are not stored, and a page of sources may have no shorter ones.
        assert {c.path_in_schema for c in columns if not c.has_column_index} <= {"messages.list.element.content"}
        assert {column.compression for column in columns} == {"ZSTD"}


def test_values_come_back(whole, train):
    assert pq.read_table(whole).equals(train.slice(0, 250).combine_chunks())


@pytest.mark.parametrize("size", [1, 7, 100, 249])
def test_digest_does_not_depend_on_cuts(train, size):
    table = train.slice(0, 250)
    pieces = [row_digests(table.slice(start, size)) for start in range(0, 250, size)]
    assert split_digest(EPISODES, pieces) == table_digest(table)
    assert table_digest(pa.concat_tables([table.slice(0, size), table.slice(size)])) == table_digest(table)


def test_digest_does_not_depend_on_the_file(whole, train, tmp_path):
    table = train.slice(0, 250)
    pq.write_table(table, tmp_path / "other.parquet", compression="gzip", row_group_size=33, use_dictionary=False)
    assert table_digest(pq.read_table(tmp_path / "other.parquet")) == table_digest(pq.read_table(whole)) == table_digest(table)


def test_digest_ignores_what_lies_behind_nulls():
    kind = pa.struct([pa.field("a", pa.int64()), pa.field("s", pa.string())])
    schema = pa.schema([pa.field("x", kind), pa.field("n", pa.int64())])
    mask = pa.array([False, True])
    dirty = pa.StructArray.from_arrays([pa.array([1, 77]), pa.array(["a", "garbage"])], fields=list(kind), mask=mask)
    number = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer((5).to_bytes(8, "little") + (9).to_bytes(8, "little"))]
    )
    clean = pa.table([pa.array([{"a": 1, "s": "a"}, None], kind), pa.array([5, None])], schema=schema)
    assert table_digest(pa.table([dirty, number], schema=schema)) == table_digest(clean)
    zeros = pa.table([pa.array([{"a": 1, "s": "a"}, {"a": 0, "s": ""}], kind), pa.array([5, 0])], schema=schema)
    assert table_digest(zeros) != table_digest(clean)


def leaves(value, path=()):
    """Paths to everything in a row that is not a container, one element per list."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        yield from leaves(value[-1], (*path, len(value) - 1))
    else:
        yield path


def changed(value):
    match value:
        case None:
            return None
        case bool():
            return not value
        case str():
            return value + "x"
        case _:
            return value + 1


def test_digest_sees_every_value(rows):
    table = pa.Table.from_pylist(rows[:1], schema=EPISODES)
    seen = {table_digest(table)}
    paths = list(leaves(rows[0]))
    for path in paths:
        row = json.loads(json.dumps(rows[0]))
        place = row
        for key in path[:-1]:
            place = place[key]
        if place[path[-1]] is None:
            continue
        place[path[-1]] = changed(place[path[-1]])
        seen.add(table_digest(pa.Table.from_pylist([row], schema=EPISODES)))
    filled = sum(1 for path in paths if _at(rows[0], path) is not None)
    assert len(seen) == filled + 1


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def test_text_cannot_slide_between_fields():
    text = pa.field("element", pa.string(), nullable=False)
    schema = pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.list_(text), nullable=False)])
    cases = [("xy", ["z"]), ("x", ["yz"]), ("x", ["y", "z"]), ("xyz", []), ("xyz", [""])]
    tables = [pa.table([[a], [b]], schema=schema) for a, b in cases]
    assert len({table_digest(table) for table in tables}) == len(tables)


def test_types_without_a_digest_are_refused():
    with pytest.raises(TypeError, match="no digest is defined for float"):
        table_digest(pa.table({"x": pa.array([1.0], pa.float32())}))


def wrong_tables(table):
    yield "a nullable column", table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    yield "metadata", table.replace_schema_metadata({"huggingface": "{}"})
    yield "a missing column", table.drop_columns(["index"])
    yield "another order", table.select(list(reversed(table.schema.names)))
    yield (
        "another type",
        table.set_column(
            table.schema.get_field_index("seed"), pa.field("seed", pa.int32(), nullable=False), table["seed"].cast(pa.int32())
        ),
    )
    yield "no rows", table.slice(0, 0)


@pytest.mark.parametrize("number", range(6))
def test_wrong_tables_are_refused_and_nothing_is_written(tmp_path, sample, number):
    name, table = list(wrong_tables(sample))[number]
    with pytest.raises(SchemaError):
        write_rows(shard(tmp_path, table), table)
    assert not list(tmp_path.rglob("*")), name


def test_an_error_while_writing_leaves_nothing(tmp_path):
    (tmp_path / "kept").write_bytes(b"old")
    with pytest.raises(TypeError), files.replacing(tmp_path / "kept") as stream:
        stream.writelines([b"half", "not bytes"])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


@pytest.mark.parametrize(("start", "stop"), [(0, 68), (0, 1), (29, 31), (30, 60), (59, 68)])
def test_rows_are_read_across_shards(export, sample, start, stop):
    shards = manifest.shards(manifest.read(export), "default", "train")
    assert read_rows(export, shards, start, stop).equals(sample.slice(start, stop - start).combine_chunks())


def test_manifest_says_what_lies_there_and_nothing_of_how(export, sample):
    found = manifest.read(export)
    assert list(found) == ["dataset", "dataset_version", "release", "digest", "configs", "versions"]
    assert list(found["versions"]) == ["kernelswarm", "numpy", "pyarrow"]
    train = found["configs"]["default"]["train"]
    assert train["rows"] == 68
    assert train["digest"] == table_digest(sample)
    assert manifest.damage(export, found) == []
    for split in found["configs"]["default"].values():
        assert all((export / s["name"]).stat().st_size == s["bytes"] for s in split["shards"])


def test_statistics_do_not_depend_on_shards(train):
    table = train.slice(0, 250)
    for size in (7, 100):
        parts = [stats.tally(table.slice(start, size)) for start in range(0, 250, size)]
        assert stats.summarise(parts) == stats.summarise([stats.tally(table)])


def test_statistics_are_those_of_the_rows(sample, rows):
    found = stats.summarise([stats.tally(sample)])
    messages = [message for row in rows for message in row["messages"]]
    assert found["messages"] == len(messages)
    assert found["mean_specialists"] == pytest.approx(sum(row["n_agents"] for row in rows) / len(rows), abs=1e-3)
    assert found["reward"]["total"] == pytest.approx(sum(message["reward"] for message in messages), abs=1e-5)
    assert found["counts"]["kind"]["verdict"] == len(rows)
    assert sum(found["counts"]["status"].values()) == found["counts"]["kind"]["result"]
    assert found["speedup"]["max"] == pc.max(sample["speedup"]).as_py()


def test_duckdb_reads_structs_by_name(export, sample):
    found = duckdb.sql(f"SELECT count(shape.M), sum(len(messages)) FROM '{export}/default/train-*.parquet'").fetchall()[0]
    sizes = sample["shape"].combine_chunks().field("M")
    assert found == (len(sizes) - sizes.null_count, pc.sum(sample["num_messages"]).as_py())
