"""Runs libvirt's hook once on a simulated host; prints how long it waited for the host lock and how long it held it.

`python -m tests.bench.hook_driver SCENARIO < XML` prints the seconds waited and the seconds held.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vgpuctl.hook.run import prepare
from vgpuctl.ports.run_directory import Claims
from vgpuctl.simulated import open_simulated_host
from vgpuctl.value import replace


class TimedClaims:
    """The host's claims. They time the wait for the lock and how long it is held."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self.waited = self.held_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claims, name)

    @contextmanager
    def lock(self, wait_seconds: float) -> Iterator[None]:
        """Take the lock and time it."""
        requested_at = time.perf_counter()
        with self._claims.lock(wait_seconds):
            acquired_at = time.perf_counter()
            self.waited += acquired_at - requested_at
            try:
                yield
            finally:
                self.held_seconds += time.perf_counter() - acquired_at


def main(scenario: str, xml: str) -> None:
    """Do what the hook does for this VM."""
    ports = open_simulated_host(scenario)
    claims = TimedClaims(ports.claims)
    prepare(replace(ports, claims=claims), xml)
    print(claims.waited, claims.held_seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
