# SPDX-License-Identifier: Apache-2.0
"""This host without libvirt and NVML, for libvirt's hook: libvirt waits for it, and NVML may take seconds to load."""

from __future__ import annotations

import os

from vgpuctl.host.claims import RUN_DIR, ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.files import HostFiles
from vgpuctl.host.identity import machine_id
from vgpuctl.host.nvml import NoNvml
from vgpuctl.host.parked import ParkedWriter
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.virt.absent import AbsentHypervisor, AbsentStorage
from vgpuctl.model.world import World

REASON = "libvirt waits for its hook"


def quiet_world() -> World:
    """Return this host; every call of libvirt fails, and NVML knows nothing."""
    clock = HostClock()
    processes = HostProcesses("/")
    claims = ClaimStore(RUN_DIR, processes, processes.command(), clock=clock)
    return World(
        name="local",
        sysfs=HostFiles("/", lock_held=lambda: claims.held, parked=ParkedWriter(claims, processes)),
        nvml=NoNvml(REASON),
        hypervisor=AbsentHypervisor(REASON),
        storage=AbsentStorage(REASON),
        processes=processes,
        claims=claims,
        clock=clock,
        machine_id=machine_id("/") or "",
        new_uuid=_random_uuid,
    )


def _random_uuid() -> str:
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"
