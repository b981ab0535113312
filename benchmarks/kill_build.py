"""Kills builds at random moments, runs the same command again, and compares every byte with a build that nobody disturbed.

Each round starts a build in a new folder, waits a random part of the time that a whole build takes, ends the parent or one worker with
SIGKILL, lets what is left of the build end, and then runs the command again. Linux only: it finds workers in /proc.

    python benchmarks/kill_build.py [--kills 100] [--seed 0]
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from generator.rng import Dice, stream_key

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ("--episodes", "40", "--validation", "4", "--shard-size", "2", "--workers", "2")


@dataclass(frozen=True, slots=True)
class Round:
    """What one kill did: who was killed, after which part of the build, and how many shards had been finished by then."""

    victim: str
    moment: float
    shards: int
    same: bool


def start(out: Path) -> "subprocess.Popen[bytes]":
    """The build command, in a process of its own."""
    command = [sys.executable, "-m", "generator", "build", "--out", str(out), *OPTIONS]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tree(out: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def workers(parent: int) -> list[int]:
    """Process ids of the workers of a build."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
        except OSError:
            continue
    return found


def kill(child: "subprocess.Popen[bytes]", dice: Dice) -> str:
    """End the parent, or a worker if there is one and the dice say so; returns which."""
    try:
        there = workers(child.pid)
    except OSError:
        return "nobody"
    victim, pid = ("worker", dice.pick(there)) if there and dice.chance(0.5) else ("parent", child.pid)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "nobody"
    return victim


def again(out: Path) -> bool:
    """The same command once more; whether it ended well."""
    return start(out).wait() == 0


def play(number: int, dice: Dice, seconds: float, reference: dict[str, bytes], folder: Path, resume: Callable[[Path], bool]) -> Round:
    """One kill and what came of it."""
    out = folder / f"round-{number}"
    child = start(out)
    moment = dice.between(0.25, 1.0)
    time.sleep(moment * seconds)
    shards = len(list(out.glob("default/*.parquet")))
    victim = "nobody" if child.poll() is not None else kill(child, dice)
    child.wait()
    return Round(victim, moment, shards, same=resume(out) and tree(out) == reference)


def rounds(kills: int, seed: int, folder: Path, resume: Callable[[Path], bool] = again) -> list[Round]:
    """So many rounds in which somebody was killed."""
    before = time.perf_counter()
    if start(folder / "reference").wait() != 0:
        sys.exit("the undisturbed build failed")
    seconds = time.perf_counter() - before
    reference = tree(folder / "reference")
    found: list[Round] = []
    number = 0
    while sum(r.victim != "nobody" for r in found) < kills:
        found.append(play(number, Dice(stream_key("kill", seed), number), seconds, reference, folder, resume))
        number += 1
        if found[-1].victim == "nobody":
            seconds *= 0.9  # the machine has become faster
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        found = [r for r in rounds(arguments.kills, arguments.seed, Path(name)) if r.victim != "nobody"]
    who = Counter(r.victim for r in found)
    between = sum(r.shards > 0 for r in found)
    print(f"{len(found)} kills ({who['parent']} of the parent, {who['worker']} of a worker) in {time.perf_counter() - started:.0f} s")
    print(f"{between} of them between the first shard and the last byte; {sum(r.same for r in found)} builds ended byte-identical")
    if not all(r.same for r in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
