# SPDX-License-Identifier: Apache-2.0
"""Hosts with room for few vGPUs, and VMs that reserve their placements only while they run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.hosts import SimulatedHost, create, open_sim_host, picture, request, run_reconcile, start
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.model.vm import Vm, VmRecord

SMALL = {
    "vendor-vf": ("{model: A100, vfs: {total: 8, enabled: 8}, profiles: [A100-20C]}", "A100-20C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q]}", "T4-8Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 8, enabled: 8}, profiles: [A16-8Q]}", "A16-8Q"),
}
"""For each kind, a GPU and a profile that fits on it twice."""


def small(tmp_path: Path, kind: str, gpus: int = 1) -> tuple[SimulatedHost, str]:
    """Return a host with room for two vGPUs on each GPU, and their profile."""
    gpu, profile = SMALL[kind]
    lines = "".join(f"  - {gpu}\n" for _ in range(gpus))
    kernel = 'kernel: "5.14.0"\n' if kind == "mdev-vf" else ""
    return open_sim_host(tmp_path, text=f"version: 1\n{kernel}gpus:\n{lines}"), profile


def reserving_request(profile: str, name: str, **more: Any) -> VmRequest:
    """Return a request with --reserve running."""
    return request(profile, name=name, reserve="running", **more)


def vm_of(host: SimulatedHost, name: str) -> Vm:
    """Return a VM as libvirt defines it."""
    record = host.ports.hypervisor.find_domain(name)
    assert record is not None
    return parse_domain(record.xml, record.state, host.ports.machine_id)


def carriers(host: SimulatedHost, name: str) -> list[str]:
    """Return the carriers of a VM's record; check that the VM's devices are the same."""
    vm = vm_of(host, name)
    assert vm.record is not None
    assigned = [v.carrier for v in vm.record.vgpus]
    assert sorted(h.carrier for h in vm.hostdevs) == sorted(assigned)
    return assigned


def taken(host: SimulatedHost) -> set[str]:
    """Return every carrier with a claim or a device."""
    now = picture(host)
    return {*now.claims, *now.mdevs, *now.types}


def record_of(host: SimulatedHost, name: str) -> VmRecord:
    """Return a VM's record."""
    record = vm_of(host, name).record
    assert record is not None
    return record


def all_start(host: SimulatedHost, where: str, names: Iterable[str]) -> None:
    """Check that nothing is left over, and that these VMs start, each with one vGPU that it has claimed."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    now = picture(host)
    assert {*now.types, *now.mdevs} <= set(now.claims), where
    for name in names:
        start(host.ports, name)
    now = picture(host)
    held = sorted(carrier for running in now.running.values() for carrier in running)
    assert len(held) == len(now.running), where
    assert held == sorted(now.claims) == sorted({*now.types, *now.mdevs}), where


def with_lent(directory: Path, kind: str = "vendor-vf", gpus: int = 1) -> tuple[SimulatedHost, str]:
    """Return a host with a VM "lent" that is off and reserves nothing, and the profile."""
    host, profile = small(directory, kind, gpus)
    create(host.ports, reserving_request(profile, "lent"), start=False)
    return host, profile


def fill(host: SimulatedHost, profile: str, gpu: str | None = None) -> None:
    """Start the VMs "kept-1" and "kept-2", for which there is room on one GPU."""
    for name in ("kept-1", "kept-2"):
        create(host.ports, request(profile, name=name, gpu=gpu))
