"""Machine code on disk, so that a kernel is compiled once a machine.

A file's name holds a hash of all that the code depends on; its head, a checksum of what
follows, so that one that was cut short or damaged is found out and made anew. Code from
here runs on the device: the folder is used only where nobody but the user can write.

``PTAC_KERNEL_CACHE`` names another folder, or is 0 for none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

HEAD = b"pai_torchacc kernel 1\n"

MOST_BYTES = 64 << 20
"""What is in the folder; beyond it, what was used least recently goes."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unusable(RuntimeError):
    """There is no cache; the text says why."""


def folder() -> Path:
    """Where files go."""
    named = os.environ.get("PTAC_KERNEL_CACHE")
    if named == "0":
        raise Unusable("switched off by PTAC_KERNEL_CACHE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # noqa: PTH117 - an empty Path is the current folder
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:
            raise Unusable("there is no home folder") from None
    return Path(base, "pai_torchacc", "kernels")


def key(*parts: object) -> str:
    """The part of a file's name that says what its code depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


@contextlib.contextmanager
def _opened(path: Path, create: bool) -> Iterator[int]:
    try:
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    try:
        if not _is_mine(os.fstat(descriptor)):
            raise Unusable(f"{path} belongs to others, or others may write there")
        yield descriptor
    finally:
        os.close(descriptor)


def _is_mine(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def read(name: str) -> bytes | None:
    """The code kept under this name; None where there is none that can be trusted."""
    with _opened(folder(), create=True) as directory:
        try:
            descriptor = os.open(name, _READ, dir_fd=directory)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not _is_mine(found):
                return None
            try:
                content = file.read(MOST_BYTES)
                os.utime(descriptor)
            except OSError:
                return None
    start = len(HEAD) + 64
    code = content[start:]
    is_whole = content[:start] == HEAD + hashlib.sha256(code).hexdigest().encode()
    return code if is_whole else None


def write(name: str, code: bytes) -> None:
    """Keep code under this name, whole or not at all, and the folder in its bounds."""
    with _opened(folder(), create=True) as directory:
        fresh = f"{name}.{os.urandom(8).hex()}.new"
        try:
            descriptor = os.open(fresh, _CREATE, 0o600, dir_fd=directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(HEAD + hashlib.sha256(code).hexdigest().encode() + code)
            os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=directory)
            raise Unusable(f"{folder()}: {error.strerror}") from None
        _keep_bounds(directory)


def _keep_bounds(directory: int) -> None:
    files = []
    for name in os.listdir(directory):
        if name.endswith((".code", ".new")):
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                files.append((found.st_mtime, found.st_size, name))
    total = sum(bytes_ for _, bytes_, _ in files)
    for _, bytes_, name in sorted(files):
        if total <= MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        total -= bytes_
