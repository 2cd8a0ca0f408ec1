# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver in guests, whether the host allows it, and their licenses: what NVML tells about running vGPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.license_token import read_expiry
from vgpuctl.errors import VgpuctlError
from vgpuctl.makers.nvidia_releases import GuestFit, rate_guest, release_name
from vgpuctl.model.numbers import format_utc
from vgpuctl.model.results.vms import GuestSoftwareResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import NVML_SOURCE, VgpuUse
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.usage import targets_of

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_guest_software(host: Host, snapshot: Snapshot, vms: Sequence[Vm]) -> Mapping[str, GuestSoftwareResult]:
    """Return, by VM uuid, the driver and the license in the guests of these VMs, as far as they run and NVML knows.

    NVML is asked only about GPUs whose vGPUs these VMs have.
    """
    uuids = {vm.uuid for vm in vms if vm.state is not VmState.STOPPED}
    gpus = {vgpu.gpu for vgpu in snapshot.vgpus if vgpu.vm_uuid in uuids}
    targets = tuple(t for t in targets_of(snapshot) if t.source == NVML_SOURCE and t.address in gpus)
    if host.usage is None or not targets:
        return {}
    sample = host.usage.read(targets, ())
    host_driver = sample.driver_version or snapshot.nvml.driver_version
    owners = {vgpu.carrier: vgpu.vm_uuid for vgpu in snapshot.vgpus}
    result: dict[str, GuestSoftwareResult] = {}
    for use in sample.vgpus:
        uuid = use.vm_uuid or next((owners[carrier] for carrier in use.carriers if carrier in owners), None)
        if uuid in uuids and use.guest_driver is not None:
            result.setdefault(uuid, _software(host_driver, use.guest_driver, use))
    return result


def _software(host_driver: str | None, guest_driver: str, use: VgpuUse) -> GuestSoftwareResult:
    fit = GuestFit.UNKNOWN if host_driver is None else rate_guest(host_driver, guest_driver)
    return GuestSoftwareResult(
        driver=guest_driver,
        release=release_name(guest_driver),
        host_release=None if host_driver is None else release_name(host_driver),
        fit=str(fit),
        license=use.license_state,
        license_expiry=None if use.license_expiry is None else format_utc(int(use.license_expiry)),
    )


def read_token_expiry(host: Host) -> float | None:
    """Return when the token of host.yaml's `license:` expires, in seconds since 1970.

    None: there is none, it has no expiry, or it cannot be read, for which `doctor` has the reason.
    """
    try:
        spec = read_host_spec(host)
        return None if spec is None or spec.license.token is None else read_expiry(host.sysfs.read(spec.license.token))
    except (OSError, ValueError, VgpuctlError):
        return None
