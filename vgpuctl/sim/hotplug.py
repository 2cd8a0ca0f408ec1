# SPDX-License-Identifier: Apache-2.0
"""Changing a domain on the simulated host: its definition, and its devices while it runs (hotplug).

Like libvirt, it changes the running domain first, and the config only if that worked. A PCI device needs its own
root port, which must exist since the start: else error 1, "No more available PCI slots" (domain_addr.c). A detach
only asks the guest. With the fault `{on: unplug, kind: lost}` the guest does not answer, so the device stays in the
live XML; with kind `error` it refuses at once. With `{on: removal, kind: error}` in addition to `lost` it refuses
later, which libvirt reports by the event DEVICE_REMOVAL_FAILED.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from vgpuctl.model.port_values import DetachOutcome, DomainInfo
from vgpuctl.sim import domain_xml, hostdevs
from vgpuctl.sim.core import Core, FaultInjected, serialize_calls
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, require_libvirt, translate_error, write_call
from vgpuctl.sim.state import file_record

if TYPE_CHECKING:
    from lxml.etree import _Element

    from vgpuctl.sim.objects import RunningDomain, SimDomain
    from vgpuctl.sim.state import State


@serialize_calls
class SimHotplug:
    """The part of `ports.Hypervisor` that changes domains in place."""

    _core: Core

    def _domain_info(self, state: State, domain: SimDomain) -> DomainInfo:
        raise NotImplementedError

    def definition(self, uuid: str) -> str:
        """Return a domain's config including its passwords."""
        with read_call(self._core, "definition", uuid) as state:
            return _require_domain(state, uuid).xml

    def redefine(self, uuid: str, xml: str) -> DomainInfo:
        """Replace an existing domain's config, with VIR_DOMAIN_DEFINE_VALIDATE."""
        require_libvirt(self._core, "redefine")
        try:
            element = domain_xml.parse(xml)
            domain_xml.validate(element)
            domain_xml.check_architecture(element, domain_xml.host_arch(self._core.machine.scenario))
            _, name = domain_xml.normalise(element)
        except VirError as exc:
            raise translate_error(exc, "redefine", uuid) from exc
        with write_call(self._core, "redefine", name) as change:
            domain = _require_domain(self._core.state, uuid)
            if domain.name != name or (element.findtext("uuid") or "").strip() != uuid:
                text = f"operation failed: domain '{domain.name}' is already defined with uuid {uuid}"
                raise VirError(VirErrorNumber.OPERATION_FAILED, text)
            change.add("domain", uuid, name, domain_xml.unparse(element))
        return self._domain_info(self._core.state, _require_domain(self._core.state, uuid))

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the config and, with `live`, to the running domain."""
        with write_call(self._core, "attach-device", self._domain_name(uuid)) as change:
            state = self._core.state
            domain = _require_domain(state, uuid)
            running = _require_running(state, uuid) if live else None
            config_element = domain_xml.parse(domain.xml)
            _add_device(config_element, xml)
            domain_xml.normalise(config_element)
            if running is not None:
                live_element = domain_xml.parse(running.xml)
                hostdev = _add_device(live_element, xml)
                taken = hostdevs.prepare_hostdevs(state, domain.name, (hostdev,))
                domain_xml.assign_addresses(live_element, is_running=True)
                domain_xml.add_live_aliases(live_element)
                change.add("plug", uuid, hostdev.carrier, taken, domain_xml.unparse(live_element))
            change.add("domain", uuid, domain.name, domain_xml.unparse(config_element))

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Remove a device from the config and ask the guest to release it. The guest answers at once or never."""
        name = self._domain_name(uuid)
        with write_call(self._core, "detach-device", name) as change:
            state = self._core.state
            domain = _require_domain(state, uuid)
            config_element = domain_xml.parse(domain.xml)
            if config:
                _remove_device(config_element, alias)
            if live:
                live_element = domain_xml.parse(_require_running(state, uuid).xml)
                shown = {display.carrier for display in domain_xml.find_displays(live_element)}
                carrier = _remove_device(live_element, alias)
                if carrier in shown:
                    text = "Device 'vfio-pci-nohotplug' does not support hotplugging"
                    raise VirError(
                        VirErrorNumber.INTERNAL_ERROR,
                        f"internal error: unable to execute QEMU command 'device_del': {text}",
                    )
                with self._core.operation("unplug", name) as guest:
                    answers = not guest.is_lost
                if answers:
                    change.add("unplug", uuid, carrier, domain_xml.unparse(live_element))
                    change.records += state.release_records(carrier)
            if config:
                change.add("domain", uuid, domain.name, domain_xml.unparse(config_element))

    def resize_disk(self, uuid: str, path: str, capacity_bytes: int) -> None:
        """Grow a running domain's disk. QEMU changes a file's size, and takes only a block device's own."""
        with write_call(self._core, "resize-disk", self._domain_name(uuid)) as change:
            state = self._core.state
            element = domain_xml.parse(_require_running(state, uuid).xml)
            sources = {value for source in element.iterfind("devices/disk/source") for value in source.attrib.values()}
            file = state.find_file(path)
            if path not in sources or file is None:
                raise VirError(VirErrorNumber.INVALID_ARG, f"invalid argument: disk '{path}' was not found in domain")
            if file.path.startswith("/dev/") and capacity_bytes != file.size:
                text = "internal error: unable to execute QEMU command 'block_resize': Cannot grow device"
                raise VirError(VirErrorNumber.INTERNAL_ERROR, text)
            change.add(*file_record(replace(file, size=capacity_bytes)))

    def watch_device_removal(self, uuid: str, alias: str) -> SimDeviceRemoval:
        """Watch what happens to a device that the caller detaches inside the `with` block."""
        with read_call(self._core, "find-domain", uuid) as state:
            _require_domain(state, uuid)
        return SimDeviceRemoval(self._core, uuid, alias)

    def _domain_name(self, uuid: str) -> str:
        domain = self._core.read_state().domains.get(uuid)
        return domain.name if domain else uuid


