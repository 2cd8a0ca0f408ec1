# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver in guests, whether the host allows it, and their licenses: what NVML tells about running vGPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.makers.nvidia_releases import GuestFit, rate_guest, release_name
from vgpuctl.model.numbers import format_utc
from vgpuctl.model.results.vms import GuestSoftwareResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import LICENSED, NVML_SOURCE, VgpuUse
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.usage import targets_of
from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class SoftwareRead(Value):
    """What NVML tells about guests. `by_vm`: by VM uuid, for those whose guest has started NVIDIA's driver.

    `partly`: the uuids of VMs with more vGPUs than it reports. `unreported`: the uuids of VMs without
    any vGPU of an NVIDIA driver. `problem`: why it told nothing now, None if it answered.
    """

    by_vm: Mapping[str, GuestSoftwareResult] = EMPTY_MAPPING
    partly: frozenset[str] = frozenset()
    unreported: frozenset[str] = frozenset()
    problem: str | None = None


def read_guest_software(host: Host, snapshot: Snapshot, vms: Sequence[Vm]) -> SoftwareRead:
    """Return the driver and the license in the guests of these VMs, as far as they run and NVML knows.

    NVML is asked only about GPUs whose vGPUs these VMs have.
    """
    running = {vm.uuid for vm in vms if vm.state is not VmState.STOPPED}
    sources = {target.address: target for target in targets_of(snapshot) if target.source == NVML_SOURCE}
    carried = [vgpu for vgpu in snapshot.vgpus if vgpu.gpu in sources]
    unreported = frozenset(vm.uuid for vm in vms)
    unreported -= set() if host.usage is None else {vgpu.vm_uuid for vgpu in carried}
    gpus = {vgpu.gpu for vgpu in carried if vgpu.vm_uuid in running}
    if host.usage is None or not gpus:
        return SoftwareRead(unreported=unreported)
    sample = host.usage.read(tuple(target for address, target in sources.items() if address in gpus), ())
    owners = {vgpu.carrier: vgpu.vm_uuid for vgpu in snapshot.vgpus}
    uses: dict[str, list[VgpuUse]] = {}
    for use in sample.vgpus:
        uuid = use.vm_uuid or next((owners[carrier] for carrier in use.carriers if carrier in owners), None)
        if uuid in running:
            uses.setdefault(uuid, []).append(use)
    host_driver = sample.driver_version or snapshot.nvml.driver_version
    paused = "a change of a GPU's layout is at work" if sample.nvml_paused else None
    present = Counter(vgpu.vm_uuid for vgpu in carried if vgpu.present)
    return SoftwareRead(
        by_vm={
            uuid: _software(host_driver, vgpus)
            for uuid, vgpus in uses.items()
            if any(use.guest_driver is not None for use in vgpus)
        },
        partly=frozenset(uuid for uuid, vgpus in uses.items() if len(vgpus) < present[uuid]),
        unreported=unreported,
        problem=paused or sample.failed_sources.get(NVML_SOURCE),
    )


def _software(host_driver: str | None, vgpus: Sequence[VgpuUse]) -> GuestSoftwareResult:
    """Return the software of one guest; its license is that of a vGPU without one, if there is such a vGPU."""
    use = next((u for u in vgpus if u.license_state != LICENSED), vgpus[0])
    driver = next(u.guest_driver for u in vgpus if u.guest_driver is not None)
    fit = GuestFit.UNKNOWN if host_driver is None else rate_guest(host_driver, driver)
    return GuestSoftwareResult(
        driver=driver,
        release=release_name(driver),
        host_release=None if host_driver is None else release_name(host_driver),
        fit=str(fit),
        license=use.license_state,
        license_expiry=None if use.license_expiry is None else format_utc(int(use.license_expiry)),
    )
