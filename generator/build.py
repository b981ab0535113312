"""One build, from a request to a finished folder: shards, statistics, card, the original's layout if asked for, and the manifest last.

The command line and the benchmark both call this. It checks the whole request before it touches a file and reports progress through a
callback; it prints nothing.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from generator import engines, files, folder, jsonl, manifest, parquet, stats
from generator.errors import DataError, InputError
from generator.release import Release

STATS: Final = "stats.json"
README: Final = "README.md"
MAX_WORKERS: Final = 1024

Progress = Callable[[str, int, int], None]
"""Told of a stage, the rows done and the rows in all."""


def quiet(stage: str, done: int, total: int) -> None:
    """A Progress that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to build, and where."""

    out: Path
    release: Release = field(default_factory=Release)
    workers: int = 1
    shard_size: int = parquet.SHARD_SIZE
    jsonl: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse what no build can do."""
        if not 1 <= self.workers <= MAX_WORKERS:
            raise InputError("--workers out of range", self.workers, f"1 to {MAX_WORKERS}", "leave it out to use every core")
        if self.shard_size < 1:
            raise InputError("--shard-size is too small", self.shard_size, "1 and up", "leave it out for 400")
        folder.check_name(self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What lies in the folder now; `existing` if a whole build of the release was there before."""

    state: Literal["built", "existing"]
    manifest: manifest.Manifest


def build(request: Request, progress: Progress = quiet) -> Outcome:
    """Build a release into a folder. Raises InputError before it writes anything, DataError or OSError if writing fails."""
    found = None if request.overwrite else folder.holds(request.out, request.release)
    if found is not None:
        if request.jsonl and not jsonl.complete(request.out, manifest.shards(found, "default", "train")):
            _write_jsonl(request, found, progress)
        return Outcome(state="existing", manifest=found)
    folder.claim(request.out, request.release, request.overwrite)
    receipts = _write_shards(request, progress)
    made = manifest.make(request.release, receipts)
    totals = stats.summarise([r.tally for r in receipts if r.tally is not None])
    files.write(request.out / STATS, manifest.to_json(totals))
    files.write(request.out / README, _card(made, totals))
    if request.jsonl:
        _write_jsonl(request, made, progress)
    manifest.write(request.out, made)
    folder.release_mark(request.out)
    return Outcome(state="built", manifest=made)


def read(out: Path) -> tuple[manifest.Manifest, dict[str, Any]]:
    """Manifest and statistics of a build. Raises InputError if there is none in `out`, DataError if it cannot be read."""
    if not (out / manifest.NAME).is_file():
        what = "no build here" if out.is_dir() else "no such folder"
        raise InputError(what, str(out), "a folder that `build` finished", "give the --out of a build")
    found = manifest.read(out)
    try:
        return found, dict(json.loads((out / STATS).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError("statistics cannot be read", str(out / STATS), "the file that `build` wrote", "build it again") from error


def _write_shards(request: Request, progress: Progress) -> Sequence[parquet.Receipt]:
    shards = parquet.plan(request.release, request.out, request.shard_size)
    told = _counter("parquet", sum(shard.rows for shard in shards), progress)
    return engines.run(parquet.write_shard, shards, request.workers, lambda receipt: told(receipt.rows))


def _card(made: manifest.Manifest, totals: dict[str, Any]) -> bytes:
    # The card needs datasets, which takes most of a second to import: workers start before that, and bad input is told at once.
    from generator import card

    return card.render(made, totals).encode()


def _write_jsonl(request: Request, made: manifest.Manifest, progress: Progress) -> None:
    batches = jsonl.plan(request.out, manifest.shards(made, "default", "train"))
    told = _counter("jsonl", sum(batch.rows for batch in batches), progress)
    engines.run(jsonl.write_batch, batches, request.workers, lambda batch: told(batch.rows))
    jsonl.finish(request.out, batches, manifest.shards(made, "holdout", "test"))


def _counter(stage: str, total: int, progress: Progress) -> Callable[[int], None]:
    done = 0

    def told(rows: int) -> None:
        nonlocal done
        done += rows
        progress(stage, done, total)

    progress(stage, 0, total)
    return told
