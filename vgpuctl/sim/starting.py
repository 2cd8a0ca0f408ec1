# SPDX-License-Identifier: Apache-2.0
"""What libvirt, VFIO and QEMU check before a domain runs: at its start, and when it comes from another host."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from vgpuctl.model.port_values import NetworkInfo
from vgpuctl.sim import domain_xml, drm, guest_host, hostdevs
from vgpuctl.sim.machine import Machine
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.state import State

if TYPE_CHECKING:
    from lxml.etree import _Element


def check_start(
    state: State, name: str, element: _Element, *, absent_disks: Collection[str] = ()
) -> tuple[list[str], dict[str, str | None]]:
    """Check everything that a domain needs. Return its carriers, and the functions that libvirt rebinds.

    `absent_disks`: the paths of disks that need not exist.

    Raises:
        VirError: libvirt, VFIO or QEMU would refuse.
    """
    _check_networks(state.machine, domain_xml.find_networks(element))
    _check_disks(state, [path for path in domain_xml.find_disk_paths(element) if path not in absent_disks])
    if element.get("type") == "kvm" and not state.machine.scenario["libvirt"]["kvm"]:
        raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, "could not access KVM kernel module")
    guest_host.require_guest_host(state, element, state.machine.libvirt_version)
    drm.require_render_node(state, element)
    host_devices = domain_xml.parse_hostdevs(element)
    taken = hostdevs.prepare_hostdevs(state, name, host_devices)
    hostdevs.require_displays(state, domain_xml.find_displays(element))
    return [device.carrier for device in host_devices], taken


def find_networks(machine: Machine) -> list[NetworkInfo]:
    """Return the networks of a host."""
    return [NetworkInfo(one["name"], one["active"], one.get("forward")) for one in machine.scenario["networks"]]


def _check_networks(machine: Machine, names: tuple[str, ...]) -> None:
    states = {one.name: one.active for one in find_networks(machine)}
    for name in names:
        if name not in states:
            raise VirError(VirErrorNumber.NO_NETWORK, f"Network not found: no network with matching name '{name}'")
        if not states[name]:
            raise VirError(
                VirErrorNumber.OPERATION_INVALID,
                f"Requested operation is not valid: network '{name}' is not active",
            )


def _check_disks(state: State, paths: list[str]) -> None:
    for path in paths:
        current: str | None = path
        while current is not None:
            file = state.find_file(current)
            if file is None or file.problem is not None:
                problem = "Permission denied" if file is not None else "No such file or directory"
                raise VirError(VirErrorNumber.SYSTEM_ERROR, f"Cannot access storage file '{current}': {problem}")
            current = file.base
