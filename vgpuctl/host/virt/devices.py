# SPDX-License-Identifier: Apache-2.0
"""Changing a domain that exists: its definition, and devices that come and go, also while it runs.

libvirt changes the running domain first and its config only when that worked, in one call with both flags.
A guest gives a device up when it likes: libvirt waits some seconds for it and returns 0 all the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import numbers, removal

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import Connection, virDomain
    from vgpuctl.model.records import DomainRecord
    from vgpuctl.model.seams import Clock, Removal


class DeviceCalls:
    """The part of `seams.Hypervisor` that changes domains in place; the class that holds the connection inherits it."""

    _connection: Connection
    _clock: Clock

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        """Return one domain by uuid, else by exact name, or None."""
        raise NotImplementedError

    def _domain(self, uuid: str, call: str, verb: str) -> AbstractContextManager[virDomain]:
        raise NotImplementedError

    def definition(self, uuid: str) -> str:
        """Return a domain's config with its secrets, which XMLDesc leaves out otherwise."""
        with self._domain(uuid, "virDomainGetXMLDesc", "read the definition of") as domain:
            return domain.XMLDesc(numbers.VIR_DOMAIN_XML_INACTIVE | numbers.VIR_DOMAIN_XML_SECURE)

    def redefine(self, uuid: str, xml: str) -> DomainRecord:
        """Replace an existing domain's config, validated against libvirt's schema."""
        with self._domain(uuid, "virDomainDefineXMLFlags", "change") as domain:
            domain.connect().defineXMLFlags(xml, numbers.VIR_DOMAIN_DEFINE_VALIDATE)
        found = self.find_domain(uuid)
        if found is None:
            raise LibvirtFailed(
                f"cannot change VM {uuid}: it is not there any more",
                call="virDomainDefineXMLFlags",
                libvirt_code=numbers.VIR_ERR_NO_DOMAIN,
            )
        return found

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the config and, with `live`, to the running domain: to both or to neither."""
        with self._domain(uuid, "virDomainAttachDeviceFlags", "attach the device to") as domain:
            domain.attachDeviceFlags(xml, _affected(live=live, config=True))

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Take the device with this alias from the config and ask the running guest to give it up."""
        with self._domain(uuid, "virDomainDetachDeviceAlias", "detach the device from") as domain:
            domain.detachDeviceAlias(alias, _affected(live=live, config=config))

    def removal(self, uuid: str, alias: str) -> AbstractContextManager[Removal]:
        """Hear what becomes of a device that the guest is asked for inside the block."""
        return removal.listen(self._connection, self._clock, uuid, alias)


def _affected(*, live: bool, config: bool) -> int:
    return (numbers.VIR_DOMAIN_AFFECT_LIVE if live else 0) | (numbers.VIR_DOMAIN_AFFECT_CONFIG if config else 0)
