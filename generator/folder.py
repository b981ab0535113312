"""An output folder before, during and after a build: empty, half built, whole, or somebody else's.

Until the manifest is there, `.build/` holds the key of the build, its lock and its receipts. Only files of names that a build writes are
ever deleted, only where a build has marked the folder as its own, and nothing is written through a link.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from generator import files, lock, manifest, parquet, places
from generator.errors import DataError, InputError
from generator.places import Local, Place
from generator.release import Release
from schema.version import DATASET_VERSION

STATE: Final = ".build"
MARK: Final = f"{STATE}/release.json"

_OURS: Final = re.compile(
    r"README\.md|manifest\.json|stats\.json|\.build/(release\.json|lock|slice-\d+-of-\d+\.lock)"
    r"|\.build/receipts/(default-(train|validation)|holdout-test)-\d{5,}-of-\d{5,}\.json"
    r"|default/(train|validation)-\d{5,}-of-\d{5,}\.parquet|holdout/test-\d{5,}-of-\d{5,}\.parquet"
    r"|jsonl/(episodes\.jsonl|tasks_holdout\.jsonl|stats\.json|batches/batch_\d{3,}\.jsonl)"
    r"|figures/(speedup|outcomes|campaign)\.png"
    r"|((default|holdout|figures|jsonl|jsonl/batches|\.build|\.build/receipts)/)?" + re.escape(files.TEMPORARY) + r"\d+-[^/]+"
)
_FOLDERS: Final = ("jsonl/batches/", "jsonl/", "default/", "holdout/", "figures/", ".build/receipts/", ".build/")


class FinishedError(InputError):
    """Another run has just finished this very build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a half-built folder must agree on with a run that goes on with it."""

    release: Release
    shard_size: int
    selftest: str

    def to_json(self) -> dict[str, Any]:
        versions = {"kernelswarm": manifest.package_version(), "numpy": np.__version__, "pyarrow": pa.__version__}
        return {
            "dataset_version": DATASET_VERSION,
            "release": self.release.key(),
            "shard_size": self.shard_size,
            "selftest": self.selftest,
            "versions": versions,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the key as hex."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def holds(place: Place, release: Release) -> manifest.Manifest | None:
    """The manifest in `place` if a build of this very release was finished there, else None. Its files may be damaged."""
    try:
        found = manifest.read(place.folder)
        sizes = [shard["rows"] for shard in found["configs"]["default"]["train"]["shards"]]
        listed = [
            (config, split, shard["name"], shard["rows"])
            for config, splits in found["configs"].items()
            for split, of in splits.items()
            for shard in of["shards"]
            if isinstance(shard["bytes"], int) and isinstance(shard["sha256"], str)
        ]
        same = found["release"] == release.key() and found["dataset_version"] == DATASET_VERSION
        same = same and isinstance(sizes[0], int) and sizes[0] > 0 and -(-release.rows("train") // sizes[0]) == len(sizes)
    except (DataError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return found if same and listed == [(s.config, s.split, s.name, s.rows) for s in parquet.plan(release, "", sizes[0])] else None


def check(place: Place, key: Key, overwrite: bool) -> bool:
    """Whether a build can go on with what lies there, else it must be removed. Raises InputError if neither may be done."""
    names = place.names()
    strangers = [name for name in names if not (name in _FOLDERS if name.endswith("/") else _OURS.fullmatch(name))]
    mark = place.read(MARK) if MARK in names else None
    finished = _is_build(place)
    if mark is None and not finished and any(not name.startswith(f"{STATE}/") for name in names if name not in _FOLDERS):
        raise InputError("--out is not empty and holds no build", str(place), "an empty or new folder", "choose another --out")
    if strangers:
        what = "--out holds files that no build writes"
        raise InputError(what, strangers[0], "a folder with nothing but a build", "move them away or choose another --out")
    same = mark is None or _parsed(mark) == key.to_json()
    if not finished and same:
        return True
    if finished and not overwrite and holds(place, key.release) is not None:
        raise FinishedError("--out holds this release already", str(place), "an unfinished build", "run the same command again")
    if not overwrite:
        kind = "another build" if finished else _unfinished(mark, key)
        raise InputError(f"--out holds {kind}", str(place), "an empty or new folder", "add --overwrite to replace it")
    return False


@contextlib.contextmanager
def claimed(place: Place, key: Key, overwrite: bool, part: tuple[int, int] | None) -> Iterator[lock.Lock | None]:
    """Hold `place`, marked as this build's, while the block runs; the lock is None where there is none to be had.

    Raises InputError, having touched nothing, if the place may not be claimed or cannot be written.
    """
    check(place, key, overwrite)
    new = isinstance(place, Local) and not place.root.exists()
    with contextlib.ExitStack() as stack:
        held = None
        try:
            if isinstance(place, Local):
                held = lock.Lock(place.root)
                stack.enter_context(held.held(shared=part is not None))
                if part is not None:
                    stack.enter_context(lock.Lock(place.root, f"{STATE}/slice-{part[0]}-of-{part[1]}.lock").held())
            if not check(place, key, overwrite):
                remove(place, [name for name in place.names() if name != lock.NAME])
            leftovers = [name for name in place.names() if files.TEMPORARY in name] if part is None else []
            if leftovers:
                remove(place, leftovers)
            if place.read(MARK) is None:
                place.write(MARK, json.dumps(key.to_json()).encode())
        except OSError as error:
            _undo(place, new)
            why = error.strerror or str(error)
            raise InputError("--out cannot be written", str(place), "a folder you may write to", f"choose another ({why})") from error
        yield held


def refuse_links(place: Place) -> None:
    """Raise InputError if something in a place that is to be written to is a link."""
    link = next((name for name in place.names() if name.endswith("@")), None)
    if link is not None:
        raise InputError("--out holds a link", link.removesuffix("@"), "files and folders", "replace it by what it leads to")


def mine(place: Place, key: Key) -> bool:
    """Whether the place still carries the mark of this build."""
    mark = place.read(MARK)
    return mark is not None and _parsed(mark) == key.to_json()


def settle(place: Place, keep: Sequence[str]) -> None:
    """Take away the state of a finished build and whatever else a build once left, but for `keep`; the mark goes last."""
    kept = set(keep)
    remove(place, [name for name in place.names() if name not in kept and not name.endswith("@")])


def check_name(out: Path | str) -> None:
    """Raise InputError if `out` cannot be a folder or a URL that a build is written to."""
    place = places.place(out)
    if not isinstance(place, Local):
        return
    for path in (place.root, *place.root.parents):
        try:
            there, folder = path.exists(), path.is_dir()
        except OSError as error:
            raise InputError("--out cannot be used", str(out), "the name of a folder", f"choose another ({error.strerror})") from error
        if there and not folder:
            raise InputError("--out is not a folder", str(path), "a folder, or a name that does not exist yet", "choose another --out")
        if there:
            return


def _unfinished(mark: bytes | None, key: Key) -> str:
    found = _parsed(mark or b"")
    if isinstance(found, dict) and found.get("release") == key.release.key():
        differing = [name for name, value in key.to_json().items() if found.get(name) != value]
        return f"an unfinished build with another {', '.join(differing)}"
    return "an unfinished build of another release"


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _is_build(place: Place) -> bool:
    try:
        manifest.read(place.folder)
    except DataError:
        return False
    return True


def remove(place: Place, names: Sequence[str]) -> None:
    """Delete files of a build, the marks of ownership last, then the folders that are empty."""
    last = (manifest.NAME, MARK, lock.NAME)
    ours = [name for name in names if _OURS.fullmatch(name)]
    for name in sorted(ours, key=lambda name: last.index(name) if name in last else -1):
        place.remove(name)
    if isinstance(place, Local):
        for name in _FOLDERS:
            place.remove(name)


def _undo(place: Place, new: bool) -> None:
    """Leave nothing of a claim that failed before the mark was there."""
    with contextlib.suppress(OSError):
        if isinstance(place, Local) and place.read(MARK) is None:
            remove(place, [name for name in place.names() if name.startswith(f"{STATE}/")])
            if new:
                place.root.rmdir()
