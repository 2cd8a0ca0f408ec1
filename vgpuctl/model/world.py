# SPDX-License-Identifier: Apache-2.0
"""One host's outside worlds together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.seams import (
        Audit,
        Claims,
        Clock,
        HostFile,
        Hypervisor,
        KernelLog,
        Nvml,
        Processes,
        Scratch,
        Storage,
        Sysfs,
        Unfinished,
        VendorCommands,
    )
    from vgpuctl.model.system import System


class World(Value):
    """One host. `read_only` is the reason why changing commands are refused, None when they are not.

    `unprivileged` is who runs this without root's rights, which a change takes; None for root.

    `host_file`, `vendor`, `kernel_log` and `unfinished` None: the host's own file, its drivers' commands, what its
    kernel wrote, or the files that were left half-written, are out of reach (a captured tree).
    """

    name: str
    sysfs: Sysfs
    nvml: Nvml
    hypervisor: Hypervisor
    storage: Storage
    processes: Processes
    claims: Claims
    clock: Clock
    machine_id: str
    new_uuid: Callable[[], str]
    scratch: Scratch | None = None
    read_only: str | None = None
    unprivileged: str | None = None
    audit: Audit | None = None
    system: System | None = None
    host_file: HostFile | None = None
    vendor: VendorCommands | None = None
    kernel_log: KernelLog | None = None
    unfinished: Unfinished | None = None
