"""One build at a time in a local folder: a lock that the system takes away when its holder dies, however it dies.

Slices share the lock with each other and exclude a whole build; each has a second lock of its own. An object store has no such lock, and
needs none: builds of one release write the same bytes, and builds of another are refused by their key.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from generator.errors import InputError

flock: Callable[[int, int], None] | None = None
"""None where there is no POSIX: builds are still whole or nothing, but two at once are not refused."""
with contextlib.suppress(ImportError):
    import fcntl

    flock = fcntl.flock

NAME: Final = ".build/lock"


class Lock:
    """A lock file that is held while `held()` runs."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self._path = folder / name
        self._handle: int | None = None

    @contextlib.contextmanager
    def held(self, shared: bool = False) -> Iterator[None]:
        """Hold the lock. Raises InputError if another process holds it, OSError if it cannot be made."""
        if not self.take(shared):
            raise InputError("another build writes to --out", str(self._path.parents[1]), "one build at a time", "wait for it or end it")
        try:
            yield
        finally:
            self.drop()

    def take(self, shared: bool = False) -> bool:
        """Take the lock, or change how it is held; False, and not held, if another process stands against it."""
        while True:
            if self._handle is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._handle = os.open(self._path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
                except FileNotFoundError:  # a build that ends has just taken the folder away
                    continue
            if flock is None:
                return True
            try:
                flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                self.drop()
                return False
            if self._current():
                return True
            self.drop()

    def drop(self) -> None:
        """Let go of the lock; the file stays, so that all who come later meet at the same one."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _current(self) -> bool:
        """Whether the locked file still carries its name: a build that ends takes it away."""
        assert self._handle is not None
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._handle)
        return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)
