# SPDX-License-Identifier: Apache-2.0
"""The guest of a simulated domain. It has no guest agent; a guest that boots a system gets a DHCP lease at once.

A running domain's XML is its config plus what libvirt fills in at the start: the id, the graphics port, the
console's terminal. All are derived from the domain's process id, so no two domains share one.
"""

from __future__ import annotations

import re
import uuid as uuids

from vgpuctl.model.port_values import GuestAddress
from vgpuctl.sim import domain_xml
from vgpuctl.sim.libvirt_errors import VirError, VirErrorNumber
from vgpuctl.sim.objects import RunningDomain
from vgpuctl.sim.state import FIRST_PID, State

FIRST_PORT = 5900
_PORT_COUNT = 1 << 15
_AUTO_PORT = "port='-1' autoport='yes'"
_PASSWORD = re.compile(r"(<graphics\b[^>]*?) passwd='[^']*'")
_BOOTABLE_FIRMWARE = ("bios", "uefi", "both")


def addresses(state: State, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a running guest's addresses from one source.

    Raises:
        VirError: the domain is off.
    """
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    if source == "agent":
        return None
    element = domain_xml.parse(running.xml)
    files = (state.find_file(path) for path in domain_xml.find_disk_paths(element))
    if source != "lease" or not any(file is not None and file.firmware in _BOOTABLE_FIRMWARE for file in files):
        return ()
    macs = [str(mac.get("address")) for mac in element.findall("devices/interface[@type='network']/mac")]
    return tuple(GuestAddress(_lease_address(mac), 24, mac, f"vnet{number}") for number, mac in enumerate(macs))


def passwords(xml: str) -> frozenset[str]:
    """Return the types of graphics that ask for a password."""
    return frozenset(str(g.get("type")) for g in domain_xml.parse(xml).findall("devices/graphics[@passwd]"))


def strip_passwords(xml: str) -> str:
    """Return a domain's XML as libvirt shows it without VIR_DOMAIN_XML_SECURE."""
    return _PASSWORD.sub(r"\1", xml) if " passwd='" in xml else xml


def live_xml(running: RunningDomain) -> str:
    """Return a running domain's XML with its id, its graphics port and its console's terminal."""
    number = (running.pid - FIRST_PID) % _PORT_COUNT
    xml = strip_passwords(running.xml).replace(_AUTO_PORT, f"port='{FIRST_PORT + number}' autoport='yes'")
    xml = xml.replace("<domain ", f"<domain id='{number + 1}' ", 1)
    for kind in ("serial", "console"):
        xml = xml.replace(f"<{kind} type='pty'>", f"<{kind} type='pty' tty='/dev/pts/{number}'>", 1)
    return xml


def _lease_address(mac: str) -> str:
    """Return an address of libvirt's default network, derived from the MAC address."""
    return f"192.168.122.{2 + uuids.uuid5(uuids.NAMESPACE_URL, mac).bytes[0] % 252}"
