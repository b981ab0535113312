"""Builds on real clusters on loopback, with kills; each test is skipped where its engine is not installed."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from generator import build as building
from generator import engines, receipts
from generator.build import Request, build
from generator.errors import DataError, InputError
from generator.release import Release

ROOT = Path(__file__).parents[1]
SMALL = Release(episodes=16, validation=0)
HELD = "default/train-00003-of-00008.parquet"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the clusters' own code
]
needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs the extra kernelswarm[dask]")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra kernelswarm[ray]")


def held(job):
    """Makes a shard, but the first worker to try a certain one stops with half a file on disk, says who it is, and waits to be killed."""
    folder = Path(job.shard.folder)
    if job.shard.name == HELD:
        with contextlib.suppress(FileExistsError):
            handle = os.open(folder.parent / "held", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            (folder / "default").mkdir(exist_ok=True)
            (folder / "default" / f".tmp-{os.getpid()}-0-half").write_bytes(b"PAR1half")
            os.write(handle, str(os.getpid()).encode())
            os.close(handle)
            time.sleep(300)
    return receipts.ensure(job)


def request(out, **options):
    return Request(out=out, **{"release": SMALL, "shard_size": 2, "workers": 2, **options})


def tree(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "out"
    build(request(out, workers=1))
    return tree(out)


@pytest.fixture
def dask(tmp_path):
    """Address of a scheduler with two workers, and the process id of the scheduler."""
    file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    loopback = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    lines = [("scheduler", "--port", "0", "--scheduler-file", str(file), *loopback)]
    for number in (1, 2):
        place = ("--local-directory", str(tmp_path / f"worker{number}"))
        lines.append(("worker", "--scheduler-file", str(file), "--nthreads", "1", *loopback, *place))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, "env": environment}
    processes = [subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_" + line[0], *line[1:]], **quiet) for line in lines]
    while not file.exists():
        time.sleep(0.05)
    from distributed import Client

    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    yield address, processes[0].pid
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_when_held(file, victim):
    def wait_and_kill():
        while not (file.exists() and file.read_text()):
            time.sleep(0.02)
        os.kill(victim(int(file.read_text())), signal.SIGKILL)

    threading.Thread(target=wait_and_kill, daemon=True).start()


@needs_dask
@pytest.mark.parametrize("victim", ["nobody", "worker", "nanny", "scheduler"])
def test_dask_builds_the_same_bytes_and_survives(dask, tmp_path, monkeypatch, reference, victim):
    address, scheduler = dask
    out = tmp_path / "out"
    if victim != "nobody":
        monkeypatch.setattr(building.receipts, "ensure", held)
        held.__module__ = "test_clusters"
        kill_when_held(tmp_path / "held", {"worker": int, "nanny": parent_of, "scheduler": lambda _: scheduler}[victim])
    if victim == "scheduler":
        with pytest.raises(engines.EngineError, match="is lost"):
            build(request(out, engine=f"dask:{address}", stall=60))
        monkeypatch.undo()
        assert not (out / "manifest.json").exists()
        assert 0 < build(request(out)).made < 9
    else:
        assert build(request(out, engine=f"dask:{address}", stall=120)).state == "built"
    assert tree(out) == reference


@needs_dask
def test_dask_of_its_own_listens_on_loopback_only(tmp_path, reference):
    found = set()

    def look(stage, done, total):
        found.update(listening())

    build(request(tmp_path / "out", engine="dask"), look)
    assert tree(tmp_path / "out") == reference
    assert found
    assert {address for address in found if not address.startswith("0100007F")} == set()


def listening():
    """Addresses, in the kernel's hex, on which this process and its descendants listen."""
    family = {os.getpid()}
    for _ in range(4):
        family |= {
            int(child) for pid in family for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        }
    inodes = set()
    for pid in family:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(str(path.readlink()))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes}


@needs_dask
def test_dask_that_is_not_there_is_told(tmp_path, monkeypatch):
    from generator import clusters

    monkeypatch.setattr(clusters, "PATIENCE", 1)
    with pytest.raises(InputError, match="no dask workers answer"):
        build(request(tmp_path / "out", engine="dask:tcp://127.0.0.1:9"))


@needs_dask
def test_dask_workers_that_make_other_bytes_are_refused(dask, tmp_path, monkeypatch):
    monkeypatch.setattr(building.selftest, "digest", lambda: "0" * 64)
    with pytest.raises(DataError, match="a worker does not make the bytes of this build"):
        build(request(tmp_path / "out", engine=f"dask:{dask[0]}"))
    assert not list((tmp_path / "out").rglob("*.parquet"))


@needs_ray
@pytest.mark.parametrize("victim", ["nobody", "worker"])
def test_ray_builds_the_same_bytes_and_survives(tmp_path, monkeypatch, reference, victim):
    out = tmp_path / "out"
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    if victim == "worker":
        monkeypatch.setattr(building.receipts, "ensure", held)
        held.__module__ = "test_clusters"
        kill_when_held(tmp_path / "held", int)
    assert build(request(out, engine="ray", stall=300)).state == "built"
    assert tree(out) == reference
