# SPDX-License-Identifier: Apache-2.0
"""Hosts on which few vGPUs fit, and VMs that reserve their places only while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.worlds import Host, open_host, picture, wish
from vgpuctl.domain.parse import parse
from vgpuctl.model.vm import Vm
from vgpuctl.model.wish import VmWish

SMALL = {
    "vendor-vf": ("{model: A100, vfs: {total: 8, enabled: 8}, profiles: [A100-20C]}", "A100-20C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q]}", "T4-8Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 8, enabled: 8}, profiles: [A16-8Q]}", "A16-8Q"),
}
"""A GPU of each kind with a profile of which two fit on it."""


def small(tmp_path: Path, kind: str, gpus: int = 1) -> tuple[Host, str]:
    """Return a host on which two fit on each GPU."""
    gpu, profile = SMALL[kind]
    lines = "".join(f"  - {gpu}\n" for _ in range(gpus))
    kernel = 'kernel: "5.14.0"\n' if kind == "mdev-vf" else ""
    return open_host(tmp_path, text=f"version: 1\n{kernel}gpus:\n{lines}"), profile


def lent(profile: str, name: str, **more: Any) -> VmWish:
    """A wish with --reserve running."""
    return wish(profile, name=name, reserve="running", **more)


def vm_of(host: Host, name: str) -> Vm:
    """Return a VM as libvirt has it."""
    record = host.world.hypervisor.find_domain(name)
    assert record is not None
    return parse(record.xml, record.state, host.world.machine_id)


def carriers(host: Host, name: str) -> list[str]:
    """Return the carriers of a VM's record, which its devices must be too."""
    vm = vm_of(host, name)
    assert vm.promise is not None
    found = [v.carrier for v in vm.promise.vgpus]
    assert sorted(h.carrier for h in vm.hostdevs) == sorted(found)
    return found


def taken(host: Host) -> set[str]:
    """Return every carrier with a claim or a device."""
    now = picture(host)
    return {*now.claims, *now.mdevs, *now.types}
