# SPDX-License-Identifier: Apache-2.0
"""The name by which people know this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

PATH = "/proc/sys/kernel/hostname"


def read_host_name(host: Host) -> str:
    """Return the kernel's host name; a simulated host's own name where there is none."""
    try:
        text = host.sysfs.read(PATH).strip()
    except OSError:
        text = ""
    return text or host.name
