# SPDX-License-Identifier: Apache-2.0
"""How the kernel and NVML refuse: one table that maps each situation to its errno, and NVML's error numbers.

Sources: the mdev core and drivers/pci/iov.c of Linux, the NVIDIA vGPU driver's VFIO interface, nvml.h (nvmlReturn_t),
and what programs on real GPUs encountered. The contract tests check the same table against a real kernel.
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import NoReturn

from vgpuctl.sim.journal import JournalRecord


class KernelRefusal(Enum):
    """Each situation in which the kernel refuses a write: the errno, and the reason for a reader.

    vgpuctl never sees the text: a kernel returns only the errno.
    """

    MDEV_MALFORMED_UUID = (errno.EINVAL, "not 36 characters of a UUID")
    MDEV_UUID_EXISTS = (errno.EEXIST, "an mdev of this UUID exists on the host")
    MDEV_NVIDIA_REFUSED = (errno.EIO, "the resource manager has no room, or another size runs here")
    MDEV_NO_UNITS = (errno.ENOSPC, "the parent's counter is used up")
    MDEV_NO_INSTANCES = (errno.EUSERS, "the mdev core's counter is used up")
    MDEV_INVALID = (errno.EINVAL, "Ascend's driver has no room, or any other reason")
    MDEV_REMOVING = (errno.EAGAIN, "a removal of this mdev is under way")
    MDEV_REMOVE_JUNK = (errno.EINVAL, "remove wants a number")

    TYPE_JUNK = (errno.EINVAL, "current_vgpu_type wants a decimal number")
    TYPE_TAKEN = (errno.EPERM, "the VF has a type already")
    TYPE_NONE_TO_CLEAR = (errno.EPERM, "the VF has no type to clear")
    TYPE_REFUSED = (errno.EIO, "the resource manager does not let this type be made here now")
    TYPE_IN_USE = (errno.EPERM, "a VM uses the VF")

    PARAMS_IN_USE = (errno.EPERM, "a VM uses the vGPU")
    PARAMS_TOO_LONG = (errno.E2BIG, "more than the plugin takes")
    PARAMS_NO_VGPU = (errno.ENXIO, "the VF has no vGPU")

    PLACE_JUNK = (errno.EINVAL, "placement_id and gpu_instance_id want a decimal number")
    PLACE_NO_VGPU = (errno.ENXIO, "the VF has no vGPU that could be anywhere")
    PLACE_IN_USE = (errno.EPERM, "a VM uses the vGPU, which cannot move now")
    PLACE_REFUSED = (errno.EIO, "the vGPU cannot be there now")

    NUMVFS_JUNK = (errno.EINVAL, "sriov_numvfs wants a 16-bit number")
    NUMVFS_RANGE = (errno.ERANGE, "more than sriov_totalvfs")
    NUMVFS_NO_DRIVER = (errno.ENOENT, "the function has no driver")
    NUMVFS_NO_CALLBACK = (errno.ENOENT, "the driver does not let sysfs set the number of VFs")
    NUMVFS_BUSY = (errno.EBUSY, "VFs are on: write 0 first")

    BIND_NO_DEVICE = (errno.ENODEV, "no such device, or the driver does not take it")
    BIND_VENDOR_VF = (errno.EINVAL, "vfio-pci cannot be bound to a vendor-specific VF")
    BIND_BUSY = (errno.EBUSY, "the device has a driver")
    JUNK = (errno.EINVAL, "not a value that this file takes")

    def __init__(self, number: int, text: str) -> None:
        self.errno_number = number
        self.text = text


def raise_refusal(refusal: KernelRefusal) -> NoReturn:
    """Raise the OSError of a situation. The caller adds the path."""
    raise OSError(refusal.errno_number, os.strerror(refusal.errno_number))


class WriteWouldBlock(Exception):
    """The kernel would block the writer until nobody uses `carriers`. Then `records` take effect."""

    def __init__(self, carriers: tuple[str, ...], records: list[JournalRecord]) -> None:
        super().__init__(f"waits for {', '.join(carriers)}")
        self.carriers = carriers
        self.records = records


INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23
"""NVML's error numbers."""


class NvmlError(Exception):
    """NVML returned an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


def raise_nvml_error(code: int) -> NoReturn:
    """Raise NVML's error of this number."""
    raise NvmlError(code)
