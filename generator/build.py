"""One build, from a request to a finished folder: shards, statistics, card, the original's layout if asked for, and the manifest last.

The command line and the benchmark both call this. It checks the whole request before it touches a file and reports progress through a
callback; it prints nothing. However a build ends, the same request goes on with it and ends with the same bytes.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from generator import engines, files, folder, jsonl, lock, manifest, parquet, places, receipts, selftest, stats
from generator.errors import DataError, InputError
from generator.places import Local, Place
from generator.receipts import Done, Job
from generator.release import Release

STATS: Final = "stats.json"
README: Final = "README.md"
MAX_WORKERS: Final = 1024
MAX_SLICES: Final = 100_000
MAX_SHARDS: Final = 1_000_000
MAX_STALL: Final = 7 * 86400

Progress = Callable[[str, int, int], None]
"""Told of a stage, the rows done and the rows in all."""


def quiet(stage: str, done: int, total: int) -> None:
    """A Progress that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to build, where, and with what."""

    out: Path | str
    """A folder, or an fsspec URL."""
    release: Release = field(default_factory=Release)
    workers: int = 1
    shard_size: int = parquet.SHARD_SIZE
    jsonl: bool = False
    overwrite: bool = False
    figures: bool = False
    """Draw the card's pictures; needs matplotlib."""
    engine: str = "local"
    part: tuple[int, int] | None = None
    """`(i, n)`: only every n-th shard, from the i-th on, counted from 0."""
    stall: float = engines.STALL

    def __post_init__(self) -> None:
        """Refuse what no build can do."""
        if not 1 <= self.workers <= MAX_WORKERS:
            raise InputError("--workers out of range", self.workers, f"1 to {MAX_WORKERS}", "leave it out to use every core")
        if self.shard_size < 1:
            raise InputError("--shard-size is too small", self.shard_size, "1 and up", "leave it out for 400")
        if sum(-(-rows // self.shard_size) for rows in self.release.splits().values()) > MAX_SHARDS:
            raise InputError("--shard-size makes too many files", self.shard_size, f"at most {MAX_SHARDS:,} files", "raise --shard-size")
        if not 0 < self.stall <= MAX_STALL:
            raise InputError("--stall out of range", self.stall, f"seconds above 0, to {MAX_STALL}", "leave it out for 600")
        if self.part is not None and not 0 <= self.part[0] < self.part[1] <= MAX_SLICES:
            raise InputError(
                "--slice out of range", "{}/{}".format(*self.part), f"i/n, i from 0 to n - 1, n to {MAX_SLICES}", "count from 0"
            )
        if self.part is not None and (self.overwrite or self.jsonl):
            option = "--overwrite" if self.overwrite else "--jsonl"
            raise InputError(
                f"{option} goes with no --slice", f"{option} --slice", "either of them", f"build the slices, then add {option}"
            )
        folder.check_name(self.out)
        if self.jsonl and not isinstance(places.place(self.out), Local):
            raise InputError("--jsonl needs a local folder", str(self.out), "a path", "build locally and copy")
        engines.parse(self.engine, self.workers)
        if self.figures:
            from generator import figures

            figures.check_available()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What lies in the place now.

    `existing`: the whole build was there. `repaired`: it was, but for damaged files. `partial`: other slices are still missing.
    """

    state: Literal["built", "existing", "repaired", "partial"]
    manifest: manifest.Manifest | None
    shards: int
    """Shards of the whole build that are there."""
    planned: int
    made: int
    """Shards made by this run."""


def build(request: Request, progress: Progress = quiet) -> Outcome:
    """Build a release into a folder. Raises InputError before it writes anything, DataError or OSError if writing fails."""
    place = places.place(request.out)
    found = None if request.overwrite else folder.holds(place, request.release)
    if found is not None:
        return _existing(request, place, found, progress)
    key = folder.Key(release=request.release, shard_size=request.shard_size, selftest=selftest.digest())
    try:
        with folder.claimed(place, key, request.overwrite, request.part) as held:
            return _build(request, place, key, held, progress)
    except folder.FinishedError:
        return build(request, progress)


def _build(request: Request, place: Place, key: folder.Key, held: lock.Lock | None, progress: Progress) -> Outcome:
    """Make what is missing in a folder that this run holds, and complete the build if nothing is missing then."""
    plan = parquet.plan(request.release, place.folder, request.shard_size)
    jobs = [Job(shard=shard, key=key.digest, selftest=key.selftest) for shard in plan]
    first, step = request.part or (0, 1)
    made = sum(done.made for done in _ensure(request, place, jobs[first::step], progress))
    if request.part is not None:
        alone = held is not None and held.take()
        if not alone or any(receipts.read(job) is None for job in jobs):
            return _partial(place, jobs, made)
    return _commit(request, place, key, jobs, made, progress)


def read(out: Path | str) -> tuple[manifest.Manifest, dict[str, Any]]:
    """Manifest and statistics of a build. Raises InputError if there is none in `out`, DataError if it cannot be read."""
    place = places.place(out)
    if place.size(manifest.NAME) is None:
        what = "no build here" if place.names() or (isinstance(place, Local) and place.root.is_dir()) else "no such folder"
        raise InputError(what, str(out), "a folder that `build` finished", "give the --out of a build")
    found = manifest.read(out)
    try:
        return found, dict(json.loads(place.read(STATS) or b""))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError("statistics cannot be read", f"{out}/{STATS}", "the file that `build` wrote", "build it again") from error


def _ensure(request: Request, place: Place, jobs: Sequence[Job], progress: Progress) -> list[Done]:
    """Have the engine make what is missing; every shard must then be seen from here."""
    told = _counter("parquet", sum(job.shard.rows for job in jobs), progress)

    def heard(done: Done) -> None:
        if place.size(done.name) != done.file_bytes:
            fix = "give a folder or URL that all workers share"
            raise DataError("a worker wrote a file that is not here", done.name, f"the same {place} for all", fix)
        told(done.rows)

    return engines.run(receipts.ensure, jobs, engines.parse(request.engine, request.workers, request.stall), heard)


def _commit(request: Request, place: Place, key: folder.Key, jobs: Sequence[Job], made: int, progress: Progress) -> Outcome:
    """Everything but the shards, the manifest last; then the state of the build goes."""
    tallies = stats.Totals()

    def taken() -> Iterator[parquet.Receipt]:
        for job in jobs:
            receipt = receipts.read(job)
            if receipt is None:
                fix = "run the same command again"
                raise DataError("a finished shard has gone or changed", job.shard.name, "files that nobody else touches", fix)
            if receipt.tally is not None:
                tallies.add(receipt.tally)
            yield receipt

    finished = manifest.make(request.release, taken())
    totals = tallies.summary()
    place.write(STATS, manifest.to_json(totals))
    keep = [job.shard.name for job in jobs] + [STATS, manifest.NAME, *_write_card(place, finished, totals, request.figures)]
    if request.jsonl and isinstance(place, Local):
        keep += _write_jsonl(request, place, finished, progress)
    if not folder.mine(place, key):
        raise DataError("the folder was taken over by another build", str(place), "one build at a time", "choose another --out")
    place.write(manifest.NAME, manifest.to_json(finished))
    folder.settle(place, keep)
    return Outcome(state="built", manifest=finished, shards=len(jobs), planned=len(jobs), made=made)


def _partial(place: Place, jobs: Sequence[Job], made: int) -> Outcome:
    names = set(place.names())
    there = sum(receipts.name(job.shard) in names for job in jobs)
    return Outcome(state="partial", manifest=None, shards=there, planned=len(jobs), made=made)


def _existing(request: Request, place: Place, found: manifest.Manifest, progress: Progress) -> Outcome:
    """A finished build: damaged files are made again, what a killed run left is swept, the original's layout is added if asked for."""
    altered = set(manifest.damage(place.folder, found, request.workers))
    train = manifest.shards(found, "default", "train")
    extra = request.jsonl and isinstance(place, Local) and not jsonl.complete(place.root, train)
    plan = parquet.plan(request.release, place.folder, train[0][1])
    left = [name for name in place.names() if name.startswith(f"{folder.STATE}/") or files.TEMPORARY in name]
    if altered or extra or left:
        folder.refuse_links(place)
        with lock.Lock(place.root).held() if isinstance(place, Local) else contextlib.nullcontext():
            if altered:
                _repair(request, [shard for shard in plan if shard.name in altered], found)
            if extra and isinstance(place, Local):
                _write_jsonl(request, place, found, progress)
            folder.remove(place, [*left, lock.NAME])
    return Outcome(state="repaired" if altered else "existing", manifest=found, shards=len(plan), planned=len(plan), made=len(altered))


def _repair(request: Request, shards: Sequence[parquet.Shard], found: manifest.Manifest) -> None:
    """Make files again that were lost or altered. Raises DataError if that gives other bytes than the manifest names."""
    sha256 = {shard["name"]: shard["sha256"] for of in found["configs"].values() for split in of.values() for shard in split["shards"]}
    for receipt in engines.run(parquet.write_shard, shards, request.workers):
        if receipt.sha256 != sha256[receipt.name]:
            versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
            fix = "use these versions, or build anew with --overwrite"
            raise DataError("a damaged file cannot be made again to its digest", receipt.name, f"what {versions} made", fix)


def _write_card(place: Place, made: manifest.Manifest, totals: dict[str, Any], pictures: bool) -> list[str]:
    """Write the README and, if asked for, its pictures; returns their names."""
    # The card needs datasets, which takes most of a second to import: workers start before that, and bad input is told at once.
    from generator import card, figures, showcase

    def read(name: str) -> bytes:
        return place.read(name) or b""

    row = showcase.pick(made, read)
    drawn = figures.draw(made, read, row) if pictures else ()
    for figure in drawn:
        place.write(figure.name, figure.png)
    place.write(README, card.render(made, totals, row, drawn).encode())
    return [README, *(figure.name for figure in drawn)]


def _write_jsonl(request: Request, place: Local, made: manifest.Manifest, progress: Progress) -> list[str]:
    """Write the original's layout from the Parquet; returns the names of its files."""
    batches = jsonl.plan(place.root, manifest.shards(made, "default", "train"))
    told = _counter("jsonl", sum(batch.rows for batch in batches), progress)
    engines.run(jsonl.write_batch, batches, request.workers, lambda batch: told(batch.rows))
    jsonl.finish(place.root, batches, manifest.shards(made, "holdout", "test"))
    return [*(batch.name for batch in batches), jsonl.EPISODES, jsonl.HOLDOUT, jsonl.STATS]


def _counter(stage: str, total: int, progress: Progress) -> Callable[[int], None]:
    done = 0

    def told(rows: int) -> None:
        nonlocal done
        done += rows
        progress(stage, done, total)

    progress(stage, 0, total)
    return told
