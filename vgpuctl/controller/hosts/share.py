# SPDX-License-Identifier: Apache-2.0
"""Which hosts this controller takes, so that several on one database have about as many each, without a leader.

Each controller knows how many live and how many hosts there are. One that has fewer than its share takes hosts that
nobody has. One that has more lets some go, a few at a time, and waits until others have taken those. A host that nobody
takes for a while is taken by anyone, whatever his share: its controller died, or the others cannot reach it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from vgpuctl.controller.clock import ControllerClock

FREE_SECONDS = 10.0
"""A host that nobody has for so long is taken by a controller that has its share already."""
TOLERANCE = 10
"""A tenth of its share more than that is no reason for a controller to begin to let hosts go."""
FEW, PART = 4, 20
"""So many hosts wait for another controller at a time, or a twentieth of the fleet if that is more."""
REST_SECONDS = 300.0
"""After a host came back that no other controller took, nothing is let go for so long."""


class HostShare:
    """The hosts of this controller, by id. Its hosts' loops and its engine share it, from several threads."""

    def __init__(self, clock: ControllerClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts, self._controllers = 0, 1
        self._held: set[str] = set()
        self._leaving: set[str] = set()
        """Those of `held` that are to be let go."""
        self._left: set[str] = set()
        """Those that were let go, and that no other controller was seen to have since."""
        self._is_letting_go = False
        self._rest_until = 0.0

    def set_hosts(self, count: int) -> None:
        """Note how many hosts the fleet has."""
        with self._lock:
            self._hosts = count

    def set_controllers(self, count: int) -> None:
        """Note how many controllers live, with this one."""
        with self._lock:
            self._controllers = max(1, count)

    @property
    def size(self) -> int:
        """How many hosts are this controller's share."""
        return -(-self._hosts // self._controllers)

    @property
    def is_alone(self) -> bool:
        """Whether no other controller lives."""
        return self._controllers == 1

    def take(self, host_id: str, free_seconds: float, *, was_own: bool = False) -> bool:
        """Return whether this controller should take a host that nobody has for so long; then it counts as its own.

        `was_own`: it was the last one that had it.
        """
        with self._lock:
            if host_id not in self._held:
                if len(self._held) >= self.size and free_seconds < FREE_SECONDS:
                    return False
                if host_id in self._left and was_own:
                    self._rest_until = self._clock.monotonic() + REST_SECONDS
                self._left.discard(host_id)
                self._held.add(host_id)
            return True

    def keep(self, host_id: str) -> None:
        """Note that this controller has a host."""
        with self._lock:
            self._held.add(host_id)

    def lose(self, host_id: str) -> None:
        """Note that this controller does not have a host."""
        with self._lock:
            self._held.discard(host_id)
            self._leaving.discard(host_id)

    def compare(self, held: AbstractSet[str]) -> frozenset[str]:
        """Return the hosts that this controller had and lost; `held`: those that it has by the database."""
        with self._lock:
            lost = frozenset(self._held - held)
            self._held -= lost  # one that is being taken just now is noted again when it is
            self._leaving -= lost
            return lost

    def choose_leaving(self, idle: Iterable[str], free: AbstractSet[str]) -> frozenset[str]:
        """Choose hosts that are to be let go, of some with which nothing is done now; `free`: those that nobody has."""
        with self._lock:
            self._left &= free
            excess = len(self._held) - self.size
            self._is_letting_go = excess > (0 if self._is_letting_go else self.size // TOLERANCE)
            if not self._is_letting_go or self._clock.monotonic() < self._rest_until:
                return frozenset()
            room = max(FEW, self._hosts // PART) - len(self._left) - len(self._leaving)
            count = max(0, min(excess - len(self._leaving), room))
            chosen = frozenset(sorted(self._held.intersection(idle) - self._leaving)[:count])
            self._leaving |= chosen
            return chosen

    def is_leaving(self, host_id: str) -> bool:
        """Return whether a host is to be let go."""
        with self._lock:
            return host_id in self._leaving

    def stay(self, host_id: str) -> None:
        """Note that a host is not let go after all."""
        with self._lock:
            self._leaving.discard(host_id)

    def let_go(self, host_id: str) -> None:
        """Note that a host is let go now."""
        with self._lock:
            self._held.discard(host_id)
            self._leaving.discard(host_id)
            self._left.add(host_id)

    def forget(self, host_id: str) -> None:
        """Note that a host is no longer in the fleet, or that this controller stops."""
        with self._lock:
            for hosts in (self._held, self._leaving, self._left):
                hosts.discard(host_id)
