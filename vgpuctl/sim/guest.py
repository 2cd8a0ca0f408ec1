# SPDX-License-Identifier: Apache-2.0
"""The guest of a simulated domain: no agent answers in it; one that boots a system gets a lease at once.

A running domain's XML is its config with what libvirt fills in at the start: its id, the screen's port, the
console's terminal. All follow from the domain's process id, so no two have the same.
"""

from __future__ import annotations

import re
import uuid as uuids

from vgpuctl.model.records import GuestAddress
from vgpuctl.sim import domain_xml
from vgpuctl.sim.libvirt_errors import Code, VirError
from vgpuctl.sim.state import FIRST_PID, State
from vgpuctl.sim.things import Running

FIRST_PORT = 5900
_PORTS = 1 << 15
_NO_PORT = "port='-1' autoport='yes'"
_PASSWORD = re.compile(r"(<graphics\b[^>]*?) passwd='[^']*'")
_BOOTS = ("bios", "uefi", "both")


def addresses(state: State, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a running guest's addresses by one source.

    Raises:
        VirError: the domain is off.
    """
    running = state.running.get(uuid)
    if running is None:
        raise VirError(Code.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    if source == "agent":
        return None
    element = domain_xml.parse(running.xml)
    files = (state.file(path) for path in domain_xml.disk_paths(element))
    if source != "lease" or not any(file is not None and file.firmware in _BOOTS for file in files):
        return ()
    macs = [str(mac.get("address")) for mac in element.findall("devices/interface[@type='network']/mac")]
    return tuple(GuestAddress(_leased(mac), 24, mac, f"vnet{number}") for number, mac in enumerate(macs))


def passwords(xml: str) -> frozenset[str]:
    """Return the kinds of graphics that ask for a password."""
    return frozenset(str(g.get("type")) for g in domain_xml.parse(xml).findall("devices/graphics[@passwd]"))


def without_passwords(xml: str) -> str:
    """Return a domain's XML as libvirt gives it without VIR_DOMAIN_XML_SECURE."""
    return _PASSWORD.sub(r"\1", xml) if " passwd='" in xml else xml


def live_xml(running: Running) -> str:
    """Return a running domain's XML: with its id, the port of its screen and the terminal of its console."""
    number = (running.pid - FIRST_PID) % _PORTS
    xml = without_passwords(running.xml).replace(_NO_PORT, f"port='{FIRST_PORT + number}' autoport='yes'")
    xml = xml.replace("<domain ", f"<domain id='{number + 1}' ", 1)
    for kind in ("serial", "console"):
        xml = xml.replace(f"<{kind} type='pty'>", f"<{kind} type='pty' tty='/dev/pts/{number}'>", 1)
    return xml


def _leased(mac: str) -> str:
    """Return an address of libvirt's default network, derived from the card's."""
    return f"192.168.122.{2 + uuids.uuid5(uuids.NAMESPACE_URL, mac).bytes[0] % 252}"
