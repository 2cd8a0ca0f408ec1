# SPDX-License-Identifier: Apache-2.0
"""The nodes of GPUs in /dev/dri, and domains for which QEMU draws on one of them.

Sources: drivers/gpu/drm/drm_drv.c (render nodes have minors from 128 on), systemd's 60-drm.rules (links by address).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.sim import domain_xml
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.tree import FileNode, Node, fixed_directory

if TYPE_CHECKING:
    from lxml.etree import _Element

    from vgpuctl.sim.machine import SimGpu
    from vgpuctl.sim.state import State

_DRM_DRIVERS = ("amdgpu", "i915", "nouveau", "radeon", "xe")


def has_nodes(state: State, gpu: SimGpu) -> bool:
    """Return whether the GPU's own driver has it, and gives programs of the host nodes for it."""
    driver = state.driver(gpu.own_function)
    return driver is not None and driver == gpu.own_function.driver and (gpu.console or driver in _DRM_DRIVERS)


def names(state: State, gpu: SimGpu) -> tuple[str, str]:
    """Return the names of a GPU's nodes: for its screens, and for drawing."""
    number = list(state.machine.gpus).index(gpu.address)
    return f"card{number}", f"renderD{128 + number}"


def list_render_nodes(state: State) -> dict[str, str]:
    """Return the render nodes of the host with udev's links, each with the node that it is."""
    nodes: dict[str, str] = {}
    for gpu in state.machine.gpus.values():
        if has_nodes(state, gpu):
            node = f"/dev/dri/{names(state, gpu)[1]}"
            nodes |= {node: node, f"/dev/dri/by-path/pci-{gpu.address}-render": node}
    return nodes


def dri_directory(state: State) -> Node:
    """Return /dev/dri."""
    nodes: dict[str, Node] = {}
    links: dict[str, Node] = {}
    for path in list_render_nodes(state):
        (links if "/by-path/" in path else nodes)[path.rpartition("/")[2]] = FileNode()
    return fixed_directory({**nodes, "by-path": fixed_directory(links)})


def _find_nodes(element: _Element) -> list[str]:
    return [node for gl in element.iterfind("devices/graphics/gl") if (node := gl.get("rendernode"))]


def nodes_of_domain(state: State, xml: str) -> set[str]:
    """Return the render nodes that the QEMU of a running domain has open."""
    if " rendernode=" not in xml:
        return set()
    known = list_render_nodes(state)
    return {known[path] for path in _find_nodes(domain_xml.parse(xml)) if path in known}


def require_render_node(state: State, element: _Element) -> None:
    """Refuse a domain whose render node is not there, as libvirt does when it makes the node in QEMU's own /dev."""
    known = list_render_nodes(state)
    for path in _find_nodes(element):
        if path not in known:
            raise VirError(VirErrorNumber.SYSTEM_ERROR, f"Unable to access {path}: No such file or directory")
