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
ON_TWO = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-20C, A100-40C]}", "A100-20C", "A100-40C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q, T4-16Q]}", "T4-8Q", "T4-16Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, profiles: [A16-8Q, A16-16Q]}", "A16-8Q", "A16-16Q"),
    "mig": (
        "{model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, mig: [1g.24gb+gfx], profiles: [DC-1-12Q, DC-1-24Q]}",
        "DC-1-12Q",
        "DC-1-24Q",
    ),
}
"""For each kind, a GPU, a profile that fits on it twice, and one that fits on it once."""
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


def on_two_gpus(directory: Path, kind: str, vms: dict[str, str], *, running: bool, more: str = "") -> SimulatedHost:
    """Return a host with two GPUs and VMs with these profiles, created in this order; `more` of its scenario."""
    gpus = f"  - {ON_TWO[kind][0]}\n" * 2
    host = open_sim_host(directory, text=f"version: 1\n{SOFTWARE.get(kind, '')}{more}gpus:\n{gpus}")
    for name, profile in vms.items():
        create(host.ports, request(profile, name=name), start=running)
    return host.again()
