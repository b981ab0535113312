"""Where a build lies: a local folder or any fsspec URL, with the few calls a build needs. Names are relative, with forward slashes.

Writes are whole or not at all: a rename on disks, one put on object stores. A stream would publish what it had when its writer failed.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from generator import files
from generator.errors import InputError

_BLOCK: Final = 1 << 20
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
"""Protocols that need an extra of this package."""


@dataclass(frozen=True, slots=True)
class Local:
    """A folder of this machine, or one that all workers share. Links are listed, and never followed by a listing."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def folder(self) -> Path:
        """What names this place to `place`."""
        return self.root

    def names(self) -> list[str]:
        """Everything below the root; folders end with `/`, links with `@`, whatever they lead to."""
        found = []
        for folder, folders, names in os.walk(self.root):
            at = Path(folder).relative_to(self.root)
            for name, mark in [*((name, "") for name in names), *((name, "/") for name in folders)]:
                found.append((at / name).as_posix() + ("@" if (Path(folder) / name).is_symlink() else mark))
        return sorted(found)

    def read(self, name: str) -> bytes | None:
        """The content of a regular file; None if there is none."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def size(self, name: str) -> int | None:
        """Bytes of a regular file; None if there is none."""
        path = self.root / name
        return path.stat().st_size if path.is_file() else None

    def sha256(self, name: str) -> str | None:
        """SHA-256 of a regular file as hex; None if there is none."""
        path = self.root / name
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a whole file there."""
        files.write(self.root / name, data)

    def remove(self, name: str) -> None:
        """Delete a file, or an empty folder if the name ends with `/`; no error if it has gone or a folder is not empty."""
        path = self.root / name
        if not name.endswith("/"):
            path.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):
            path.rmdir()


@dataclass(frozen=True, slots=True)
class Remote:
    """A folder behind an fsspec URL. What the store raises becomes an OSError, so that every failure to write is told alike."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def folder(self) -> str:
        """What names this place to `place`."""
        return self.url

    def names(self) -> list[str]:
        """Every object below the root."""
        fs, root = _open(self.url)
        with _failing(self.url):
            fs.invalidate_cache()
            try:
                found = [str(path) for path in fs.find(root)]
            except FileNotFoundError:
                return []
        return sorted(path.lstrip("/")[len(root.lstrip("/")) + 1 :] for path in found)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        fs, root = _open(self.url)
        with _failing(self.url):
            try:
                return bytes(fs.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        """Bytes of an object; None if there is none."""
        fs, root = _open(self.url)
        with _failing(self.url):
            try:
                fs.invalidate_cache()
                found = fs.info(f"{root}/{name}")
            except FileNotFoundError:
                return None
        return int(found["size"]) if found.get("type") == "file" else None

    def sha256(self, name: str) -> str | None:
        """SHA-256 of an object as hex; None if there is none."""
        fs, root = _open(self.url)
        total = hashlib.sha256()
        with _failing(self.url):
            try:
                with fs.open(f"{root}/{name}", "rb") as stream:
                    while block := stream.read(_BLOCK):
                        total.update(block)
            except FileNotFoundError:
                return None
        return total.hexdigest()

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a whole object there, in one call."""
        fs, root = _open(self.url)
        with _failing(self.url):
            fs.pipe_file(f"{root}/{name}", bytes(data))

    def remove(self, name: str) -> None:
        """Delete an object; no error if it has gone."""
        fs, root = _open(self.url)
        with _failing(self.url), contextlib.suppress(FileNotFoundError):
            fs.rm_file(f"{root}/{name}")


Place = Local | Remote


def place(out: Path | str) -> Place:
    """The place that `--out` names. Raises InputError, having touched nothing, for a URL that no build can be written to."""
    text = str(out)
    if "\0" in text or not text:
        raise InputError("--out is no name", text, "a folder or a URL", "choose another --out")
    protocol, found, rest = text.partition("://")
    if isinstance(out, Path) or not found:
        return Local(Path(out).absolute())
    if protocol == "file":
        return Local(Path(rest).absolute())
    if protocol == "hf" and not rest.startswith("buckets/"):
        why = "each file would be a commit, and a repository takes 128 an hour"
        raise InputError(f"--out is a Hub repository ({why})", text, "a folder, or hf://buckets/NAMESPACE/BUCKET/...", "build, then push")
    if not rest.strip("/"):
        raise InputError("--out names no folder", text, "PROTOCOL://BUCKET/FOLDER", "add a folder to the URL")
    _open(text.rstrip("/"))
    return Remote(text.rstrip("/"))


@cache
def _open(url: str) -> tuple[Any, str]:
    """File system and root of a URL; once per process."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError, OSError) as error:
        fix = f"pip install 'kernelswarm[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else "choose another --out"
        why = " ".join(str(error).split())
        raise InputError(f"--out cannot be opened ({why})", url, "a folder, or a URL that fsspec can open", fix) from error
    return fs, str(root).rstrip("/")


@contextlib.contextmanager
def _failing(url: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error
