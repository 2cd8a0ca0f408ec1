"""Creates VMs one after the other on a simulated host, as the CLI does; prints how long each held the host lock.

`python -m tests.bench.lock_driver HOST PREFIX COUNT` prints wall-clock seconds and CPU seconds, one pair per line. It
starts when standard input ends, so that several processes can start together.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.hosts import context, operation
from vgpuctl.cli import entry
from vgpuctl.library import open_ports
from vgpuctl.library.requests import from_fields
from vgpuctl.operations.create import create_vm
from vgpuctl.ports.run_directory import Claims
from vgpuctl.value import replace


class TimedClaims:
    """The host's claims. They time how long the lock is held."""

    def __init__(self, claims: Claims, held_seconds: list[tuple[float, float]]) -> None:
        self._claims = claims
        self._held_seconds = held_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claims, name)

    @contextmanager
    def lock(self, wait_seconds: float) -> Iterator[None]:
        """Take the lock and time it from acquisition to release."""
        with self._claims.lock(wait_seconds):
            started, cpu = time.perf_counter(), time.process_time()
            try:
                yield
            finally:
                self._held_seconds.append((time.perf_counter() - started, time.process_time() - cpu))


def main(host: str, prefix: str, count: int) -> None:
    """Create the VMs and print the times."""
    gc.set_threshold(entry.GARBAGE_THRESHOLD)
    lock_times: list[tuple[float, float]] = []
    sys.stdin.read()
    for number in range(count):
        ports = open_ports(host)
        ports = replace(ports, claims=TimedClaims(ports.claims, lock_times))
        request = from_fields(ports, f"{prefix}-{number:03d}", {"profile": "A16-1Q"})
        with operation(ports):
            create_vm(ports, context(wait_seconds=60), request, start=False)
    print(*(f"{wall} {cpu}" for wall, cpu in lock_times), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
