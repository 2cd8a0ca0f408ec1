# SPDX-License-Identifier: Apache-2.0
"""When a VM that is on its way to another host may stand still for longer, and when its move is given up.

QEMU sends memory again and again while the guest writes, and switches over when what is left fits into the limit. A
guest with a vGPU writes more than QEMU's own limit of 300 ms allows, so that one never ends (KubeVirt's guide). The
limit rises in steps, each when what is left has not become less for a while.
"""

from __future__ import annotations

from vgpuctl.errors import Failed
from vgpuctl.model.migration import MigrationProgress
from vgpuctl.model.numbers import format_bytes
from vgpuctl.operations.plans.migration_estimate import LAST_PASS_MS

STALL_SECONDS = 15.0
"""So long what is left may not become less before the next limit."""
LAST_STALL_SECONDS = 40.0
"""The same at the last limit, before the move is given up (KubeVirt's value)."""


class Pace:
    """Follows one move. `limits_ms`: rising limits, of which the first holds when it begins."""

    def __init__(self, name: str, limits_ms: tuple[int, ...]) -> None:
        self._name = name
        self._limits_ms = limits_ms
        self._step = 0
        self._least: int | None = None
        self._since_ms = 0

    @property
    def limit_ms(self) -> int | None:
        """The limit that holds now; None: QEMU's own."""
        return self._limits_ms[self._step] if self._limits_ms else None

    def __call__(self, progress: MigrationProgress) -> int | None:
        """Return the next limit if it is time for it.

        Raises:
            Failed: what is left does not become less, at the last limit: the VM stays where it is.
        """
        left, now = _left(progress), progress.elapsed_ms
        if left is None or now is None:
            return None
        if self._least is None or left < self._least:
            self._least, self._since_ms = left, now
            return None
        is_last = self._step + 1 >= len(self._limits_ms)
        if now - self._since_ms < 1000 * (LAST_STALL_SECONDS if is_last else STALL_SECONDS):
            return None
        if is_last:
            raise self._stalled(progress, left)
        self._step, self._since_ms = self._step + 1, now
        return self.limit_ms

    def _stalled(self, progress: MigrationProgress, left: int) -> Failed:
        expected, limit_ms, state = progress.expected_downtime_ms, self.limit_ms, progress.device_bytes
        limit = "0.3 s (QEMU's own limit)" if limit_ms is None else f"{limit_ms / 1000:g} s"
        parts = f"memory, and {format_bytes(state)} of vGPU state" if state else "memory"
        why = f"{format_bytes(left)} are left and do not become less"
        if expected is not None:
            why = f"it would stand still for {expected / 1000:.1f} s ({parts})"
        writes = progress.dirty_bytes_per_second
        writing = "" if not writes else f"; its guest writes {format_bytes(writes)} a second"
        seconds = 2 * max(expected or 0, limit_ms or LAST_PASS_MS) / 1000
        return Failed(
            f"{self._name} was not moved: {why}; {limit} are allowed{writing}",
            hint=f"run it again with --max-downtime {seconds:.1f}, or when the guest is less busy",
            vm=self._name,
            remaining_bytes=left,
            expected_downtime_ms=expected,
            max_downtime_ms=limit_ms,
        )


def _left(progress: MigrationProgress) -> int | None:
    if progress.memory_remaining_bytes is None:
        return None
    return progress.memory_remaining_bytes + (progress.disk_remaining_bytes or 0)
