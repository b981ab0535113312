"""Builds that were cut short: whatever is left, the same request goes on and ends with the same bytes."""

import contextlib
import errno
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from generator import build as building
from generator import files, folder, lock, places, receipts, selftest
from generator.build import Request, build
from generator.errors import DataError, InputError
from generator.release import Release

ROOT = Path(__file__).parents[1]
SMALL = Release(episodes=6, validation=2)


class StopError(Exception):
    """Stands in for a crash of the process."""


def request(out, **options):
    return Request(out=out, **{"release": SMALL, "shard_size": 2, **options})


def tree(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "out"
    build(request(out))
    return out


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A build that was cut short after three of five shards, and the same one altered; read only."""
    out = tmp_path_factory.mktemp("half") / "out"
    cut(out, 3)
    return out


@pytest.fixture
def half(halves, tmp_path):
    return Path(shutil.copytree(halves, tmp_path / "half"))


def cut(out, shards):
    def stop(stage, done, total, seen=[]):  # noqa: B006
        seen.append(done)
        if len(seen) > shards:
            raise StopError

    with pytest.raises(StopError):
        build(request(out), stop)


def made_now(out):
    """Resume and say how many shards that made."""
    outcome = build(request(out))
    assert outcome.state == "built"
    return outcome.made


def test_what_is_there_is_not_made_again(half, reference):
    assert not (half / "manifest.json").exists()
    assert made_now(half) == 2
    assert tree(half) == tree(reference)


@pytest.mark.parametrize("write", range(14))
def test_a_crash_at_any_write_is_survived(tmp_path, monkeypatch, reference, write):
    out, real, count = tmp_path / "out", os.fsync, iter(range(1000))

    def crash(handle):
        if next(count) == write:
            raise StopError
        real(handle)

    monkeypatch.setattr(os, "fsync", crash)
    with contextlib.suppress(StopError):
        build(request(out))
    monkeypatch.undo()
    build(request(out))
    assert tree(out) == tree(reference)


@pytest.mark.parametrize("removal", range(0, 9))
def test_a_crash_while_the_state_goes_is_survived(tmp_path, monkeypatch, reference, removal):
    out, real, count = tmp_path / "out", places.Local.remove, iter(range(1000))

    def crash(place, name):
        if next(count) == removal:
            raise StopError
        real(place, name)

    monkeypatch.setattr(places.Local, "remove", crash)
    with pytest.raises(StopError):
        build(request(out))
    monkeypatch.undo()
    assert (out / "manifest.json").exists()
    assert build(request(out)).state == "existing"
    assert tree(out) == tree(reference)


def harmed(data, harm):
    data = bytearray(data)
    match harm:
        case "a bit":
            data[len(data) // 3] ^= 4
        case "cut":
            del data[-1:]
        case "empty":
            data.clear()
    return bytes(data)


@pytest.mark.parametrize("harm", ["a bit", "cut", "empty", "lost"])
@pytest.mark.parametrize("what", ["default/train-00001-of-00003.parquet", ".build/receipts/default-train-00001-of-00003.json"])
def test_a_harmed_shard_or_receipt_is_made_again(half, reference, what, harm):
    path = half / what
    path.unlink() if harm == "lost" else path.write_bytes(harmed(path.read_bytes(), harm))
    assert made_now(half) == 3
    assert tree(half) == tree(reference)


def test_a_receipt_of_another_build_counts_for_nothing(half, tmp_path, reference):
    other = tmp_path / "other"
    with pytest.raises(StopError):
        build(request(other, release=Release(episodes=6, validation=2, seed=1)), stop_at_four)
    for name in ("default/train-00001-of-00003.parquet", ".build/receipts/default-train-00001-of-00003.json"):
        shutil.copy(other / name, half / name)
    assert made_now(half) == 3
    assert tree(half) == tree(reference)


def stop_at_four(stage, done, total):
    if done >= 4:
        raise StopError


@pytest.mark.parametrize(
    "options",
    [{"release": Release(episodes=6, validation=2, seed=1)}, {"release": Release(episodes=7, validation=2)}, {"shard_size": 3}],
)
def test_a_folder_with_another_key_is_refused(half, options):
    before = tree(half)
    with pytest.raises(InputError, match="unfinished build"):
        build(request(half, **options))
    assert tree(half) == before


def test_a_folder_of_a_machine_that_makes_other_bytes_is_refused(half, monkeypatch):
    monkeypatch.setattr(selftest, "digest", lambda: "0" * 64)
    with pytest.raises(InputError, match="an unfinished build with another selftest"):
        build(request(half))


def test_overwrite_goes_on_with_a_build_of_the_same_key(half, reference):
    assert build(request(half, overwrite=True)).made == 2
    assert tree(half) == tree(reference)


def test_leftovers_are_swept_and_only_leftovers(half, reference):
    for name in ("default/.tmp-7-0-train-00002-of-00003.parquet", ".build/.tmp-9-1-release.json", "default/train-00000-of-00009.parquet"):
        (half / name).write_bytes(b"half")
    build(request(half))
    assert tree(half) == tree(reference)


@pytest.mark.parametrize("name", ["notes.txt", ".build/notes.txt", "default/notes.txt"])
def test_a_strangers_file_stops_the_resume(half, name):
    (half / name).write_text("mine")
    before = tree(half)
    with pytest.raises(InputError, match="no build writes"):
        build(request(half, overwrite=True))
    assert tree(half) == before


@pytest.mark.parametrize("name", ["default", ".build", ".build/receipts", ".build/lock", "default/train-00002-of-00003.parquet"])
def test_nothing_is_written_through_a_link(half, tmp_path, name):
    outside = tmp_path / "outside"
    if (half / name).exists():
        (half / name).rename(outside)
    else:
        outside.write_text("mine")
    (half / name).symlink_to(outside)
    before = tree(tmp_path)
    with pytest.raises(InputError):
        build(request(half))
    assert tree(tmp_path) == before


def test_a_second_build_is_refused_while_the_first_runs(half, reference):
    with lock.Lock(half).held():
        with pytest.raises(InputError, match="another build writes to --out"):
            build(request(half))
        with pytest.raises(InputError, match="another build writes to --out"):
            build(request(half, part=(0, 2)))
        with pytest.raises(InputError, match="another build writes to --out"):
            build(request(half, release=Release(episodes=9), overwrite=True))
    made_now(half)
    assert tree(half) == tree(reference)


def test_a_lock_dies_with_its_holder(half):
    code = f"import os, pathlib; from generator import lock; lock.Lock(pathlib.Path({str(half)!r})).take(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True)
    assert made_now(half) == 2


def test_slices_complete_one_another(tmp_path, reference):
    out = tmp_path / "out"
    states = [build(request(out, part=(number, 3))).state for number in (2, 0, 1)]
    assert states == ["partial", "partial", "built"]
    assert tree(out) == tree(reference)
    assert build(request(out, part=(1, 3))).state == "existing"


def test_slices_of_any_cut_and_whole_builds_mix(tmp_path, reference):
    out = tmp_path / "out"
    outcome = build(request(out, part=(0, 2), workers=2))
    assert (outcome.state, outcome.shards, outcome.planned, outcome.made) == ("partial", 3, 5, 3)
    assert build(request(out, part=(1, 3))).made == 1
    assert build(request(out)).made == 1
    assert tree(out) == tree(reference)


def test_a_slice_waits_for_the_slices_that_still_run(tmp_path, reference):
    out = tmp_path / "out"
    build(request(out, part=(0, 2)))
    with lock.Lock(out).held(shared=True):
        with lock.Lock(out, ".build/slice-1-of-2.lock").held(), pytest.raises(InputError, match="another build"):
            build(request(out, part=(1, 2)))
        assert build(request(out, part=(1, 2))).state == "partial"
        with pytest.raises(InputError, match="another build writes"):
            build(request(out))
    assert made_now(out) == 0
    assert tree(out) == tree(reference)


def test_a_slice_that_comes_while_another_completes_the_build_finds_it_whole(tmp_path, monkeypatch, reference):
    out, real = tmp_path / "out", folder.holds
    build(request(out))
    answers = iter([None])
    monkeypatch.setattr(folder, "holds", lambda place, release: next(answers, real(place, release)))
    assert build(request(out, part=(0, 2))).state == "existing"
    assert tree(out) == tree(reference)


def test_a_full_disk_leaves_whole_shards_and_can_be_gone_on_with(tmp_path, monkeypatch, reference):
    out, real, room = tmp_path / "out", files.os.fsync, iter(range(9))

    def full(handle):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        build(request(out))
    monkeypatch.undo()
    left = tree(out)
    assert not [name for name in left if ".tmp-" in name]
    assert {name: data for name, data in left.items() if name.endswith(".parquet")}.items() <= tree(reference).items()
    made_now(out)
    assert tree(out) == tree(reference)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ENOLCK])
@pytest.mark.parametrize("call", ["open", "mkdir", "fsync"])
def test_a_folder_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch, call, error):
    def refuse(*arguments, **options):
        raise OSError(error, os.strerror(error))

    (tmp_path / "there").mkdir()
    monkeypatch.setattr(*{"open": (os, "open"), "mkdir": (Path, "mkdir"), "fsync": (os, "fsync")}[call], refuse)
    for name in ("new", "there"):
        with pytest.raises(InputError, match="--out cannot be written"):
            build(request(tmp_path / name))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def command(out, *options, **how):
    arguments = ["build", "--out", str(out), "--episodes", "6", "--validation", "2", "--shard-size", "2", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "generator", *arguments], env=environment, text=True, **how)


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_limit_on_file_size_is_one_line_and_leaves_whole_shards(tmp_path, reference, workers):
    out = tmp_path / "out"
    child = command(out, "--workers", workers, stderr=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=small_files)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 1
    assert err.splitlines()[-1].startswith("error: cannot read or write, got ")
    assert "Traceback" not in err
    left = {name: data for name, data in tree(out).items() if not name.startswith(".build/")}
    assert left.items() <= tree(reference).items()
    made_now(out)
    assert tree(out) == tree(reference)


def test_an_interrupted_build_says_how_to_go_on(tmp_path, reference):
    out = tmp_path / "out"
    child = command(out, "--workers", "2", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while "0 of" not in child.stderr.readline():
        pass
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert err.splitlines()[-1].endswith("run the same command again to go on")
    build(request(out))
    assert tree(out) == tree(reference)


def test_receipts_say_nothing_of_when_and_where(halves, half):
    found = json.loads((half / ".build/receipts/default-train-00000-of-00003.json").read_text())
    assert set(found["receipt"]) == {"key", "name", "rows", "bytes", "arrow_bytes", "sha256", "row_digests", "tally"}
    assert set(json.loads((half / folder.MARK).read_text())) == {"dataset_version", "release", "shard_size", "selftest", "versions"}


def test_a_worker_that_makes_other_bytes_may_not_work(tmp_path):
    plan = building.parquet.plan(SMALL, tmp_path, 2)
    with pytest.raises(selftest.MismatchError, match="does not make the bytes of this build"):
        receipts.ensure(receipts.Job(shard=plan[0], key="", selftest="0" * 64))
    assert not list(tmp_path.iterdir())


def test_a_file_that_the_parent_does_not_see_is_told(tmp_path, monkeypatch):
    def elsewhere(work, jobs, engine, heard):
        heard(receipts.Done(name=jobs[0].shard.name, rows=2, file_bytes=1, made=True))

    monkeypatch.setattr(building.engines, "run", elsewhere)
    with pytest.raises(DataError, match="a worker wrote a file that is not here"):
        build(request(tmp_path / "out"))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds workers in /proc")
def test_builds_that_are_killed_go_on(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("kill_build", ROOT / "benchmarks/kill_build.py")
    kill_build = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kill_build", kill_build)
    spec.loader.exec_module(kill_build)
    monkeypatch.setattr(kill_build, "OPTIONS", ("--episodes", "6", "--validation", "2", "--shard-size", "1", "--workers", "2"))
    found = kill_build.rounds(4, 0, tmp_path, resume=lambda out: build(request(out, shard_size=1)).state in ("built", "existing"))
    assert all(r.same for r in found), found
