# SPDX-License-Identifier: Apache-2.0
"""Compare a design with the XML that libvirt stored: an older libvirt silently drops attributes that it does not know.

Defining with VIR_DOMAIN_DEFINE_VALIDATE refuses most of that; this is the second check, on the XML that libvirt
returns. It also catches an admin's own template that leaves something out.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.domain.domain_xml import has_serial_console, missing_windows_features, parse_domain
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.model.numbers import format_mib, format_ranges
from vgpuctl.model.request import DomainDesign
from vgpuctl.model.vm import Vm, VmState


def find_differences(design: DomainDesign, xml: str) -> tuple[str, ...]:
    """Return what the XML lacks or says differently, a sentence each; empty when it matches the design.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    vm = parse_domain(xml, VmState.UNKNOWN, design.record.machine_id)
    differences = [*_compare_values(design, vm), *_compare_disks(design, vm), *_compare_hostdevs(design, vm)]
    differences += _compare_nics(design, vm)
    if not has_serial_console(xml):
        differences.append("the serial console is missing")
    if design.os == "windows11":
        differences += missing_windows_features(xml)
    if vm.record is None:
        differences.append("vgpuctl's record is missing")
    elif vm.record != design.record:
        differences.append("vgpuctl's record differs from what was written")
    return tuple(differences)


def _compare_values(design: DomainDesign, vm: Vm) -> Iterator[str]:
    pairs: tuple[tuple[str, object, object], ...] = (
        ("name", design.name, vm.name),
        ("uuid", design.uuid.lower(), vm.uuid),
        ("memory", format_mib(design.memory_mib), format_mib(vm.memory_mib)),
        ("vcpus", design.vcpus, vm.vcpus),
        ("firmware", design.firmware, vm.firmware),
        *((SETTINGS[field].label, value, dict(vm.settings)[field]) for field, value in design.settings),
        ("the render node", design.render_node, vm.render_node),
        *_bound("the pinned CPUs", design.pinned_cpus, vm.pinned_cpus),
        *_bound("the memory's NUMA nodes", design.memory_nodes, vm.memory_nodes),
    )
    for name, designed, stored in pairs:
        if designed != stored:
            yield f"{name} is {stored} instead of {designed}"


def _bound(name: str, designed: str, stored: frozenset[int]) -> Iterator[tuple[str, object, object]]:
    if designed:
        yield name, designed, format_ranges(stored) or "any"


def _compare_nics(design: DomainDesign, vm: Vm) -> Iterator[str]:
    for number, designed in enumerate(design.nics):
        stored = vm.nics[number] if number < len(vm.nics) else None
        if stored is None or not stored.has_network:
            yield f"the network card {designed.text} does not exist"
        elif stored.shown_like(designed) != designed:
            yield f"the network card is {stored.shown_like(designed).text} instead of {designed.text}"


def _compare_disks(design: DomainDesign, vm: Vm) -> Iterator[str]:
    by_path = {disk.source: disk for disk in vm.disks}
    for designed in design.disks:
        stored = by_path.get(designed.path)
        if stored is None:
            yield f"the {designed.device} {designed.path} is missing"
        elif stored.device != designed.device:
            yield f"{designed.path} is a {stored.device} instead of a {designed.device}"
        elif stored.format != designed.format:
            yield f"{designed.path} has format {stored.format} instead of {designed.format}"


def _compare_hostdevs(design: DomainDesign, vm: Vm) -> Iterator[str]:
    by_carrier = {(device.kind, device.carrier): device for device in vm.hostdevs}
    for designed in design.hostdevs:
        stored = by_carrier.get((designed.kind, designed.carrier.lower()))
        if stored is None:
            yield f"the {designed.kind} device {designed.carrier} is missing"
            continue
        if designed.kind == "pci" and stored.managed != designed.managed:
            yield (
                f"{designed.carrier} has managed='{_yes_or_no(stored.managed)}' "
                f"instead of '{_yes_or_no(designed.managed)}'"
            )
        if designed.display and not stored.display:
            yield f"{designed.carrier} has no display"
        if stored.alias != designed.alias:
            yield f"{designed.carrier} has the alias {stored.alias} instead of {designed.alias}"


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"
