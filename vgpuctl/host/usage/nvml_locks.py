# SPDX-License-Identifier: Apache-2.0
"""Keep NVML closed while vgpuctl changes a GPU's layout: the driver refuses the change while a reader has it open.

Any number of changes go on at once, each with a shared lock on `nvml-changes`; readers have a shared lock on
`nvml-readers` while NVML is open. A change takes its lock first and then waits until no reader is left, so no reader
begins after that. The kernel releases the locks of a process that dies (flock(2)).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_SECONDS = 15.0
"""So long a change waits for readers: longer than a sample takes. One that hangs in the driver is not waited for."""
_TRIES, _PAUSE_SECONDS = 3, 0.02


@contextmanager
def reading(directory: Path) -> Iterator[bool]:
    """Hold the readers' lock; False: a change is at work, so NVML must not be opened.

    Raises:
        OSError: the locks cannot be opened; only root can.
    """
    try:
        readers, changes = (_open(directory / name) for name in ("nvml-readers", "nvml-changes"))
    except FileNotFoundError:
        yield True  # without /run/vgpuctl nobody changes anything now
        return
    try:
        fcntl.flock(readers, fcntl.LOCK_SH)
        yield not _is_locked(changes)
    finally:
        os.close(readers)
        os.close(changes)


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """Keep readers out during a change."""
    try:
        readers, changes = (_open(directory / name) for name in ("nvml-readers", "nvml-changes"))
    except OSError:  # the change itself fails then, with the reason
        yield
        return
    try:
        fcntl.flock(changes, fcntl.LOCK_SH)
        deadline = time.monotonic() + WAIT_SECONDS
        while not _try(readers) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        fcntl.flock(readers, fcntl.LOCK_UN)
        yield
    finally:
        os.close(readers)
        os.close(changes)


def _is_locked(changes: int) -> bool:
    """Return whether anybody has a lock. Another reader may ask the same at the same moment, so it asks again."""
    for _ in range(_TRIES):
        if _try(changes):
            fcntl.flock(changes, fcntl.LOCK_UN)
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _try(descriptor: int) -> bool:
    """Take a lock that excludes all others, if it is free now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
