# SPDX-License-Identifier: Apache-2.0
"""Which devices of the host a domain names, anywhere in its XML: the only reader, for lxml and the standard library.

`<hostdev>`, an `<interface type='hostdev'>` (a VF as network card) and a `<disk type='nvme'>` name a device in an
element of their own. QEMU's own arguments (`<qemu:commandline>`, `<qemu:override>`) and other kinds of `<hostdev>` name
one in a text: `sysfsdev=/sys/bus/mdev/devices/UUID`, `host=3b:00.4`. An interface on a network with a pool of VFs names
its VF only while the domain runs: libvirt's live XML then shows it as an `<interface type='hostdev'>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from vgpuctl.model.names import format_pci
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vm import HostdevRef

Element = Any
"""An element with `tag`, `text`, `attrib`, `get` and its children: lxml.etree's or xml.etree's."""

TEXT_KIND = "text"
"""The `kind` of a device that a domain names only in a text, so that libvirt does not know of it."""

_QEMU_PARTS = tuple(
    f"{{http://libvirt.org/schemas/domain/qemu/1.0}}{part}" for part in ("commandline", "override", "capabilities")
)
_NAMED_DEVICE = re.compile(
    r"(?<![0-9A-Za-z.:-])"
    r"(?:(?P<uuid>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})"
    r"|(?:(?P<domain>[0-9A-Fa-f]{4,8}):)?(?P<bus>[0-9A-Fa-f]{1,2}):(?P<slot>[01]?[0-9A-Fa-f])\.(?P<function>[0-7]))"
    r"(?![0-9A-Za-z.:-]|/[0-9A-Za-z])",
    re.ASCII,
)
"""A UUID or a PCI address. One that is a directory in a longer path does not count: it is only the parent."""


def find_hostdevs(root: Element) -> tuple[HostdevRef, ...]:
    """Return every device that a domain names, those of elements as often as they are there."""
    devices = _first_child(root, "devices")
    named = [] if devices is None else list(_named_by_devices(devices))
    in_arguments = [h for part in _QEMU_PARTS for child in _children(root, part) for h in _named_in_texts(child)]
    if in_arguments:
        carriers = {hostdev.carrier for hostdev in named}
        named += [h for h in dict.fromkeys(in_arguments) if h.carrier not in carriers]
    return tuple(named)


def carrier_of(address: Element) -> str | None:
    """Return the carrier of a source's `<address>`; None when it is no mdev or PCI function."""
    uuid = address.get("uuid")
    if uuid is not None:
        return str(uuid).strip().lower()
    if address.get("slot") is None or address.get("bus") is None or address.get("type") not in (None, "pci"):
        return None
    parts = [parse_integer(str(address.get(key, "0"))) for key in ("domain", "bus", "slot", "function")]
    numbers = [part for part in parts if part is not None]
    return format_pci(*numbers) if len(numbers) == len(parts) else None


def _named_by_devices(devices: Element) -> Iterator[HostdevRef]:
    for entry in _children(devices, "hostdev", "interface", "disk"):
        tag, kind = entry.tag, entry.get("type")
        if tag != "hostdev" and (tag, kind) not in (("interface", "hostdev"), ("disk", "nvme")):
            continue
        source = _first_child(entry, "source")
        address = None if source is None else _first_child(source, "address")
        carrier = None if address is None else carrier_of(address)
        if source is None:
            continue
        if carrier is None:
            yield from _named_in_texts(source) if tag == "hostdev" else ()
            continue
        managed = (source if tag == "disk" else entry).get("managed") == "yes"
        alias = _first_child(entry, "alias")
        name = None if alias is None else alias.get("name")
        mdev = tag == "hostdev" and kind == "mdev"
        display = entry.get("display") == "on"
        yield HostdevRef("mdev" if mdev else "pci", carrier, managed, None if name is None else str(name), display)


def _named_in_texts(element: Element) -> Iterator[HostdevRef]:
    for entry in element.iter():
        for text in (entry.text, *entry.attrib.values()):
            for match in _NAMED_DEVICE.finditer(text or ""):
                yield HostdevRef(TEXT_KIND, _carrier_of_match(match), managed=False)


def _carrier_of_match(match: re.Match[str]) -> str:
    if match["uuid"] is not None:
        return match["uuid"].lower()
    return format_pci(*(int(match[part] or "0", 16) for part in ("domain", "bus", "slot", "function")))


def _first_child(element: Element, tag: str) -> Element | None:
    return next(iter(_children(element, tag)), None)


def _children(element: Element, *tags: str) -> Iterable[Element]:
    """Return the children of these tags; lxml's own search takes half the time, and every listing reads every VM."""
    search = getattr(element, "iterchildren", None)
    return search(*tags) if search is not None else (child for child in element if child.tag in tags)
