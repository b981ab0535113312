import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from generator import cli, manifest, show
from generator.gpus import GPUS
from generator.listing import WHAT
from generator.ops import OPS
from schema import vocab
from schema.version import DATASET_VERSION

ROOT = Path(__file__).parents[1]
ERROR = re.compile(r"error: [^\n]+, got [^\n]+, allowed: [^\n]+, [^\n]+\n")


def run(capsys, *arguments):
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def tree(folder):
    return sorted((path.relative_to(folder).as_posix(), path.is_file() and path.read_bytes()) for path in folder.rglob("*"))


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """A folder with a file, a stranger's folder, a broken build, and a whole one."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "README.md").write_text("mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    return tmp_path


USAGE = """

bogus
--bogus
build --bogus
build extra
build --episodes
build --episodes abc
build --episodes 1.5
build --episodes=
build --episodes -1
build --episodes 0
build --episodes 99999999999999999999
build --validation -1
build --seed -5
build --seed x
evidence bake
evidence build --op nope
build --seed 9223372036854775808
build --workers 0
build --workers -2
build --workers two
build --workers 100000
build --shard-size 0
build --shard-size -400
build --episodes 1000000000 --shard-size 10
build --gpu h999
build --gpu H100
build --op nope
build --op rmsnorm --op nope
build --scenario solo
build --op=
build --op flash_decode --gpu a10 --scenario campaign --episodes 1
build --out file
build --out file/below
build --out stranger
build --out stranger --overwrite
build --out broken
build --out broken --overwrite
build --out .
build --jsonl=3
build --slice 3/3
build --slice 1
build --slice 1/0
build --slice -1/4
build --slice 1/4/4
build --slice 0/2 --jsonl
build --slice 0/2 --overwrite
build --engine slurm
build --engine local:3
build --engine dask:
build --stall 0
build --stall soon
build --out hf://datasets/someone/something
build --out hf://someone/something
build --out nowhere://x/y
build --out memory://
build --out memory://x/y --jsonl
build --workers 0 --out stranger --overwrite
stats
stats missing
stats file
stats stranger
stats stranger extra
show
show unknown
show rmsnorm_h100_M=4096,N=4096_dispatch
show rmsnorm_h100_M=4096,N=4097_dispatch_60
show rmsnorm_h100_M=4096,N=4096_dispatch_1
show rmsnorm_h999_M=4096,N=4096_dispatch_60
show rmsnorm_h100_M=4096,N=4096_dispatch_60-r99999999999999
show one two
list
list bogus
list ops gpus
version extra
push
push missing
push stranger
push broken/x
push file
push . --repo-id kernelswarm
push . --revision -x
push one two
build --dry-run
build --push --repo-id a/b/c
check --viewer missing
check --viewer file
""".splitlines()[1:]


@pytest.mark.parametrize("line", USAGE)
def test_bad_input_is_one_line_exit_2_and_nothing_written(capsys, cwd, line):
    before = tree(cwd)
    code, out, err = run(capsys, *line.split())
    assert (code, out) == (2, "")
    assert ERROR.fullmatch(err), err
    assert tree(cwd) == before


def test_bad_data_is_one_line_and_exit_1(capsys, cwd):
    code, out, err = run(capsys, "stats", "broken")
    assert (code, out) == (1, "")
    assert ERROR.fullmatch(err)


def test_a_full_disk_is_one_line_and_exit_1(capsys, cwd, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("generator.parquet.write_shard", full)
    code, out, err = run(capsys, "build", "--episodes", "2", "--validation", "0", "--out", "new", "--workers", "1")
    assert (code, out) == (1, "")
    assert "No space left on device" in err.splitlines()[-1]
    assert ERROR.fullmatch(err.splitlines()[-1] + "\n")


@pytest.mark.parametrize("position", range(6))
def test_an_id_altered_by_one_character_is_refused(capsys, cwd, rows, position):
    real = rows[5]["episode_id"]
    place = position * (len(real) - 1) // 5
    for other in "x1":
        if real[place] != other:
            code, _, err = run(capsys, "show", real[:place] + other + real[place + 1 :])
            assert code == 2
            assert ERROR.fullmatch(err)


def test_build_writes_a_folder_and_says_so(capsys, cwd):
    arguments = ("build", "--out", "new", "--episodes", "8", "--validation", "0", "--workers", "1", "--shard-size", "4")
    code, out, err = run(capsys, *arguments)
    assert code == 0
    assert "new: built 8 episodes" in out
    assert "train" in out
    assert err.splitlines()[0].startswith("parquet: 0 of ")
    assert all(re.fullmatch(r"parquet: [\d,]+ of [\d,]+ rows", line) for line in err.splitlines())
    assert [path.name for path in sorted(Path("new/default").iterdir())] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    before = tree(cwd)
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "already holds this release" in out
    assert tree(cwd) == before
    code, out, err = run(capsys, "build", "--out", "new", "--episodes", "9", "--validation", "0")
    assert (code, out) == (2, "")
    assert "--overwrite" in err
    assert tree(cwd) == before


def test_filters_keep_rows_of_the_whole_release(capsys, cwd, train):
    options = ("--op", "rmsnorm", "--op", "rope", "--gpu", "a100", "--scenario", "dispatch", "--scenario", "campaign")
    code, _, _ = run(capsys, "build", "--out", "some", "--validation", "0", "--workers", "1", *options)
    assert code == 0
    wanted = [
        row
        for row in train.select(["op", "gpu", "scenario", "episode_id"]).to_pylist()
        if row["op"] in ("rmsnorm", "rope") and row["gpu"] == "a100" and row["scenario"] in ("dispatch", "campaign")
    ]
    found = pq.read_table("some/default")
    assert found["episode_id"].to_pylist() == [row["episode_id"] for row in wanted]
    everything = {row["episode_id"]: number for number, row in enumerate(train.select(["episode_id"]).to_pylist())}
    assert found.equals(train.take([everything[name] for name in found["episode_id"].to_pylist()]).combine_chunks())


def test_stats_prints_what_the_build_holds(capsys, export):
    code, out, _ = run(capsys, "stats", str(export))
    assert code == 0
    lines = dict(line.split("\t")[:2] for line in out.splitlines() if line)
    assert lines["episodes"] == "68"
    assert set(vocab.KINDS) == {name.removeprefix("kind ") for name in lines if name.startswith("kind ")}
    assert manifest.read(export)["configs"]["default"]["train"]["digest"][:16] in out


@pytest.mark.parametrize("position", [0, 33, 67])
def test_show_makes_the_row_again(capsys, rows, position):
    row = rows[position]
    code, out, err = run(capsys, "show", row["episode_id"], "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == row


def test_show_prints_the_campaign(capsys, rows):
    row = rows[0]
    code, out, _ = run(capsys, "show", row["episode_id"])
    assert code == 0
    assert out.startswith(row["episode_id"] + "\n")
    assert all(re.search(rf"^{agent['id']} +{agent['role']}", out, re.MULTILINE) for agent in row["agents"])
    assert len(re.findall(r"^ +\d+  \d:\d\d:\d\d  ", out, re.MULTILINE)) == row["num_messages"]
    source = next(message["content"] for message in row["messages"] if message["kind"] == "candidate")
    assert f"... {len(source.splitlines()) - show.ABRIDGED} more lines" in out
    full = run(capsys, "show", row["episode_id"], "--full")[1]
    assert all(line.strip() in full for line in source.splitlines())


def test_show_with_another_seed(capsys, tmp_path):
    assert run(capsys, "build", "--out", str(tmp_path / "x"), "--seed", "5", "--episodes", "2", "--validation", "1")[0] == 0
    for name in ("train", "validation"):
        row = pq.read_table(tmp_path / f"x/default/{name}-00000-of-00001.parquet").to_pylist()[-1]
        assert json.loads(run(capsys, "show", row["episode_id"], "--seed", "5", "--json")[1]) == row


@pytest.mark.parametrize("what", WHAT)
def test_lists_are_whole_and_tab_separated(capsys, what):
    code, out, err = run(capsys, "list", what)
    assert (code, err) == (0, "")
    table = [line.split("\t") for line in out.splitlines()]
    assert len({len(row) for row in table}) == 1
    counts = {"ops": len(OPS), "gpus": len(GPUS), "variants": sum(len(op.variants) for op in OPS), "tasks": len(OPS) * len(GPUS) * 4}
    assert len(table) - 1 == counts[what]


def test_version(capsys):
    code, out, _ = run(capsys, "version")
    assert code == 0
    assert f"kernelswarm {manifest.package_version()}, dataset {DATASET_VERSION}" in out


@pytest.mark.parametrize("command", ["", "build", "push", "show", "list", "stats", "check", "evidence", "version"])
def test_help_is_help(capsys, command):
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Usage: python -m generator" in out


def module(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "generator", *arguments], env=environment, text=True, **options)


def test_an_interrupt_is_exit_130_and_one_line(tmp_path):
    command = ("build", "--episodes", "3000", "--workers", "2", "--shard-size", "20")
    child = module(*command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while " of " not in child.stderr.readline():
        pass
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert "Traceback" not in err
    assert not (tmp_path / "kernelswarm" / "manifest.json").exists()
    assert all(pq.read_metadata(path) for path in (tmp_path / "kernelswarm").rglob("*.parquet"))


def test_a_reader_that_leaves_early_is_no_error():
    with module("list", "tasks", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 0


def test_another_schema_is_told_before_anything_else(tmp_path):
    (tmp_path / "schema.py").touch()
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from generator.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, str(tmp_path), "version"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert ERROR.fullmatch(found.stderr)
    assert str(tmp_path) in found.stderr
