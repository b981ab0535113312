"""An output folder before a build: empty, a finished build, one that was cut short, or somebody else's.

`.build/release.json` is written first and removed last, so a build that was cut short is told from a stranger's files. Only files of
names that a build writes are ever deleted, and only where a build has marked the folder as its own.
"""

import json
import re
from pathlib import Path
from typing import Final

from generator import files, manifest
from generator.errors import DataError, InputError
from generator.release import Release
from schema.version import DATASET_VERSION

MARK: Final = ".build/release.json"

_OURS: Final = re.compile(
    r"README\.md|manifest\.json|stats\.json|\.build/release\.json"
    r"|default/(train|validation)-\d{5}-of-\d{5}\.parquet|holdout/test-\d{5}-of-\d{5}\.parquet"
    r"|jsonl/(episodes\.jsonl|tasks_holdout\.jsonl|stats\.json|batches/batch_\d{3,}\.jsonl)"
    r"|((default|holdout|jsonl|jsonl/batches|\.build)/)?" + re.escape(files.TEMPORARY) + r"\d+-[^/]+"
)
_FOLDERS: Final = ("jsonl/batches", "jsonl", "default", "holdout", ".build")


def holds(out: Path, release: Release) -> manifest.Manifest | None:
    """The manifest in `out` if a whole build of this very release lies there, else None."""
    try:
        found = manifest.read(out)
    except DataError:
        return None
    same = found["release"] == release.key() and found["dataset_version"] == DATASET_VERSION
    return found if same and manifest.damage(out, found) is None else None


def claim(out: Path, release: Release, overwrite: bool) -> None:
    """Make `out` an empty folder that is marked as this build's. Raises InputError, having touched nothing, if it may not be."""
    if out.is_dir() and any(out.iterdir()):
        _check_removable(out, overwrite)
        _remove(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.write(out / MARK, json.dumps(release.key()).encode())
    except OSError as error:
        raise InputError("--out cannot be written", str(out), "a folder you may write to", f"choose another ({error.strerror})") from error


def release_mark(out: Path) -> None:
    """Take the mark away: the build is whole."""
    (out / MARK).unlink(missing_ok=True)
    (out / MARK).parent.rmdir()


def check_name(out: Path) -> None:
    """Raise InputError if `out` cannot be a folder."""
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise InputError("--out is not a folder", str(path), "a folder, or a name that does not exist yet", "choose another --out")
        if path.exists():
            return


def _check_removable(out: Path, overwrite: bool) -> None:
    if not (out / MARK).is_file() and not _is_build(out):
        raise InputError("--out is not empty and holds no build", str(out), "an empty or new folder", "choose another --out")
    strangers = _strangers(out)
    if strangers:
        what = "--out holds files that no build writes"
        raise InputError(what, strangers[0], "a folder with nothing but a build", "move them away or choose another --out")
    if not overwrite:
        kind = "an unfinished build" if (out / MARK).is_file() else "another build"
        raise InputError(f"--out holds {kind}", str(out), "an empty or new folder", "add --overwrite to replace it")


def _is_build(out: Path) -> bool:
    try:
        manifest.read(out)
    except DataError:
        return False
    return True


def _strangers(out: Path) -> list[str]:
    """Paths below `out` that no build writes, links among them."""
    found = []
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        ours = name in _FOLDERS if path.is_dir() else _OURS.fullmatch(name) is not None
        if path.is_symlink() or not ours:
            found.append(name)
    return found


def _remove(out: Path) -> None:
    """Delete the files of a build, the mark of ownership last."""
    marks = {out / MARK, out / manifest.NAME}
    paths = [path for path in out.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: path in marks):
        path.unlink()
    for name in _FOLDERS:
        if (out / name).is_dir():
            (out / name).rmdir()
