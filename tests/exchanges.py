# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts whose VMs stand in each other's way."""

from __future__ import annotations

from pathlib import Path

from tests.lent import carriers, vm_of
from tests.mixed_sizes import mixed, placed
from tests.worlds import WAIT_SECONDS, Host, Silent, create, open_host, start, stop, wish
from vgpuctl.engine.change import move_vgpu
from vgpuctl.engine.cordon import cordon
from vgpuctl.engine.observe import Want, observe
from vgpuctl.plan.in_place import Goal

NEWEST = """kernel: 7.0.0-14-generic
libvirt: {version: "12.0.0", qemu: "10.2.1"}
nvidia: {driver: "595.45.04"}
"""
SOFTWARE = {"mdev-vf": 'kernel: "5.14.0"\n', "mig": NEWEST}
STANDS = {"a": ("DC-24Q", 24), "b": ("DC-24Q", 72), "c": ("DC-16Q", 0), "d": ("DC-12Q", 60)}
"""The vGPUs of a mixed-size GPU: 8 and 12 GiB are free, and only between 36 and 60 could 16 be, in one way."""
MIXED = f"version: 1\n{NEWEST}gpus:\n  - {{model: RTX PRO 6000, vfs: {{total: 6, enabled: 6}}}}\n"


def gpu_of(host: Host, name: str) -> str:
    promise = vm_of(host, name).promise
    assert promise is not None
    (vgpu,) = promise.vgpus
    return vgpu.gpu


def crowded(directory: Path, names: str = "abcd") -> Host:
    host = mixed(directory, text=MIXED)
    for name in names:
        profile, place = STANDS[name]
        create(host.world, wish(profile, name=name))
        if placed(host)[name] != place:
            stop(host.world, name)
            goal = Goal(gpu_of(host, name), place)
            move_vgpu(host.world, name, *carriers(host, name), goal, wait_seconds=WAIT_SECONDS, progress=Silent())
            start(host.world, name)
    assert placed(host) == {name: STANDS[name][1] for name in names}
    return host.again()


def stood(directory: Path, gpus: str, stands: dict[str, tuple[str, int]], *, software: str = "", on: bool) -> Host:
    """Return a host on which each VM has a vGPU of its profile on the GPU of its number, and is bound to none."""
    host = open_host(directory, text=f"version: 1\n{software}gpus:\n{gpus}")
    addresses = [gpu.address for gpu in observe(host.world, Want()).gpus]
    for name, (profile, number) in stands.items():
        for address in addresses:
            cordon(host.world, address, cordoned=address != addresses[number], dry_run=False, progress=Silent())
        create(host.world, wish(profile, name=name), start=on)
    for address in addresses:
        cordon(host.world, address, cordoned=False, dry_run=False, progress=Silent())
    return host.again()
