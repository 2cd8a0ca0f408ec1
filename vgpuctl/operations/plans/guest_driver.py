# SPDX-License-Identifier: Apache-2.0
"""Whether a guest can have NVIDIA's driver of a VM's `guest_driver`: by the releases, the GPU and the machine."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.arguments import WINDOWS_11
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.makers.nvidia_releases import (
    LAST_RELEASES,
    TABLE_DATE,
    GuestFit,
    find_architecture,
    find_release,
    rate_guest,
    release_name,
)
from vgpuctl.model.guest_driver import GuestDriver
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu

_CHECK = "guest-driver"
_LINUX_FILE, _WINDOWS_FILE = "NVIDIA-Linux-{}-VERSION-grid.run", "VERSION_grid_win10_win11_…_64bit_international.exe"
_WHY = {
    GuestFit.TOO_NEW: "newer than the host's {}, and the vGPU would not start",
    GuestFit.OLD: "older than NVIDIA supports with the host's {}",
}


def check_guest_driver(
    snapshot: Snapshot, driver: GuestDriver, vgpus: Sequence[AssignedVgpu], machine: str, os: str
) -> tuple[str, ...]:
    """Check a driver for a guest with these GPUs, and return warnings.

    `machine`: the host's, as `uname -m` has it; `os`: the guest's, as a VM's `os` has it.

    Raises:
        InvalidInput: it is for another machine or another operating system, or has no vGPU in it.
        HostCannot: it does not fit the host's driver, or has dropped one of the GPUs.
    """
    name = driver.name
    if name.machine != machine:
        raise InvalidInput(
            f"guest_driver: {driver.path} is for {name.machine}, and guests of this host are {machine}",
            hint=f"download the driver for {machine}",
            path=driver.path,
        )
    is_windows = name.kind == "exe"
    if is_windows is not (os == WINDOWS_11):
        wanted = _WINDOWS_FILE if os == WINDOWS_11 else _LINUX_FILE.format(machine)
        raise InvalidInput(
            f"guest_driver: {driver.path} is for {'Windows' if is_windows else 'Linux'}, and os is {os}",
            hint=f"use {wanted} of the host driver's archive, or another --os",
            path=driver.path,
        )
    has_vgpus = any(vgpu.profile is not None for vgpu in vgpus)
    if has_vgpus and not name.is_grid:
        raise InvalidInput(
            f"guest_driver: {driver.path} is a driver for whole GPUs: a vGPU needs the one with 'grid' in its name",
            hint=f"use {_WINDOWS_FILE if is_windows else _LINUX_FILE.format(machine)} of the host driver's archive",
            path=driver.path,
        )
    _refuse_dropped_gpus(snapshot, driver, vgpus)
    return _rate(snapshot, driver) if has_vgpus else ()


def _refuse_dropped_gpus(snapshot: Snapshot, driver: GuestDriver, vgpus: Sequence[AssignedVgpu]) -> None:
    release = find_release(driver.name.version)
    for address in dict.fromkeys(vgpu.gpu for vgpu in vgpus):
        gpu = snapshot.gpu(address)
        architecture = None if gpu is None else find_architecture(gpu)
        if gpu is None or release is None or architecture is None:
            continue
        last, _ = LAST_RELEASES[architecture]
        if release.number > last:
            raise HostCannot(
                f"guest_driver: driver {driver.name.version} (vGPU {release.number}) no longer supports {gpu.model}: "
                f"vGPU {last} is the last release for {architecture}",
                hint=f"use a driver of vGPU {last}",
                check=_CHECK,
                gpu=address,
            )


def _rate(snapshot: Snapshot, driver: GuestDriver) -> tuple[str, ...]:
    """Refuse a driver that does not work with the host's, and warn where that is not known."""
    host, guest = snapshot.nvml.driver_version, driver.name.version
    if host is None:
        return (f"guest_driver: the host's driver is not known, so whether {guest} works with it is not either",)
    fit = rate_guest(host, guest)
    if fit is GuestFit.UNKNOWN:
        return (
            f"guest_driver: whether {guest} works with the host's {host} is not known (table of {TABLE_DATE}): see "
            "NVIDIA's release notes",
        )
    if fit is GuestFit.SUPPORTED:
        return ()
    raise HostCannot(
        f"guest_driver: driver {_with_release(guest)} is {_WHY[fit].format(_with_release(host))}",
        hint=f"use a guest driver of vGPU {release_name(host)}: it is in the archive of the host's driver",
        check=_CHECK,
        driver=guest,
        host_driver=host,
    )


def _with_release(driver: str) -> str:
    return f"{driver} (vGPU {release_name(driver)})"
