# SPDX-License-Identifier: Apache-2.0
"""How the kernel, NVML and libvirt refuse: one table that maps each situation to its errno, and their error numbers.

Sources: the mdev core and drivers/pci/iov.c of Linux, the NVIDIA vGPU driver's VFIO interface, nvml.h (nvmlReturn_t),
and what programs on real GPUs encountered. The contract tests check the same table against a real kernel.

libvirt's errors are translated into vgpuctl's errors here, as on a real host.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, IntEnum
from typing import NoReturn

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.model.symptoms import find_hint
from vgpuctl.sim.core import Core, FaultInjected, StateChange
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.state import State

_LIBVIRT_CALLS = {
    "capabilities": ("virConnectGetDomainCapabilities", "cannot read the host's domain capabilities"),
    "domains": ("virConnectListAllDomains", "cannot list VMs"),
    "find-domain": ("virDomainLookupByName", "cannot look up VM {}"),
    "define": ("virDomainDefineXMLFlags", "cannot define VM {}"),
    "undefine": ("virDomainUndefineFlags", "cannot undefine VM {}"),
    "set-record": ("virDomainSetMetadata", "cannot write the record of VM {}"),
    "leftovers": ("virDomainListAllSnapshots", "cannot inspect what belongs to VM {}"),
    "start": ("virDomainCreate", "cannot start VM {}"),
    "shutdown": ("virDomainShutdown", "cannot shut down VM {}"),
    "destroy": ("virDomainDestroy", "cannot power off VM {}"),
    "wait-stopped": ("virDomainIsActive", "cannot determine whether VM {} is off"),
    "reboot": ("virDomainReboot", "cannot reboot VM {}"),
    "reset": ("virDomainReset", "cannot reset VM {}"),
    "networks": ("virConnectListAllNetworks", "cannot list networks"),
    "network": ("virNetworkLookupByName", "cannot look up network {}"),
    "definition": ("virDomainGetXMLDesc", "cannot read the definition of VM {}"),
    "redefine": ("virDomainDefineXMLFlags", "cannot change VM {}"),
    "attach-device": ("virDomainAttachDeviceFlags", "cannot attach the device to VM {}"),
    "detach-device": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "unplug": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "removal": ("virConnectDomainEventRegisterAny", "cannot watch the removal of a device from VM {}"),
    "open-graphics": ("virDomainOpenGraphicsFD", "cannot open the screen of VM {}"),
    "guest-addresses": ("virDomainInterfaceAddresses", "cannot read the addresses of VM {}"),
    "agent-command": ("virDomainQemuAgentCommand", "cannot ask the guest agent of VM {}"),
    "open-channel": ("virDomainOpenChannel", "cannot open a channel of VM {}"),
    "migration-blockers": ("virDomainQemuMonitorCommand", "cannot ask what blocks the migration of VM {}"),
    "migration-xml": ("virDomainGetXMLDesc", "cannot read the definition of VM {}"),
    "migrate": ("virDomainMigrateToURI3", "cannot move VM {}"),
    "migrate-in": ("virDomainMigrateToURI3", "cannot move VM {}"),
    "is-migrating": ("virDomainGetJobStats", "cannot read the job of VM {}"),
    "resume": ("virDomainResume", "cannot resume VM {}"),
    "save": ("virDomainManagedSave", "cannot save VM {}"),
    "graphics-passwords": ("virDomainGetXMLDesc", "cannot read the console of VM {}"),
    "pool": ("virStoragePoolLookupByName", "cannot look up storage pool {}"),
    "pools": ("virConnectListAllStoragePools", "cannot list storage pools"),
    "volumes": ("virStoragePoolListAllVolumes", "cannot list the volumes of storage pool {}"),
    "make-pool": ("virStoragePoolDefineXML", "cannot create storage pool {}"),
    "start-pool": ("virStoragePoolCreate", "cannot start storage pool {}"),
    "remove-pool": ("virStoragePoolUndefine", "cannot remove storage pool {}"),
    "volume": ("virStorageVolLookupByName", "cannot look up volume {}"),
    "make-volume": ("virStorageVolCreateXML", "cannot create volume {}"),
    "put-volume": ("virStorageVolCreateXML", "cannot create volume {}"),
    "read-volume": ("virStorageVolDownload", "cannot read volume {}"),
    "rewrite-volume": ("virStorageVolUpload", "cannot write volume {}"),
    "send-volume": ("virStorageVolUpload", "cannot send volume {}"),
    "receive-volume": ("virStorageVolUpload", "cannot send volume {}"),
    "copy-image": ("qemu-img convert", "cannot copy an image to {}"),
    "resize-volume": ("virStorageVolResize", "cannot resize volume {}"),
    "resize-disk": ("virDomainBlockResize", "cannot resize a disk of VM {}"),
    "remove-volume": ("virStorageVolDelete", "cannot delete volume {}"),
    "prepare-bin": ("mkdir", "cannot prepare the bin of storage pool {}"),
    "bin-volume": ("rename", "cannot move volume {} to the bin"),
    "bin-volumes": ("readdir", "cannot read the bin of storage pool {}"),
    "unbin-volume": ("rename", "cannot move volume {} out of the bin"),
    "purge-volume": ("unlink", "cannot delete volume {} in the bin"),
    "image": ("virStorageVolGetInfo", "cannot inspect image {}"),
}


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

    MTGPU_NO_SAVE = (errno.EINVAL, "no word that mtgpu knows, no VM, or overcommitted memory")
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
    NUMVFS_MDEVS = (errno.EINVAL, "Ascend's driver changes the number of VFs only while the card has no vNPU")
    NUMVFS_BUSY = (errno.EBUSY, "VFs are on: write 0 first")

    XE_RANGE = (errno.ERANGE, "more than the file's number of bits")
    XE_NO_MEMORY = (errno.ENOSPC, "the card has less memory than the VFs would have")

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


class VirErrorNumber(IntEnum):
    """The libvirt error numbers that the simulator uses."""

    INTERNAL_ERROR = 1
    INVALID_ARG = 8
    OPERATION_FAILED = 9
    XML_ERROR = 27
    XML_DETAIL = 35
    SYSTEM_ERROR = 38
    NO_DOMAIN = 42
    NO_NETWORK = 43
    NO_STORAGE_POOL = 49
    NO_STORAGE_VOL = 50
    OPERATION_INVALID = 55
    CONFIG_UNSUPPORTED = 67
    ARGUMENT_UNSUPPORTED = 74
    OPERATION_UNSUPPORTED = 84
    AGENT_UNRESPONSIVE = 86
    STORAGE_VOL_EXIST = 90
    XML_INVALID_SCHEMA = 92
    DEVICE_MISSING = 99


class VirError(Exception):
    """libvirt's own error: number and message. `read_call` and `write_call` translate it into `LibvirtFailed`."""

    def __init__(self, code: VirErrorNumber | int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


@contextmanager
def read_call(core: Core, call: str, subject: str = "") -> Iterator[State]:
    """Provide the state for a libvirt call that only reads. It translates errors as `write_call` does."""
    require_libvirt(core, call)
    try:
        yield core.read_state(call, subject)
    except (VirError, FaultInjected) as exc:
        raise translate_error(exc, call, subject) from exc


@contextmanager
def write_call(core: Core, call: str, subject: str) -> Iterator[StateChange]:
    """Lock the host for one libvirt call. Its errors are translated with the call and the subject.

    Raises:
        LibvirtFailed: libvirt refused, or the scenario injects a fault.
        HostCannot: the scenario has no running libvirt.
        AssertionError: this process holds the host lock.
    """
    require_libvirt(core, call)
    try:
        with core.operation(call, subject) as change:
            yield change
    except (VirError, FaultInjected) as exc:
        raise translate_error(exc, call, subject) from exc


def translate_error(error: VirError | FaultInjected, call: str, subject: str) -> LibvirtFailed:
    """Return vgpuctl's error for libvirt's, with the same wording and number as the real libvirt port."""
    function, template = _LIBVIRT_CALLS[call]
    code = error.code if isinstance(error, VirError) else error.fault.code
    return LibvirtFailed(
        f"{template.format(subject)}: {error}",
        hint=find_hint(str(error)),
        libvirt_code=code,
        call=function,
        subject=subject,
    )


def require_libvirt(core: Core, call: str) -> None:
    """Check that libvirt may be called now, and that it answers.

    Raises:
        HostCannot: the scenario has no running libvirt.
        AssertionError: this process holds the host lock.
    """
    assert not core.lock_held(), f"libvirt's {call}: not while the host lock is held"
    reason = unavailable_reason(core)
    if reason is not None:
        raise HostCannot(
            f"libvirt does not answer: {reason}",
            hint="systemctl start libvirtd",
            check="libvirt",
        )


def unavailable_reason(core: Core) -> str | None:
    """Return why libvirt does not answer, or None if it does."""
    if core.machine.scenario["libvirt"]["running"]:
        return None
    return "Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory"
