# SPDX-License-Identifier: Apache-2.0
"""How a simulated host reaches another one, for a VM or a volume that it sends there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgpuctl.errors import VgpuctlError
from vgpuctl.sim.core import Core
from vgpuctl.sim.refusals import VirError, VirErrorNumber, unavailable_reason


@contextmanager
def opened_target(source: Core, uri: str) -> Iterator[Core]:
    """Open the target's host, as the source's libvirt does.

    Raises:
        VirError: there is none, it is the source, or its libvirt does not answer.
    """
    failed = f"operation failed: Failed to connect to remote libvirt URI {uri}"
    if source.open_peer is None:
        raise VirError(VirErrorNumber.OPERATION_FAILED, failed)
    try:
        target = source.open_peer(uri)
    except VgpuctlError as exc:
        raise VirError(VirErrorNumber.OPERATION_FAILED, f"{failed}: {exc.message}") from exc
    try:
        if target.machine_id == source.machine_id:
            text = f"internal error: Attempt to migrate guest to the same host {target.machine_id}"
            raise VirError(VirErrorNumber.INTERNAL_ERROR, text)
        reason = unavailable_reason(target)
        if reason is not None:
            raise VirError(VirErrorNumber.OPERATION_FAILED, f"{failed}: {reason}")
        yield target
    finally:
        target.journal.close()
