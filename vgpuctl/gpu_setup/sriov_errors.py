# SPDX-License-Identifier: Apache-2.0
"""What the kernel's refusals mean: of a number of VFs, and of a setting in xe's `sriov_admin`.

Sources: sriov_numvfs_store in the kernel's drivers/pci/pci-sysfs.c and iov.c; drivers/gpu/drm/xe/xe_sriov_pf_sysfs.c.
"""

from __future__ import annotations

import errno

from vgpuctl.backends.base import write_error
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InvalidInput, NoCapacity, VgpuctlError
from vgpuctl.model.numbers import count_text

PCI_DEVICES = "/sys/bus/pci/devices"


def profile_error(error: OSError, gpu: str, what: str, path: str) -> VgpuctlError:
    """Return what a refused write in xe's `sriov_admin` means. `what`: the setting, for people."""
    facts = {"gpu": gpu, "errno": error.errno, "path": path}
    if error.errno in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
        return InvalidInput(
            f"the driver of {gpu} does not accept {what}", hint=f"vgpuctl show-gpu {gpu} shows what it accepts", **facts
        )
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT):
        return HostCannot(
            f"{gpu} cannot have {what}: its driver, kernel or firmware has no such setting",
            hint=f"vgpuctl show-gpu {gpu}; xe has it from Linux 6.19 on, memory of VFs from 7.0 on",
            check="scheduler",
            **facts,
        )
    if error.errno in (errno.ENOSPC, errno.ENOMEM):
        return NoCapacity(
            f"{gpu} has no room for {what}",
            hint=f"use less memory for each VF, or fewer VFs; vgpuctl show-gpu {gpu}",
            **facts,
        )
    if error.errno == errno.EIO:
        return DeviceFailed(
            f"the firmware of {gpu} refused {what}", hint="journalctl -k -n 20; stop its VMs and try again", **facts
        )
    return write_error(error, f"setting {what} on {gpu}", path)


def numvfs_error(error: OSError, gpu: str, vf_count: int, path: str, driver: str | None) -> VgpuctlError:
    """Return what a refused write of `sriov_numvfs` means."""
    facts = {"gpu": gpu, "vfs": vf_count, "errno": error.errno, "path": path}
    if error.errno == errno.ENOENT:
        why = f"its driver {driver} sets it" if driver else "it has no driver"
        hint = f"modinfo {driver}" if driver else f"lspci -ks {gpu}"
        return HostCannot(f"the number of VFs of {gpu} cannot be set: {why}", hint=hint, check="vfs-fixed", **facts)
    if error.errno == errno.ERANGE:
        return InvalidInput(
            f"{gpu} cannot have {count_text(vf_count, 'VF')}", hint=f"cat {PCI_DEVICES}/{gpu}/sriov_totalvfs", **facts
        )
    if error.errno == errno.EBUSY:
        return Busy(f"another program has just turned on VFs of {gpu}", hint="run the command again", **facts)
    if error.errno == errno.EINVAL:
        return DeviceFailed(
            f"the driver of {gpu} does not accept {count_text(vf_count, 'VF')}", hint="journalctl -k -n 20", **facts
        )
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        return HostCannot(
            f"the firmware reserved no room for {count_text(vf_count, 'VF')} of {gpu} (bus numbers or memory space)",
            hint="turn SR-IOV, ARI and Above 4G Decoding on in the firmware, or boot with pci=realloc",
            check="vf-resources",
            **facts,
        )
    return write_error(error, f"setting {count_text(vf_count, 'VF')} on {gpu}", path)
