"""Whether the file at a path is still the database that was opened there.

Owns one question, asked before each commit. SQLite goes on writing to a file that was deleted, moved or replaced while
it was open: whoever opens the path later finds nothing of that.
"""

from __future__ import annotations

import ctypes
import os

import apsw

from onetray.errors import DatabaseMoved, DatabaseReplaced, StoreError

SIDES = ("-wal", "-shm")
"""Every process that has the database open must share these too: commits are in the one, locks in the other."""
Identity = tuple[int, int]


class OpenFile:
    """The file that a connection has opened, known by its device and inode."""

    def __init__(self, path: str, connection: apsw.Connection) -> None:
        self._path = path
        self._main = _identity(path)
        if self._main is None or _has_moved(connection):
            raise StoreError(f"the file {path} was replaced while it was being opened: open it again", path=path)
        self._sides: list[tuple[str, Identity]] = []
        self._find_sides()

    def check(self) -> None:
        """Raise unless everything that is written now will be found at the path."""
        self.check_main()
        if not self._sides:
            self._find_sides()
        for name, identity in self._sides:
            if _identity(name) != identity:
                self._check_sides()
                return

    def check_main(self) -> None:
        """The same, of the database alone: good enough for those who only read."""
        found = _identity(self._path)
        if found == self._main:
            return
        if found is None:
            raise DatabaseMoved(
                f"the database {self._path} is gone: it was moved away or deleted while this process had it open. "
                "Nothing was written. Bring the same file back, or start this process again to begin a new one",
                path=self._path,
            )
        raise DatabaseReplaced(
            f"another file is at {self._path} than the one that this process has open. Nothing was written. "
            "Start this process again to use the file that is there now",
            path=self._path,
        )

    def _find_sides(self) -> None:
        """Note -wal and -shm. A new database has none before it is first written to."""
        real = os.path.realpath(self._path)
        found = [(real + side, _identity(real + side)) for side in SIDES]
        self._sides = [(name, identity) for name, identity in found if identity is not None]

    def _check_sides(self) -> None:
        """One is not where it was: the whole directory may have been moved, with a link in its old place."""
        known, real = self._sides, os.path.realpath(self._path)
        self._sides = [(real + side, identity) for side, (_, identity) in zip(SIDES, known, strict=True)]
        for name, identity in self._sides:
            if _identity(name) != identity:
                self.check_main()
                raise DatabaseReplaced(
                    f"{name} was deleted or replaced while this process had {self._path} open. Nothing was written. "
                    "Stop all processes that use the database, then start them again",
                    path=self._path,
                )


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _has_moved(connection: apsw.Connection) -> bool:
    """Whether the file that the connection has open is another than the one at its path: as SQLite itself sees it."""
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    return bool(moved.value)
