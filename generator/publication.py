"""What a push would do: the files of a finished build, what differs in the repository, and under which tag they go.

Nothing here talks to the Hub. A build is checked whole before anything of it is planned.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from generator import jsonl, manifest, viewer
from generator.errors import DataError, InputError

NAME: Final = "kernelswarm"
PIECE_FILES: Final = 100
PIECE_BYTES: Final = 1_000_000_000
"""Most that goes up between two reports of progress; a piece that is up is never sent again."""
LOOSE: Final = re.compile(r"figures/.*|jsonl/.*")
"""What may differ under one tag: how pictures are drawn, and a copy of the rows in another layout."""

_REPO: Final = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?<![.-])")
_OURS: Final = re.compile(
    r"README\.md|manifest\.json|stats\.json|figures/[^/]+\.png|(default|holdout)/[^/]+\.parquet|jsonl/.+\.jsonl|jsonl/stats\.json"
)
"""Names that a push writes, so also what an earlier push may have left."""


class Stored(Protocol):
    """A file of a repository, as huggingface_hub tells of it."""

    size: int
    blob_id: str
    lfs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to publish, and where."""

    folder: Path
    repo_id: str | None = None
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    jsonl: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Refuse what no repository can be called."""
        if self.repo_id is not None and not _REPO.fullmatch(self.repo_id):
            raise InputError("--repo-id is not valid", self.repo_id, f"NAME/{NAME}", "or leave it out for your own account")
        if self.revision is not None and not re.fullmatch(r"[A-Za-z0-9][\w./-]*", self.revision):
            raise InputError("--revision is not valid", self.revision, "a name of a branch", "or leave it out for the main branch")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file to publish."""

    name: str
    path: Path
    size: int
    sha256: str

    def equals(self, other: Stored) -> bool:
        """Whether the repository's file has these bytes; large files are known by their SHA-256, others by their git blob."""
        if other.lfs is not None:
            return bool(other.lfs.sha256 == self.sha256)
        return bool(other.size == self.size and other.blob_id == _blob(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a push does."""

    repo_id: str
    revision: str
    parent: str | None
    """Commit the plan is made against; None if there is no repository yet."""
    branches: bool
    """Whether the branch must be made."""
    adds: tuple[File, ...] = ()
    changes: tuple[File, ...] = ()
    deletes: tuple[str, ...] = ()
    unchanged: int = 0
    tag: str | None = None
    """Tag to set; None for a pull request, or if it is there with this content."""

    @property
    def sends(self) -> tuple[File, ...]:
        return self.adds + self.changes

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.sends)

    @property
    def empty(self) -> bool:
        return not self.sends and not self.deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done, or would be."""

    state: Literal["planned", "pushed", "unchanged"]
    plan: Plan
    url: str
    commit: str | None = None


def collect(folder: Path, with_jsonl: bool = False) -> tuple[manifest.Manifest, list[File]]:
    """Manifest and files of a build that may be published. Raises InputError or DataError if it may not."""
    require_build(folder)
    findings = viewer.check(folder)
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise DataError(
            "the build is incomplete or altered", f"{findings[0]}{more}", "what `build` wrote", "build it again with --overwrite"
        )
    made = manifest.read(folder)
    if with_jsonl and not jsonl.complete(folder, manifest.shards(made, "default", "train")):
        raise InputError("the build has no JSONL", str(folder), "a build made with --jsonl", "build it with --jsonl or push without")
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    wanted = [name for name in named if _OURS.fullmatch(name) and (with_jsonl or not name.startswith(f"{jsonl.FOLDER}/"))]
    return made, [_file(name, named[name]) for name in wanted]


def require_build(folder: Path) -> None:
    """Raise InputError if there is no finished build in `folder`."""
    if not (folder / manifest.NAME).is_file():
        raise InputError("no build here", str(folder), "a folder that `build` finished", "give the --out of a build")


def _file(name: str, path: Path) -> File:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return File(name=name, path=path, size=path.stat().st_size, sha256=digest)


def _blob(path: Path) -> str:
    """The id git gives these bytes."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def changes(files: Iterable[File], there: Mapping[str, Stored]) -> dict[str, Any]:
    """Adds, changes, deletes and the number of equal files, as `Plan` takes them."""
    files = list(files)
    adds = tuple(file for file in files if file.name not in there)
    changed = tuple(file for file in files if file.name in there and not file.equals(there[file.name]))
    names = {file.name for file in files}
    deletes = tuple(name for name in sorted(there) if name not in names and _OURS.fullmatch(name))
    return {"adds": adds, "changes": changed, "deletes": deletes, "unchanged": len(files) - len(adds) - len(changed)}


def pieces(files: Iterable[File]) -> Iterator[list[File]]:
    """Files in order, cut where a piece is full."""
    piece: list[File] = []
    for file in files:
        if piece and (len(piece) == PIECE_FILES or sum(other.size for other in piece) + file.size > PIECE_BYTES):
            yield piece
            piece = []
        piece.append(file)
    if piece:
        yield piece


def message(plan: Plan) -> str:
    counts = f"{len(plan.adds)} added, {len(plan.changes)} changed, {len(plan.deletes)} deleted"
    return f"{NAME} {plan.tag}: {counts}" if plan.tag else f"{NAME}: {counts}"
