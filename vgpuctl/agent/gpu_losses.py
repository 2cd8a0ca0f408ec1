# SPDX-License-Identifier: Apache-2.0
"""Which lost GPUs were reported: the kernel's log (Xid 79) and a look at the host both see the same loss."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.ports.system import Clock

SAME_LOSS_SECONDS = 60.0
"""For so long after Xid 79 another report of the GPU is the same loss, even if no look has found it lost yet."""

_UNTIL_BACK = float("inf")


class GpuLosses:
    """The GPUs whose loss was reported. Its methods may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._reported_until: dict[str, float] = {}

    def report(self, gpu: str, *, was_seen: bool) -> bool:
        """Note a loss; return whether it is a new one. `was_seen`: by a look, so it lasts until a look sees it back."""
        now = self._clock.monotonic()
        with self._lock:
            until = self._reported_until.get(gpu, now)
            self._reported_until[gpu] = _UNTIL_BACK if was_seen else max(until, now + SAME_LOSS_SECONDS)
        return until <= now

    def note_working(self, gpu: str) -> None:
        """Note that a look sees a GPU work: if a look has seen its loss, the next one is another."""
        with self._lock:
            if self._reported_until.get(gpu) == _UNTIL_BACK:
                del self._reported_until[gpu]
