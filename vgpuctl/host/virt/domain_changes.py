# SPDX-License-Identifier: Apache-2.0
"""Changes an existing domain: its definition, and adding and removing devices, also while it runs.

With both flags in one call, libvirt changes the running domain first, and its config only if that worked. The guest
decides when to release a device: libvirt waits some seconds for it and returns 0 in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import constants, device_removal

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virDomain
    from vgpuctl.model.port_values import DomainInfo
    from vgpuctl.ports.hypervisor import DeviceRemoval
    from vgpuctl.ports.processes import Clock


DEFINE_ATTEMPTS = 4
_SCHEMA_NOT_PARSED = "Unable to parse RelaxNG schema"

Result = TypeVar("Result")


def define_with_schema(define: Callable[[], Result]) -> Result:
    """Define a domain; repeat it when libvirt could not read its own schema, before it looked at the domain.

    libxml2 sets up its schema types at their first use, and not thread-safely (xmlSchemaInitTypes): when libvirtd has
    just started and gets several definitions at once, some of them find half of the types.

    Raises:
        LibvirtFailed: the last attempt failed, or another error came.
    """
    for _ in range(DEFINE_ATTEMPTS - 1):
        try:
            return define()
        except LibvirtFailed as error:
            if _SCHEMA_NOT_PARSED not in error.message:
                raise
    return define()


class DomainChanges:
    """The part of `ports.Hypervisor` that changes domains in place; the class with the connection inherits it."""

    _connection: LibvirtConnection
    _clock: Clock

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Return one domain by uuid, else by exact name, or None."""
        raise NotImplementedError

    def _open_domain(self, uuid: str, call: str, verb: str) -> AbstractContextManager[virDomain]:
        raise NotImplementedError

    def definition(self, uuid: str) -> str:
        """Return a domain's config with its secrets, which XMLDesc otherwise omits."""
        with self._open_domain(uuid, "virDomainGetXMLDesc", "read the definition of") as domain:
            return domain.XMLDesc(constants.VIR_DOMAIN_XML_INACTIVE | constants.VIR_DOMAIN_XML_SECURE)

    def _redefine(self, uuid: str, xml: str) -> None:
        with self._open_domain(uuid, "virDomainDefineXMLFlags", "change") as domain:
            domain.connect().defineXMLFlags(xml, constants.VIR_DOMAIN_DEFINE_VALIDATE)

    def redefine(self, uuid: str, xml: str) -> DomainInfo:
        """Replace an existing domain's config, validated against libvirt's schema."""
        define_with_schema(lambda: self._redefine(uuid, xml))
        info = self.find_domain(uuid)
        if info is None:
            raise LibvirtFailed(
                f"cannot change VM {uuid}: it is not there any more",
                call="virDomainDefineXMLFlags",
                libvirt_code=constants.VIR_ERR_NO_DOMAIN,
            )
        return info

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the config and, with `live`, to the running domain: to both or to neither."""
        with self._open_domain(uuid, "virDomainAttachDeviceFlags", "attach the device to") as domain:
            domain.attachDeviceFlags(xml, _affect_flags(live=live, config=True))

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Remove the device with this alias from the config and ask the running guest to release it."""
        with self._open_domain(uuid, "virDomainDetachDeviceAlias", "detach the device from") as domain:
            domain.detachDeviceAlias(alias, _affect_flags(live=live, config=config))

    def watch_device_removal(self, uuid: str, alias: str) -> AbstractContextManager[DeviceRemoval]:
        """Watch the events about a device whose removal the caller requests inside the block."""
        return device_removal.watch_device_removal(self._connection, self._clock, uuid, alias)


def _affect_flags(*, live: bool, config: bool) -> int:
    return (constants.VIR_DOMAIN_AFFECT_LIVE if live else 0) | (constants.VIR_DOMAIN_AFFECT_CONFIG if config else 0)
