# SPDX-License-Identifier: Apache-2.0
"""libvirt's answers: situation to error number, and the one way to raise them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.sim.core import Change, Core, Met
from vgpuctl.sim.state import State


class Code(IntEnum):
    """The libvirt error numbers that the simulator gives."""

    INTERNAL_ERROR = 1
    OPERATION_FAILED = 9
    XML_ERROR = 27
    XML_DETAIL = 35
    SYSTEM_ERROR = 38
    NO_DOMAIN = 42
    NO_NETWORK = 43
    NO_STORAGE_POOL = 49
    OPERATION_INVALID = 55
    CONFIG_UNSUPPORTED = 67
    STORAGE_VOL_EXIST = 90
    XML_INVALID_SCHEMA = 92
    DEVICE_MISSING = 99


_CALLS = {
    "capabilities": ("virConnectGetDomainCapabilities", "cannot read what VMs may use on this host"),
    "domains": ("virConnectListAllDomains", "cannot list VMs"),
    "find-domain": ("virDomainLookupByName", "cannot look up VM {}"),
    "define": ("virDomainDefineXMLFlags", "cannot define VM {}"),
    "undefine": ("virDomainUndefineFlags", "cannot undefine VM {}"),
    "set-promise": ("virDomainSetMetadata", "cannot write the record of VM {}"),
    "leftovers": ("virDomainListAllSnapshots", "cannot look at what belongs to VM {}"),
    "start": ("virDomainCreate", "cannot start VM {}"),
    "shutdown": ("virDomainShutdown", "cannot shut down VM {}"),
    "destroy": ("virDomainDestroy", "cannot power off VM {}"),
    "wait-stopped": ("virDomainIsActive", "cannot see whether VM {} is off"),
    "network": ("virNetworkLookupByName", "cannot look up network {}"),
    "definition": ("virDomainGetXMLDesc", "cannot read the definition of VM {}"),
    "redefine": ("virDomainDefineXMLFlags", "cannot change VM {}"),
    "attach-device": ("virDomainAttachDeviceFlags", "cannot attach the device to VM {}"),
    "detach-device": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "unplug": ("virDomainDetachDeviceAlias", "cannot detach the device from VM {}"),
    "removal": ("virConnectDomainEventRegisterAny", "cannot listen to what becomes of a device in VM {}"),
    "guest-addresses": ("virDomainInterfaceAddresses", "cannot ask for the addresses of VM {}"),
    "graphics-passwords": ("virDomainGetXMLDesc", "cannot look at the console of VM {}"),
    "pool": ("virStoragePoolLookupByName", "cannot look up storage pool {}"),
    "pools": ("virConnectListAllStoragePools", "cannot list storage pools"),
    "volumes": ("virStoragePoolListAllVolumes", "cannot list the volumes of storage pool {}"),
    "make-pool": ("virStoragePoolDefineXML", "cannot make storage pool {}"),
    "start-pool": ("virStoragePoolCreate", "cannot start storage pool {}"),
    "remove-pool": ("virStoragePoolUndefine", "cannot remove storage pool {}"),
    "volume": ("virStorageVolLookupByName", "cannot look up volume {}"),
    "make-volume": ("virStorageVolCreateXML", "cannot make volume {}"),
    "put-volume": ("virStorageVolCreateXML", "cannot make volume {}"),
    "remove-volume": ("virStorageVolDelete", "cannot delete volume {}"),
    "image": ("virStorageVolGetInfo", "cannot look at image {}"),
}


class VirError(Exception):
    """What libvirt itself says: its number and its words. `changing` makes our error of it."""

    def __init__(self, code: Code | int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


@contextmanager
def looking(core: Core, call: str, subject: str = "") -> Iterator[State]:
    """Give out the state for a libvirt call that only looks, and tell libvirt's errors as `changing` does."""
    require(core, call)
    try:
        yield core.look(call, subject)
    except (VirError, Met) as exc:
        raise explained(exc, call, subject) from exc


@contextmanager
def changing(core: Core, call: str, subject: str) -> Iterator[Change]:
    """Hold the host for one libvirt call, and tell libvirt's errors with the call and the subject.

    Raises:
        LibvirtFailed: libvirt refused, or an injected fault says so.
        HostCannot: the scenario has no running libvirt.
        AssertionError: this process holds the host lock.
    """
    require(core, call)
    try:
        with core.change(call, subject) as change:
            yield change
    except (VirError, Met) as exc:
        raise explained(exc, call, subject) from exc


def explained(exc: VirError | Met, call: str, subject: str) -> LibvirtFailed:
    """Return our error for libvirt's: worded and numbered as the real half does it."""
    name, words = _CALLS[call]
    code = exc.code if isinstance(exc, VirError) else exc.fault.code
    return LibvirtFailed(f"{words.format(subject)}: {exc}", libvirt_code=code, call=name, subject=subject)


def require(core: Core, call: str) -> None:
    """Check that libvirt may be called and answers.

    Raises:
        HostCannot: the scenario has no running libvirt.
        AssertionError: this process holds the host lock.
    """
    assert not core.lock_held(), f"libvirt's {call}: not while the host lock is held"
    reason = down(core)
    if reason is not None:
        raise HostCannot(
            f"libvirt does not answer: {reason}",
            hint="systemctl start libvirtd",
            check="libvirt",
        )


def down(core: Core) -> str | None:
    """Return why libvirt does not answer, None when it does."""
    if core.machine.scenario["libvirt"]["running"]:
        return None
    return "Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory"
