# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts whose VMs block each other's placements."""

from __future__ import annotations

from pathlib import Path

from tests.hosts import SimulatedHost, context, create, open_sim_host, request, start, stop
from tests.mixed_sizes import mixed, placed
from tests.reserving_vms import carriers, vm_of
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.change import move_vgpu
from vgpuctl.operations.desired_state import cordon
from vgpuctl.operations.plans.vm_update import MoveTarget

NEWEST = """kernel: 7.0.0-14-generic
libvirt: {version: "12.0.0", qemu: "10.2.1"}
nvidia: {driver: "595.45.04"}
"""
SOFTWARE = {"mdev-vf": 'kernel: "5.14.0"\n', "mig": NEWEST}
STANDS = {"a": ("DC-24Q", 24), "b": ("DC-24Q", 72), "c": ("DC-16Q", 0), "d": ("DC-12Q", 60)}
"""The vGPUs of a mixed-size GPU. 8 and 12 GiB are free. Only one way makes room for 16 GiB, between 36 and 60."""
MIXED = f"version: 1\n{NEWEST}gpus:\n  - {{model: RTX PRO 6000, vfs: {{total: 6, enabled: 6}}}}\n"


def gpu_of(host: SimulatedHost, name: str) -> str:
    record = vm_of(host, name).record
    assert record is not None
    (vgpu,) = record.vgpus
    return vgpu.gpu


def crowded(directory: Path, names: str = "abcd") -> SimulatedHost:
    host = mixed(directory, text=MIXED)
    for name in names:
        profile, place = STANDS[name]
        create(host.ports, request(profile, name=name))
        if placed(host)[name] != place:
            stop(host.ports, name)
            goal = MoveTarget(gpu_of(host, name), place)
            move_vgpu(host.ports, context(), name, *carriers(host, name), goal)
            start(host.ports, name)
    assert placed(host) == {name: STANDS[name][1] for name in names}
    return host.again()


def stood(
    directory: Path, gpus: str, placed_on: dict[str, tuple[str, int]], *, software: str = "", on: bool
) -> SimulatedHost:
    """Return a host where each VM has a vGPU of its profile on its numbered GPU, without a GPU constraint."""
    host = open_sim_host(directory, text=f"version: 1\n{software}gpus:\n{gpus}")
    addresses = [gpu.address for gpu in observe(host.ports, ReadScope()).gpus]
    for name, (profile, number) in placed_on.items():
        for address in addresses:
            cordon(host.ports, context(), address, cordoned=address != addresses[number])
        create(host.ports, request(profile, name=name), start=on)
    for address in addresses:
        cordon(host.ports, context(), address, cordoned=False)
    return host.again()
