"""Whether the file at a path is still the database that was opened there.

Owns that check, which runs before each commit. SQLite keeps writing to a file that was deleted, moved or replaced while
it was open, and a process that opens the path later finds none of those writes.
"""

from __future__ import annotations

import ctypes
import os
import shlex

import apsw

from onetray.domain.errors import DatabaseMoved, DatabaseReplaced, StoreError

SIDES = ("-wal", "-shm")
"""All processes must also share these files: the one holds commits, the other locks."""
Identity = tuple[int, int]


class OpenFile:
    """The file that a connection has open, identified by device and inode."""

    def __init__(self, path: str, connection: apsw.Connection) -> None:
        self._path = path
        self._main = _identity(path)
        if self._main is None or _has_moved(connection):
            raise StoreError(f"the file {path} was replaced while it was being opened: open it again", path=path)
        self._sides: list[tuple[str, Identity]] = []
        self._size = 0
        self._schema: object = None
        self._spoiled: DatabaseReplaced | None = None

    def check(self) -> int:
        """Raises if a write would not be found at the path. Returns the size of the database."""
        size = self.check_main()
        for name, identity in self._sides:
            if _identity(name) != identity:
                self._check_sides()
                break
        return size

    def check_in(self, connection: apsw.Connection) -> None:
        """Like check, in a transaction that is about to commit: also detects a file copied over this one.

        Only VACUUM makes a database smaller, and that changes the schema version.
        """
        size = self.check()
        if size < self._size or self._schema is None:
            schema, shrinks = (connection.pragma(name) for name in ("schema_version", "auto_vacuum"))
            if schema == self._schema and not shrinks:
                self._spoiled = DatabaseReplaced(
                    f"another file was copied over {self._path} while this process had it open. Nothing was written. "
                    f"Stop all processes that use it, delete {self._path}-wal and -shm, copy the file again, then "
                    "start them",
                    path=self._path,
                )
                raise self._spoiled
            self._schema = schema
        self._size = size

    def forget_schema(self) -> None:
        """After a migration: the schema that was read before it is another one."""
        self._schema = None

    def check_main(self) -> int:
        """Like check, for the database file alone: enough for readers."""
        if self._spoiled is not None:
            raise self._spoiled
        identity, size = _identity_and_size(self._path)
        if identity == self._main:
            return size
        if identity is None:
            raise DatabaseMoved(
                f"the database {self._path} is gone ({_why_not(self._path)}): it was moved or deleted, or its "
                "directory became inaccessible, while this process had it open. "
                "Nothing was written. Bring the same file back, or restart this process to create a new one",
                path=self._path,
            )
        raise DatabaseReplaced(
            f"{self._path} is not the file that this process has open any more. Nothing was written. "
            "Restart this process to use the new file",
            path=self._path,
        )

    def note_sides(self) -> None:
        """Record -wal and -shm once a connection has them open: before that, other processes may remove theirs."""
        if self._sides:
            return
        real = os.path.realpath(self._path)
        sides = [(real + side, identity) for side in SIDES if (identity := _identity(real + side)) is not None]
        if len(sides) == len(SIDES):
            self._sides = sides

    def _check_sides(self) -> None:
        """One is not where it was: the directory may have been moved and replaced by a symbolic link."""
        real = os.path.realpath(self._path)
        self._sides = [(real + side, identity) for side, (_, identity) in zip(SIDES, self._sides, strict=True)]
        for name, identity in self._sides:
            if _identity(name) != identity:
                self.check_main()
                raise DatabaseReplaced(
                    f"{name} was deleted or replaced while this process had {self._path} open. Nothing was written. "
                    "Stop all processes that use the database, then restart them",
                    path=self._path,
                )


def _identity(path: str) -> Identity | None:
    return _identity_and_size(path)[0]


def _identity_and_size(path: str) -> tuple[Identity | None, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return None, 0
    return (stat.st_dev, stat.st_ino), stat.st_size


def _why_not(path: str) -> str:
    try:
        os.stat(path)
    except OSError as e:
        return e.strerror or str(e)
    return "it is back"


def _has_moved(connection: apsw.Connection) -> bool:
    """Whether the connection's file is no longer the one at its path, according to SQLite."""
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    return bool(moved.value)


NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "davfs", "fuse.sshfs", "fuse.davfs", "fuse.glusterfs",
    "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "glusterfs", "ceph", "fuse.ceph", "lustre", "afs", "gpfs", "beegfs",
    "9p", "drvfs", "vboxsf", "ocfs2", "gfs2",
}  # fmt: skip
MOUNTS = "/proc/self/mounts"


def require_folder(path: str) -> None:
    """Raise StoreError, with the command that creates it, if the directory of a file does not exist."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StoreError(
            f"the directory {folder} does not exist: create it with `mkdir -p {shlex.quote(folder)}`, or fix the URL",
            path=path,
        )


def network_filesystem(path: str, mounts: str = MOUNTS) -> str | None:
    """The type of the network file system that holds the path, or None for a local disk."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as f:
            table = [line.split()[1:3] for line in f if len(line.split()) >= 3]
    except OSError:
        return None
    real, kind = os.path.realpath(path), None
    longest = -1
    for point, fs in table:
        folder = point.replace("\\040", " ")
        inside = real == folder or real.startswith(folder.rstrip("/") + "/")
        # The last mount at a path hides earlier ones.
        if inside and len(folder) >= longest:
            longest, kind = len(folder), fs
    return kind if kind in NETWORK else None
