import json

import pytest

from generator import build as building
from generator import folder, manifest
from generator.build import Request, build
from generator.errors import DataError, InputError
from generator.release import Release

SMALL = Release(episodes=3, validation=0, gpus=("h100", "h200", "a100"))


@pytest.fixture
def built(tmp_path):
    out = tmp_path / "out"
    build(Request(out=out, release=Release(episodes=4, validation=0)))
    return out


def tree(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_build_leaves_nothing_but_its_files(built):
    assert sorted(tree(built)) == [
        "README.md",
        "default/train-00000-of-00001.parquet",
        "holdout/test-00000-of-00001.parquet",
        "manifest.json",
        "stats.json",
    ]


def test_an_equal_build_is_recognised_and_left_alone(built):
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    outcome = build(Request(out=built, release=Release(episodes=4, validation=0), shard_size=2))
    assert outcome.state == "existing"
    assert before == {path: path.stat().st_mtime_ns for path in built.rglob("*")}


def test_the_originals_layout_can_be_added_later(built):
    before = tree(built)
    assert build(Request(out=built, release=Release(episodes=4, validation=0), jsonl=True)).state == "existing"
    added = set(tree(built)) - set(before)
    assert added == {"jsonl/batches/batch_000.jsonl", "jsonl/episodes.jsonl", "jsonl/tasks_holdout.jsonl", "jsonl/stats.json"}
    assert before.items() <= tree(built).items()


def test_another_build_is_replaced_only_when_asked(built):
    before = tree(built)
    with pytest.raises(InputError, match="another build"):
        build(Request(out=built, release=Release(episodes=5, validation=0)))
    assert tree(built) == before
    build(Request(out=built, release=Release(episodes=5, validation=0), overwrite=True))
    assert manifest.read(built)["release"]["episodes"] == 5


@pytest.mark.parametrize("harm", ["lost", "a bit", "cut"])
def test_a_damaged_build_is_repaired(built, harm):
    before = tree(built)
    path = built / "default/train-00000-of-00001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink() if harm == "lost" else path.write_bytes(data if harm == "a bit" else data[:-1])
    outcome = build(Request(out=built, release=Release(episodes=4, validation=0)))
    assert (outcome.state, outcome.made) == ("repaired", 1)
    assert tree(built) == before


def test_a_build_of_other_versions_is_not_repaired_with_other_bytes(built):
    found = manifest.read(built)
    found["configs"]["default"]["train"]["shards"][0]["sha256"] = "0" * 64
    (built / "manifest.json").write_bytes(manifest.to_json(found))
    with pytest.raises(DataError, match="cannot be made again to its digest"):
        build(Request(out=built, release=Release(episodes=4, validation=0)))


def test_an_unfinished_build_is_told_from_a_strangers_folder(built):
    (built / "manifest.json").unlink()
    with pytest.raises(InputError, match="holds no build"):
        build(Request(out=built, release=Release(episodes=4, validation=0), overwrite=True))
    (built / folder.MARK).parent.mkdir()
    (built / folder.MARK).write_text("{}")
    (built / "default/.tmp-12-train-00001-of-00002.parquet").write_bytes(b"half")
    with pytest.raises(InputError, match="unfinished build of another release"):
        build(Request(out=built, release=Release(episodes=4, validation=0)))
    assert build(Request(out=built, release=Release(episodes=4, validation=0), overwrite=True)).state == "built"
    assert not (built / folder.MARK).exists()


@pytest.mark.parametrize("name", ["notes.txt", "default/train.csv", "default/sub/train-00000-of-00001.parquet", "jsonl/batches/x.jsonl"])
def test_a_strangers_file_is_never_deleted(built, name):
    (built / name).parent.mkdir(parents=True, exist_ok=True)
    (built / name).write_text("mine")
    before = tree(built)
    with pytest.raises(InputError, match="no build writes"):
        build(Request(out=built, release=Release(episodes=5, validation=0), overwrite=True))
    assert tree(built) == before


def test_links_are_not_followed(built, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "stats.json").write_text("mine")
    (built / "jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no build writes"):
        build(Request(out=built, release=Release(episodes=5, validation=0), overwrite=True))
    assert (tmp_path / "elsewhere" / "stats.json").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"dataset": "other"}', '{"dataset": "kernelswarm", "configs": 3}'])
def test_a_folder_with_somebody_elses_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError):
        building.read(tmp_path)
    with pytest.raises(InputError, match="holds no build"):
        build(Request(out=tmp_path, release=SMALL, overwrite=True))
    assert (tmp_path / "manifest.json").read_text() == content


IMPOSSIBLE = [
    *(("workers", 0), ("workers", 10**6), ("shard_size", 0), ("shard_size", -1)),
    *(("part", (3, 3)), ("part", (-1, 3)), ("part", (0, 10**9)), ("stall", 0), ("stall", float("nan")), ("stall", float("inf"))),
    *(("engine", name) for name in ("", "slurm", "local:", "local:3", "dask:", "Dask")),
]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_requests_are_refused(tmp_path, name, value):
    with pytest.raises(InputError):
        Request(out=tmp_path / "out", **{name: value})
    assert not list(tmp_path.iterdir())


def test_worker_count_and_shard_size_do_not_move_the_rows(export, tmp_path):
    build(Request(out=tmp_path / "two", release=Release(episodes=68, validation=10), workers=2, shard_size=400))
    found, other = manifest.read(export), manifest.read(tmp_path / "two")
    assert found["digest"] == other["digest"]
    assert json.loads((export / "stats.json").read_text()) == json.loads((tmp_path / "two" / "stats.json").read_text())
    build(Request(out=tmp_path / "again", release=Release(episodes=68, validation=10), workers=1, shard_size=400))
    assert tree(tmp_path / "again") == tree(tmp_path / "two")
