"""What a build costs on one core, against the time `pq.write_table` alone takes for the same tables.

The whole is the real command in a process of its own, start-up included; its parts are timed in this process, shard by shard. Seconds are
given as wall and as CPU time: on a busy machine only the latter means anything.

    python benchmarks/bench_build.py [--episodes 2400] [--tenfold] [--runs local:1 local:2 dask:2] [--only-runs]
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from generator import jsonl, parquet
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release

LIMIT = "limit: pq.write_table"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Clock:
    """Wall and CPU seconds spent in `with clock.running():` blocks."""

    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


def whole(episodes: int, validation: int, out: Path, workers: int = 1, engine: str = "local") -> tuple[Clock, float]:
    """The build command: its seconds, and the peak memory in MB of its largest process (a cluster's workers are not its children)."""
    command = [sys.executable, "-m", "generator", "build", "--out", str(out), "--workers", str(workers), "--engine", engine]
    command += ["--episodes", str(episodes), "--validation", str(validation)]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"the build failed with exit code {child.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Clock(time.perf_counter() - started, cpu), usage.ru_maxrss / 1024


def parts(release: Release, folder: Path) -> dict[str, Clock]:
    """Every shard generated, written by us, and written by `pq.write_table` with the same arguments."""
    clocks = {"generate": Clock(), "write": Clock(), LIMIT: Clock()}
    for shard in parquet.plan(release, folder, parquet.SHARD_SIZE):
        with clocks["generate"].running():
            holdout = shard.config == "holdout"
            table = build_holdout(release) if holdout else build_range(release, shard.split, shard.start, shard.stop)
        with clocks["write"].running():
            parquet.write_rows(shard, table)
        with clocks[LIMIT].running():
            pq.write_table(table, folder / "limit.parquet", **parquet.ENCODING)
    return clocks


def sizes(release: Release, folder: Path) -> tuple[int, int]:
    """Bytes of the training split as Parquet, and of the same rows as JSONL."""
    shards = [(shard.name, shard.rows) for shard in parquet.plan(release, folder, parquet.SHARD_SIZE) if shard.split == "train"]
    lines = 0
    for batch in jsonl.plan(folder, shards):
        path = folder / jsonl.write_batch(batch).name
        lines += path.stat().st_size
        path.unlink()
    return sum((folder / name).stat().st_size for name, _ in shards), lines


def engines(release: Release, runs: list[str], folder: Path, cores: set[int]) -> None:
    """The same build on engines and numbers of workers, each with all cores, and its wall time over that of the first."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    first = 0.0
    print(f"\n{'engine':12}{'workers':>8}{'wall s':>9}{'CPU s':>9}{'episodes/s':>12}{'speed-up':>10}{'peak MB':>9}")
    for number, run in enumerate(runs):
        engine, _, workers = run.partition(":")
        out = folder / f"run-{number}"
        clock, memory = whole(release.episodes, release.validation, out, int(workers or 1), engine)
        first = first or clock.wall
        rate = (release.episodes + release.validation) / clock.wall
        print(f"{engine:12}{workers or 1:>8}{clock.wall:9.1f}{clock.cpu:9.1f}{rate:12.0f}{first / clock.wall:10.2f}{memory:9.0f}")
        shutil.rmtree(out)


def one_core(release: Release, tenfold: bool) -> None:
    """The whole command and its parts, bound to one core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total, memory = whole(release.episodes, release.validation, folder / "whole")
        clocks = parts(release, folder / "parts")
        parquet_bytes, jsonl_bytes = sizes(release, folder / "parts")
        limit = clocks[LIMIT]
        print(f"{release.episodes} + {release.validation} episodes and the held-out tasks on one core: wall s, CPU s, CPU over the limit's")
        for label, clock in {**clocks, "whole command": total}.items():
            print(f"{label:24}{clock.wall:8.2f}{clock.cpu:8.2f}{clock.cpu / limit.cpu:8.2f}")
        print(f"{'peak memory':24}{memory:8.0f} MB")
        if tenfold:
            _, larger = whole(10 * release.episodes, release.validation, folder / "tenfold")
            print(f"{'  for ten times':24}{larger:8.0f} MB ({larger / memory - 1:+.0%})")
        ratio = jsonl_bytes / parquet_bytes
        print(f"{'train as Parquet':24}{parquet_bytes / 1e6:8.1f} MB, as JSONL {jsonl_bytes / 1e6:.1f} MB ({ratio:.1f} times)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=2400)
    parser.add_argument("--tenfold", action="store_true", help="also build ten times the episodes, for the memory")
    parser.add_argument("--runs", nargs="*", default=["local:1", "local:2"], help="ENGINE:WORKERS to compare, the first is the measure")
    parser.add_argument("--only-runs", action="store_true", help="compare engines and nothing else")
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    release = Release(episodes=arguments.episodes, validation=arguments.episodes // 10)
    if not arguments.only_runs:
        one_core(release, arguments.tenfold)
    with tempfile.TemporaryDirectory() as name:
        engines(release, arguments.runs, Path(name), cores)


if __name__ == "__main__":
    main()
