# SPDX-License-Identifier: Apache-2.0
"""libvirt's errors: the error numbers, and the functions that translate them into vgpuctl's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.model.symptoms import find_hint
from vgpuctl.sim.core import Core, FaultInjected, StateChange
from vgpuctl.sim.state import State


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
    STORAGE_VOL_EXIST = 90
    XML_INVALID_SCHEMA = 92
    DEVICE_MISSING = 99


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
    "network": ("virNetworkLookupByName", "cannot look up network {}"),
    "definition": ("virDomainGetXMLDesc", "cannot read the definition of VM {}"),
    "redefine": ("virDomainDefineXMLFlags", "cannot change VM {}"),
    "attach-device": ("virDomainAttachDeviceFlags", "cannot attach the device to VM {}"),
    "detach-device": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "unplug": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "removal": ("virConnectDomainEventRegisterAny", "cannot watch the removal of a device from VM {}"),
    "guest-addresses": ("virDomainInterfaceAddresses", "cannot read the addresses of VM {}"),
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
    "copy-image": ("qemu-img convert", "cannot copy an image to {}"),
    "resize-volume": ("virStorageVolResize", "cannot resize volume {}"),
    "resize-disk": ("virDomainBlockResize", "cannot resize a disk of VM {}"),
    "remove-volume": ("virStorageVolDelete", "cannot delete volume {}"),
    "image": ("virStorageVolGetInfo", "cannot inspect image {}"),
}


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
