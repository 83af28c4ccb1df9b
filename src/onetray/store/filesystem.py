"""Tell whether a path lies on a network file system.

Owns one question. Answers None where it cannot be known.
"""

from __future__ import annotations

import os

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "davfs", "fuse.sshfs", "fuse.davfs", "fuse.glusterfs",
    "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "glusterfs", "ceph", "fuse.ceph", "lustre", "afs", "gpfs", "beegfs",
    "9p", "drvfs", "vboxsf", "ocfs2", "gfs2",
}  # fmt: skip
MOUNTS = "/proc/self/mounts"


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
        # The last mount on a point hides the ones below it.
        if inside and len(folder) >= longest:
            longest, kind = len(folder), fs
    return kind if kind in NETWORK else None
