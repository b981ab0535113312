"""Mutated exports: each fault that readers or the viewer would stumble over must be found, whatever the first rows look like."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from generator import cli, preview, viewer
from generator.build import Request, build
from generator.errors import InputError
from generator.parquet import ENCODING
from generator.release import Release
from schema import vocab
from schema.arrow import CONFIGS

TRAIN = "default/train-00002-of-00003.parquet"
HOLDOUT = "holdout/test-00000-of-00001.parquet"


def rewrite(folder, change, name=TRAIN, **encoding):
    """Write a shard again after `change`, and let the manifest agree: the fault must be seen in the file itself."""
    table = change(pq.read_table(folder / name))
    pq.write_table(table, folder / name, **(ENCODING | encoding))
    path = folder / "manifest.json"
    found = json.loads(path.read_text())
    for splits in found["configs"].values():
        for shard in (shard for split in splits.values() for shard in split["shards"]):
            if shard["name"] == name:
                shard["sha256"] = viewer._sha256(folder / name)
    path.write_text(json.dumps(found))


def cast(name, kind=None, nullable=False):
    """Replace the type or nullability of one column."""

    def change(table):
        field = table.schema.field(name)
        place = table.schema.get_field_index(name)
        return table.set_column(place, pa.field(name, kind or field.type, nullable=nullable), table[name].cast(kind or field.type))

    return change


def put(name, value):
    """Replace the last value of a column of reals."""

    def change(table):
        values = [*table[name].to_pylist()[:-1], value]
        return table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(values, pa.float64()))

    return change


def inner_nan(table):
    """NaN in the last message of the last row."""
    rows = table.to_pylist()
    rows[-1]["messages"][-1]["time_ms"] = float("nan")
    return pa.Table.from_pylist(rows, schema=table.schema)


def inner_int(table):
    """Times of messages as float32: a type that only a look inside the lists tells."""
    messages = table.schema.field("messages")
    fields = [field.with_type(pa.float32()) if field.name == "time_ms" else field for field in messages.type.value_type]
    kind = pa.list_(pa.field("element", pa.struct(fields), nullable=False))
    return table.set_column(
        table.schema.get_field_index("messages"), pa.field("messages", kind, nullable=False), table["messages"].cast(kind)
    )


def edit(pattern, replacement, count=1):
    """Change the README."""

    def change(folder):
        text = (folder / "README.md").read_text(encoding="utf-8")
        changed, times = re.subn(pattern, replacement, text, count=count, flags=re.DOTALL)
        assert times
        (folder / "README.md").write_text(changed, encoding="utf-8")

    return change


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def shards(change, **options):
    return lambda folder: rewrite(folder, change, **options)


def copy_of(name, new):
    return lambda folder: shutil.copy(folder / name, folder / new)


def same(table):
    return table


MUTATIONS = {
    "no README": (lambda folder: (folder / "README.md").unlink(), "README.md", "cannot be read"),
    "no YAML": (edit(r"^---.*?\n---\n", ""), "README.md", "no `configs`"),
    "broken YAML": (edit("pretty_name:", "pretty_name: ]["), "README.md", "cannot be read"),
    "no configs": (edit(r"\nconfigs:\n.*?\n---\n", "\n---\n"), "README.md", "no `configs`"),
    "no default": (edit("  default: true\n", ""), "README.md", "the default config is"),
    "other files": (edit("path: default/train-", "path: train-"), "README.md", "name other files"),
    "no dataset_info": (edit(r"\ndataset_info:\n.*?\nconfigs:", "\nconfigs:"), "README.md", "dataset_info has"),
    "stale split size": (edit("num_examples: 68", "num_examples: 69"), "README.md", "the splits are stated as"),
    "stale download size": (edit(r"download_size: \d+", "download_size: 1"), "README.md", "download_size is stated"),
    "stale dataset size": (edit(r"dataset_size: \d+", "dataset_size: 1"), "README.md", "dataset_size is not the sum"),
    "another feature type": (
        edit("name: speedup\n    dtype: float64", "name: speedup\n    dtype: float32"),
        "README.md",
        "the features are not",
    ),
    "a feature that old versions lack": (edit("name: n_agents\n    dtype: int64", "name: n_agents\n    dtype: json"), "README.md", "."),
    "no license": (edit(r"license: \S+\n", ""), "README.md", "no license"),
    "a missing shard": (lambda folder: (folder / TRAIN).unlink(), "default/train", "the shards are not"),
    "a shard of another count": (rename(TRAIN, "default/train-00002-of-00004.parquet"), "default/train", "the shards are not"),
    "a stale shard": (copy_of(TRAIN, "default/train-00003-of-00004.parquet"), "default/train", "the shards are not"),
    "a shard of another name": (rename(TRAIN, "default/train-2.parquet"), "default/train-2.parquet", "not a name of a shard"),
    "data of another kind": (copy_of("stats.json", "default/train-x.json"), "default/train-x.json", "not a name of a shard"),
    "a stray split": (copy_of(TRAIN, "holdout/train-00000-of-00001.parquet"), "holdout/train-00000-of-00001.parquet", "not a name"),
    "a root script": (lambda folder: (folder / "kernelswarm.py").touch(), "kernelswarm.py", "refuse the whole repository"),
    "a stray file": (copy_of("stats.json", "data.json"), "data.json", "no build writes this"),
    "an unfinished build": (lambda folder: (folder / ".build").mkdir(), ".build", "cut short"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json", "no readable manifest"),
    "an empty shard": (shards(lambda table: table.slice(0, 0)), TRAIN, "no rows"),
    "fewer rows": (shards(lambda table: table.slice(0, 3)), "README.md", "the splits are stated as"),
    "a truncated file": (lambda folder: (folder / TRAIN).write_bytes((folder / TRAIN).read_bytes()[:-9]), TRAIN, "cannot be read"),
    "another file": (lambda folder: shutil.copy(folder / "default/train-00000-of-00003.parquet", folder / TRAIN), TRAIN, "SHA-256 differs"),
    "a missing column": (shards(lambda table: table.drop_columns(["floor_ms"])), TRAIN, "missing ['floor_ms']"),
    "an extra column": (shards(lambda table: table.append_column("x", [[1] * len(table)])), TRAIN, "extra ['x']"),
    "another order": (shards(lambda table: table.select(table.schema.names[::-1])), TRAIN, "another order"),
    "int32": (shards(cast("seed", pa.int32())), TRAIN, "another type or nullability than schema/arrow.py: seed"),
    "integers for reals": (shards(lambda table: cast("elapsed_s", pa.int64())(whole(table))), TRAIN, "schema/arrow.py: elapsed_s"),
    "large strings": (shards(cast("op", pa.large_string())), TRAIN, "schema/arrow.py: op"),
    "a nullable column": (shards(cast("op", nullable=True)), TRAIN, "schema/arrow.py: op"),
    "a type inside a list": (shards(inner_int), TRAIN, "schema/arrow.py: messages"),
    "a null type": (shards(lambda table: table.set_column(17, "floor_ms", pa.nulls(len(table)))), TRAIN, "schema/arrow.py: floor_ms"),
    "metadata of datasets": (shards(lambda table: table.replace_schema_metadata({"huggingface": "{}"})), TRAIN, "metadata"),
    "NaN": (shards(put("speedup", float("nan"))), TRAIN, "NaN or infinity in speedup"),
    "infinity": (shards(put("floor_ms", float("inf"))), TRAIN, "NaN or infinity in floor_ms"),
    "NaN inside a list": (shards(inner_nan), TRAIN, "NaN or infinity in messages.time_ms"),
    "no page index": (shards(same, write_page_index=False), TRAIN, "no page index"),
    "NaN in the holdout": (shards(put("baseline_ms", float("nan")), name=HOLDOUT), HOLDOUT, "NaN or infinity in baseline_ms"),
}


def whole(table):
    return table.set_column(
        table.schema.get_field_index("elapsed_s"), table.schema.field("elapsed_s"), pc.round(table["elapsed_s"]).combine_chunks()
    )


@pytest.fixture
def folder(export, tmp_path):
    shutil.copytree(export, tmp_path / "kernelswarm")
    return tmp_path / "kernelswarm"


def test_a_build_has_no_findings(export):
    assert viewer.check(export) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_export_is_caught(folder, name):
    mutate, where, what = MUTATIONS[name]
    mutate(folder)
    found = viewer.check(folder)
    assert [finding for finding in found if finding.where == where and what in finding.what], [str(finding) for finding in found]


def test_big_row_groups_are_caught(export, monkeypatch):
    monkeypatch.setattr(viewer, "ROW_GROUP_BYTES", 500_000)
    found = viewer.check(export)
    assert {finding.where for finding in found} == {f"default/{path.name}" for path in (export / "default").iterdir()}
    assert all("row group 0 has" in finding.what for finding in found)


def test_too_many_columns_are_caught(export, monkeypatch):
    monkeypatch.setattr(viewer, "COLUMNS", 20)
    assert any("leaf columns" in finding.what for finding in viewer.check(export))


def test_a_link_is_caught(folder):
    (folder / TRAIN).rename(folder.parent / "elsewhere")
    (folder / TRAIN).symlink_to(folder.parent / "elsewhere")
    assert viewer.Finding(TRAIN, "a link, not a file") in viewer.check(folder)


def test_a_scalar_that_the_viewer_cuts_is_caught(export, monkeypatch):
    monkeypatch.setattr(preview, "CELL_BYTES", 30)
    assert any("cuts episode_id" in finding.what for finding in viewer.check(export))


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        viewer.check(tmp_path / "missing")


def test_the_preview_is_as_the_card_says(export):
    shown = {f"{page.config}/{page.split}": page for page in viewer.previews(export)}
    train = shown["default/train"]
    assert train.rows == preview.ROWS
    assert train.json_bytes > preview.MAX_BYTES
    assert "messages" in train.cut
    assert not [name for name in train.cut if not pa.types.is_nested(CONFIGS["default"].field(name).type)]
    assert shown["holdout/test"].cut == ()
    rows = train.shown
    assert {row["scenario"] for row in rows} == set(vocab.SCENARIOS)
    assert len({row["op"] for row in rows}) >= 5


def test_the_preview_takes_the_first_rows_across_shards(export, tmp_path):
    table = pq.read_table(export / "default/train-00000-of-00003.parquet").slice(0, 12)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(table.slice(0, 7), paths[0])
    pq.write_table(table.slice(7), paths[1])
    assert list(preview.first_rows(paths, "default", "train").shown) == table.slice(0, 10).to_pylist()


def test_small_rows_are_not_cut(tmp_path):
    pq.write_table(pa.table({"x": ["a" * 500] * 3}), tmp_path / "x.parquet")
    page = preview.first_rows([tmp_path / "x.parquet"], "default", "train")
    assert (page.rows, page.json_bytes, page.cut) == (3, 3 * 502, ())


def test_rows_are_cut_from_the_last_on(tmp_path):
    pq.write_table(pa.table({"x": ["a" * 150_000, "b" * 60_000, "c"], "y": ["a" * 200, "b", "c"]}), tmp_path / "x.parquet")
    assert preview.first_rows([tmp_path / "x.parquet"], "default", "train").cut == ("x",)


def test_the_command_tells_and_exits(capsys, export, folder):
    assert cli.main(["check", "--viewer", str(export)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("default/train: first 10 rows ")
    assert out[-1] == f"{export}: 0 findings"
    (folder / "kernelswarm.py").touch()
    assert cli.main(["check", "--viewer", str(folder)]) == 1
    assert "kernelswarm.py: a script at the root" in capsys.readouterr().out


def test_a_build_without_validation_has_no_findings(tmp_path):
    build(Request(out=tmp_path / "out", release=Release(episodes=4, validation=0, ops=("rope",)), figures=True))
    assert viewer.check(tmp_path / "out") == []
