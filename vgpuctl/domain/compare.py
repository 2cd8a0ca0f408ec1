# SPDX-License-Identifier: Apache-2.0
"""What libvirt kept of a design: an older libvirt drops attributes that it does not know, without a word.

Defining with VIR_DOMAIN_DEFINE_VALIDATE refuses most of that; this is the second look, at the XML that
libvirt gives back. It also catches an admin's own template that leaves something out.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.domain.parse import has_console, lost_of_windows, parse
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.model.wish import DomainDesign


def missing(design: DomainDesign, xml: str) -> tuple[str, ...]:
    """Return what the XML lacks or says differently, a sentence each; empty when it is as meant.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    vm = parse(xml, VmState.UNKNOWN, design.promise.machine_id)
    found = [*_values(design, vm), *_disks(design, vm), *_hostdevs(design, vm)]
    if design.network not in vm.networks:
        found.append(f"the network '{design.network}' is not there")
    if not has_console(xml):
        found.append("the serial console is not there")
    if design.os == "windows11":
        found += lost_of_windows(xml)
    if vm.promise is None:
        found.append("vgpuctl's record is not there")
    elif vm.promise != design.promise:
        found.append("vgpuctl's record differs from what was written")
    return tuple(found)


def _values(design: DomainDesign, vm: Vm) -> Iterator[str]:
    pairs: tuple[tuple[str, object, object], ...] = (
        ("name", design.name, vm.name),
        ("uuid", design.uuid.lower(), vm.uuid),
        ("memory", mib_text(design.memory_mib), mib_text(vm.memory_mib)),
        ("vcpus", design.vcpus, vm.vcpus),
        ("firmware", design.firmware, vm.firmware),
    )
    for what, meant, read in pairs:
        if meant != read:
            yield f"{what} is {read} instead of {meant}"


def _disks(design: DomainDesign, vm: Vm) -> Iterator[str]:
    by_path = {disk.source: disk for disk in vm.disks}
    for meant in design.disks:
        read = by_path.get(meant.path)
        if read is None:
            yield f"the {meant.device} {meant.path} is not there"
        elif read.device != meant.device:
            yield f"{meant.path} is a {read.device} instead of a {meant.device}"
        elif read.format != meant.format:
            yield f"{meant.path} has format {read.format} instead of {meant.format}"


def _hostdevs(design: DomainDesign, vm: Vm) -> Iterator[str]:
    by_carrier = {(device.kind, device.carrier): device for device in vm.hostdevs}
    for meant in design.hostdevs:
        read = by_carrier.get((meant.kind, meant.carrier.lower()))
        if read is None:
            yield f"the {meant.kind} device {meant.carrier} is not there"
            continue
        if meant.kind == "pci" and read.managed != meant.managed:
            yield f"{meant.carrier} has managed='{_yes(read.managed)}' instead of '{_yes(meant.managed)}'"
        if read.alias != meant.alias:
            yield f"{meant.carrier} has the alias {read.alias} instead of {meant.alias}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
