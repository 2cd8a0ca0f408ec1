# SPDX-License-Identifier: Apache-2.0
"""How a simulated host reaches another one, for what it asks or sends there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgpuctl.errors import VgpuctlError
from vgpuctl.sim.core import Core
from vgpuctl.sim.refusals import VirError, VirErrorNumber, unavailable_reason


@contextmanager
def opened_target(source: Core, uri: str) -> Iterator[Core]:
    """Open the target's host.

    Raises:
        VirError: there is none, or its libvirt does not answer.
    """
    failed = f"unable to connect to server at '{uri}'"
    if source.open_peer is None:
        raise VirError(VirErrorNumber.SYSTEM_ERROR, failed)
    try:
        target = source.open_peer(uri)
    except VgpuctlError as exc:
        raise VirError(VirErrorNumber.SYSTEM_ERROR, f"{failed}: {exc.message}") from exc
    try:
        reason = unavailable_reason(target)
        if reason is not None:
            raise VirError(VirErrorNumber.SYSTEM_ERROR, f"{failed}: {reason}")
        yield target
    finally:
        target.journal.close()
