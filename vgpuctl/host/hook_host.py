# SPDX-License-Identifier: Apache-2.0
"""This host without libvirt and NVML, for libvirt's hook: libvirt waits for the hook, and NVML may load for seconds."""

from __future__ import annotations

import os

from vgpuctl.host.absent import AbsentHypervisor, AbsentNvml, AbsentStorage
from vgpuctl.host.claim_store import RUN_DIR, ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.files import HostFiles
from vgpuctl.host.machine_id import read_machine_id
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.uninterruptible import UninterruptibleWriter
from vgpuctl.ports.host import Host

UNAVAILABLE_REASON = "libvirt waits for its hook"


def open_hook_host() -> Host:
    """Return this host; every libvirt call fails, and NVML returns nothing."""
    clock = HostClock()
    processes = HostProcesses("/")
    operations = OperationFiles(RUN_DIR, processes)
    claims = ClaimStore(RUN_DIR, processes, operations, clock=clock)
    return Host(
        name="local",
        sysfs=HostFiles("/", lock_held=lambda: claims.is_locked, writer=UninterruptibleWriter(claims, processes)),
        nvml=AbsentNvml(UNAVAILABLE_REASON),
        hypervisor=AbsentHypervisor(UNAVAILABLE_REASON),
        storage=AbsentStorage(UNAVAILABLE_REASON),
        processes=processes,
        operations=operations,
        claims=claims,
        clock=clock,
        machine_id=read_machine_id("/") or "",
        new_uuid=_random_uuid,
    )


def _random_uuid() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
