"""Bytes that reach the disk: whole writes, reserved space, syncing."""

import errno
import os
from pathlib import Path

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Writes all bytes of `data` at `offset`, however few the system takes at a time."""
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def reserve(fd: int, size: int) -> None:
    """Takes the space of a file now, so that a full disk is known before the work."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
            raise
        os.ftruncate(fd, size)


def sync_data(fd: int) -> None:
    """Has the written bytes of an open file reach the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)


def sync(path: Path) -> None:
    """Has what was written to a file, or the entries of a folder, reach the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not path.is_dir():  # some systems sync no folders
            raise
    finally:
        os.close(fd)


def sync_folders(top: Path) -> None:
    """Syncs the entries of `top` and of every folder below it."""
    for path in top.rglob("*"):
        if path.is_dir():
            sync(path)
    sync(top)
