# SPDX-License-Identifier: Apache-2.0
"""Changing a domain that exists on the simulated host: its definition, and devices that come and go while it runs.

As libvirt does it: the running domain first and the config only when that worked. A PCI device needs a root
port of its own that was there at the start: else error 1, "No more available PCI slots" (domain_addr.c). A detach
is only asked for: the fault `{on: unplug, kind: lost}` is a guest that does not answer, which keeps the device in
the live XML; kind `error` is one that refuses at once. `{on: removal, kind: error}` beside `lost` is one that refuses
later, of which libvirt tells by the event DEVICE_REMOVAL_FAILED.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from vgpuctl.model.records import DomainRecord, Removed
from vgpuctl.sim import assign, domain_xml
from vgpuctl.sim.core import Core, Met
from vgpuctl.sim.libvirt_errors import Code, VirError, changing, explained, looking, require
from vgpuctl.sim.turns import in_turn

if TYPE_CHECKING:
    from lxml.etree import _Element

    from vgpuctl.sim.state import State
    from vgpuctl.sim.things import Running, SimDomain


@in_turn
class Plugging:
    """The part of `seams.Hypervisor` that changes domains in place."""

    _core: Core

    def _record(self, state: State, domain: SimDomain) -> DomainRecord:
        raise NotImplementedError

    def definition(self, uuid: str) -> str:
        """Return a domain's config with the passwords that looking hides."""
        with looking(self._core, "definition", uuid) as state:
            return _domain(state, uuid).xml

    def redefine(self, uuid: str, xml: str) -> DomainRecord:
        """Replace an existing domain's config, with VIR_DOMAIN_DEFINE_VALIDATE."""
        require(self._core, "redefine")
        try:
            element = domain_xml.parse(xml)
            domain_xml.validate(element)
            _, name = domain_xml.normalise(element)
        except VirError as exc:
            raise explained(exc, "redefine", uuid) from exc
        with changing(self._core, "redefine", name) as change:
            known = _domain(self._core.state, uuid)
            if known.name != name or (element.findtext("uuid") or "").strip() != uuid:
                text = f"operation failed: domain '{known.name}' is already defined with uuid {uuid}"
                raise VirError(Code.OPERATION_FAILED, text)
            change.add("domain", uuid, name, domain_xml.unparse(element))
        return self._record(self._core.state, _domain(self._core.state, uuid))

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the config and, with `live`, to the running domain."""
        with changing(self._core, "attach-device", self._called(uuid)) as change:
            state = self._core.state
            domain = _domain(state, uuid)
            running = _running(state, uuid) if live else None
            config = domain_xml.parse(domain.xml)
            _add(config, xml)
            domain_xml.normalise(config)
            if running is not None:
                element = domain_xml.parse(running.xml)
                wanted = _add(element, xml)
                taken = assign.prepare(state, domain.name, (wanted,))
                domain_xml.give_addresses(element, hot=True)
                change.add("plug", uuid, wanted.carrier, taken, domain_xml.unparse(element))
            change.add("domain", uuid, domain.name, domain_xml.unparse(config))

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Take a device from the config and ask the guest for it; the guest answers at once or never."""
        name = self._called(uuid)
        with changing(self._core, "detach-device", name) as change:
            state = self._core.state
            domain = _domain(state, uuid)
            element = domain_xml.parse(domain.xml)
            if config:
                _take(element, alias)
            if live:
                held = domain_xml.parse(_running(state, uuid).xml)
                carrier = _take(held, alias)
                with self._core.change("unplug", name) as guest:
                    answers = not guest.lost
                if answers:
                    change.add("unplug", uuid, carrier, domain_xml.unparse(held))
                    change.records += state.released(carrier)
            if config:
                change.add("domain", uuid, domain.name, domain_xml.unparse(element))

    def removal(self, uuid: str, alias: str) -> SimRemoval:
        """Hear what becomes of a device that the guest is asked for inside the block."""
        with looking(self._core, "find-domain", uuid) as state:
            _domain(state, uuid)
        return SimRemoval(self._core, uuid, alias)

    def _called(self, uuid: str) -> str:
        domain = self._core.look().domains.get(uuid)
        return domain.name if domain else uuid


@in_turn
class SimRemoval:
    """What a guest does with a device. It answers at once or never: there is nothing to wait for."""

    def __init__(self, core: Core, uuid: str, alias: str) -> None:
        self._core = core
        self._uuid = uuid
        self._alias = alias

    def __enter__(self) -> SimRemoval:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, deadline_seconds: float) -> Removed:
        """Say what libvirt has told."""
        require(self._core, "removal")
        state = self._core.look()
        running = state.running.get(self._uuid)
        if running is None or self._alias not in _aliases(domain_xml.parse(running.xml)):
            return Removed.GONE
        try:
            self._core.look("removal", running.name)
        except Met:
            return Removed.REFUSED
        return Removed.NOT_TOLD


def _aliases(element: _Element) -> set[str | None]:
    return {alias.get("name") for alias in element.iterfind("devices/hostdev/alias")}


def _domain(state: State, uuid: str) -> SimDomain:
    domain = state.domains.get(uuid)
    if domain is None:
        raise VirError(Code.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")
    return domain


def _running(state: State, uuid: str) -> Running:
    running = state.running.get(uuid)
    if running is None:
        raise VirError(Code.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    return running


def _add(element: _Element, xml: str) -> domain_xml.WantedDevice:
    """Put a host device into a domain's XML, as libvirt takes it in."""
    device = domain_xml.parse(xml)
    if device.tag != "hostdev":
        raise VirError(Code.CONFIG_UNSUPPORTED, f"persistent attach of device '{device.tag}' is not supported here")
    before = domain_xml.devices(element)
    alias = device.find("alias")
    if alias is not None and alias.get("name") in {a.get("name") for a in element.iterfind("devices/*/alias")}:
        text = f"unsupported configuration: non unique alias detected: {alias.get('name')}"
        raise VirError(Code.CONFIG_UNSUPPORTED, text)
    _devices(element).append(device)
    domain_xml.hostdev(device)
    wanted = domain_xml.devices(element)[-1]
    if wanted in before:
        raise VirError(Code.OPERATION_INVALID, "Requested operation is not valid: target device already exists")
    return wanted


def _devices(element: _Element) -> _Element:
    devices = element.find("devices")
    if devices is None:
        raise VirError(Code.XML_ERROR, "XML error: the domain has no devices")
    return devices


def _take(element: _Element, alias: str) -> str:
    """Take the host device of this alias out of a domain's XML; return its carrier."""
    for device, wanted in zip(domain_xml.hostdevs(element), domain_xml.devices(element), strict=True):
        name = device.find("alias")
        if name is not None and name.get("name") == alias:
            _devices(element).remove(device)
            return wanted.carrier
    raise VirError(Code.INTERNAL_ERROR, f"internal error: no device found with alias {alias}")
