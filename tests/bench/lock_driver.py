"""Makes VMs on a simulated host, as the CLI does one after the other, and prints how long each held the host lock.

`python -m tests.bench.lock_driver HOST PREFIX COUNT`: seconds, one a line. It begins when standard input ends,
so that several can begin together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vgpuctl.cli import wishes, worlds
from vgpuctl.cli.progress import Silent
from vgpuctl.cli.settings import Settings
from vgpuctl.engine.create import create_vm
from vgpuctl.model.seams import Claims


class TimedClaims:
    """The host's own claims, with a watch on the lock."""

    def __init__(self, claims: Claims, held_seconds: list[float]) -> None:
        self._claims = claims
        self._held_seconds = held_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claims, name)

    @contextmanager
    def lock(self, wait_seconds: float) -> Iterator[None]:
        """Take the lock; the watch runs from when it is had until it is given back."""
        with self._claims.lock(wait_seconds):
            begun = time.perf_counter()
            try:
                yield
            finally:
                self._held_seconds.append(time.perf_counter() - begun)


def main(host: str, prefix: str, count: int) -> None:
    """Make the VMs and print the times."""
    held: list[float] = []
    sys.stdin.read()
    for number in range(count):
        world = worlds.open_world(Settings(host=host))
        world = replace(world, claims=TimedClaims(world.claims, held))
        wish = wishes.from_options(world, {"name": f"{prefix}-{number:03d}", "profile": ("A16-1Q",)})
        create_vm(world, wish, start=False, dry_run=False, wait_seconds=60, progress=Silent())
    print(*held, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