@serialize_calls
class SimDeviceRemoval:
    """How a guest answers a detach. It answers at once or never, so there is nothing to wait for."""

    def __init__(self, core: Core, uuid: str, alias: str) -> None:
        self._core = core
        self._uuid = uuid
        self._alias = alias

    def __enter__(self) -> SimDeviceRemoval:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, deadline_seconds: float) -> DetachOutcome:
        """Return the outcome that libvirt reported."""
        require_libvirt(self._core, "removal")
        state = self._core.read_state()
        running = state.running.get(self._uuid)
        if running is None or self._alias not in _hostdev_aliases(domain_xml.parse(running.xml)):
            return DetachOutcome.REMOVED
        try:
            self._core.read_state("removal", running.name)
        except FaultInjected:
            return DetachOutcome.REFUSED
        return DetachOutcome.UNKNOWN


def _hostdev_aliases(element: _Element) -> set[str | None]:
    return {alias.get("name") for alias in element.iterfind("devices/hostdev/alias")}


def _require_domain(state: State, uuid: str) -> SimDomain:
    domain = state.domains.get(uuid)
    if domain is None:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")
    return domain


def _require_running(state: State, uuid: str) -> RunningDomain:
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    return running


def _add_device(element: _Element, xml: str) -> domain_xml.SimHostdev:
    """Add a host device to a domain's XML as libvirt does."""
    device = domain_xml.parse(xml)
    if device.tag != "hostdev":
        raise VirError(
            VirErrorNumber.CONFIG_UNSUPPORTED, f"persistent attach of device '{device.tag}' is not supported here"
        )
    existing_hostdevs = domain_xml.parse_hostdevs(element)
    alias = device.find("alias")
    if alias is not None and alias.get("name") in {a.get("name") for a in element.iterfind("devices/*/alias")}:
        text = f"unsupported configuration: non unique alias detected: {alias.get('name')}"
        raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, text)
    _devices_element(element).append(device)
    domain_xml.normalise_hostdev(device)
    hostdev = domain_xml.parse_hostdevs(element)[-1]
    if hostdev in existing_hostdevs:
        raise VirError(
            VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: target device already exists"
        )
    return hostdev


def _devices_element(element: _Element) -> _Element:
    devices = element.find("devices")
    if devices is None:
        raise VirError(VirErrorNumber.XML_ERROR, "XML error: the domain has no devices")
    return devices


def _remove_device(element: _Element, alias: str) -> str:
    """Remove the host device with this alias from a domain's XML. Return its carrier."""
    for device, hostdev in zip(domain_xml.find_hostdevs(element), domain_xml.parse_hostdevs(element), strict=True):
        alias_element = device.find("alias")
        if alias_element is not None and alias_element.get("name") == alias:
            _devices_element(element).remove(device)
            return hostdev.carrier
    raise VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: no device found with alias {alias}")
