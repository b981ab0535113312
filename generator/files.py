"""Writing files so that a reader sees all of a file or none of it, also after a crash or a power cut.

A file gets a temporary name of its own in its folder, is forced to disk, and takes its real name only then, so nothing half written ever
carries the name of a shard, and a crash leaves at most a `.tmp-` file behind.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

TEMPORARY: Final = ".tmp-"
"""How the names of unfinished files begin; then come a process id, a number, and the name to be."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the name `path` when the block ends without an error, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, handle = _unique(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _settle(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, data: bytes | memoryview) -> None:
    """Put `data` at `path`, whole."""
    with replacing(path) as stream:
        stream.write(data)


def _unique(path: Path) -> tuple[Path, int]:
    """A new file beside `path`; hosts that share the folder may share process ids, so the name must be new as well."""
    for number in itertools.count():
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{number}-{path.name}")
        with contextlib.suppress(FileExistsError):
            return temporary, os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    raise AssertionError("numbers do not end")


def _settle(folder: Path) -> None:
    """Force a rename to disk, where the system has a way to."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
