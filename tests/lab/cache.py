"""The cache for everything that the lab builds. A stage is in the cache completely or not at all.

Each stage (a Debian tree, the modules, an image, a snapshot) is one directory `<stage>-<hash of its
inputs>`. The build uses a temporary directory and renames it at the end, so an existing stage is complete.
One lock covers all builds: two test runs that start together build only once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.errors import LabError

LOCK_DEADLINE_SECONDS = 1800.0


def cache_dir() -> Path:
    """Return the cache directory. It is outside the checkout, so a fresh clone reuses what another clone built."""
    configured = os.environ.get("VGPUCTL_LAB_CACHE")
    if configured:
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vgpuctl-lab"


@contextmanager
def build_lock(root: Path) -> Iterator[None]:
    """Hold the build lock during a build. A process that has to wait prints a message."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as handle:
        end = time.monotonic() + LOCK_DEADLINE_SECONDS
        reported = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise LabError(f"another lab build still holds {root / 'lock'}") from None
            if not reported:
                say("another build runs; waiting for it")
                reported = True
            time.sleep(0.2)
        yield


def stage(root: Path, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of a finished stage. If it does not exist, `make` fills an empty directory first."""
    place = root / f"{name}-{key}"
    if place.is_dir():
        return place
    work = Path(tempfile.mkdtemp(prefix=f"making-{name}-", dir=root))
    started = time.monotonic()
    say(f"{name}: building")
    try:
        work.chmod(0o755)
        make(work)
        work.rename(place)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    say(f"{name}: built in {time.monotonic() - started:.1f} s")
    return place


def drop_older(root: Path, keep: set[Path]) -> None:
    """Remove stages that the current recipe does not use and that are older than two days."""
    limit = time.time() - 2 * 86400
    for place in root.iterdir():
        if place.is_dir() and place not in keep and place.stat().st_mtime < limit:
            shutil.rmtree(place, ignore_errors=True)


def say(text: str) -> None:
    """Print a progress message to stderr, never to stdout."""
    print(f"lab: {text}", file=sys.stderr, flush=True)
