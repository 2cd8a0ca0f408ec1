# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: the supported types of a parent, create, remove, and the device's own directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from vgpuctl.sim import mtgpu
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu, SimType
from vgpuctl.sim.mixed_size import count_available_on, placement_records
from vgpuctl.sim.objects import SimMdev
from vgpuctl.sim.refusals import KernelRefusal, WriteWouldBlock, raise_refusal
from vgpuctl.sim.scenario_gpu import GENERIC_DRIVERS
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Node, fixed_directory, text_file
from vgpuctl.sim.vendor_vf import PLACEMENT_SINCE, check_params, move_placement, parse_placement

NO_PLACEMENT_TEXT = "Not Applicable"
"""What the driver shows for an mdev without placement, according to programs that read real ones."""

_NO_UNITS = {
    "no-units": KernelRefusal.MDEV_NO_UNITS,
    "no-instances": KernelRefusal.MDEV_NO_INSTANCES,
    "invalid": KernelRefusal.MDEV_INVALID,
}

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def is_parent(state: State, gpu: SimGpu, function: SimFunction) -> bool:
    """Say whether the function offers mdev types now: its vendor's driver registers them, and no generic one."""
    kinds = {"mdev-pf": ("pf", "parent"), "mdev-vf": ("vf",)}.get(gpu.backend, ())
    has_own_driver = function.driver not in (None, *GENERIC_DRIVERS) and state.driver(function) == function.driver
    return function.kind in kinds and has_own_driver


def parent_nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the mdev part of a parent's directory: the types, and the devices created on it."""
    nodes: dict[str, Node] = {mdev.uuid: _mdev_directory(state, mdev) for mdev in state.mdevs_on(function.address)}
    nodes["mdev_supported_types"] = DirectoryNode(
        lambda: {
            kind.key: DirectoryNode(partial(_type_nodes, state, gpu, function, kind)) for kind in gpu.types.values()
        }
    )
    return nodes


def device_path(state: State, mdev: SimMdev) -> str:
    """Return the device's canonical directory."""
    return f"{state.machine.functions[mdev.parent].path}/{mdev.uuid}"


def create(state: State, gpu: SimGpu, function: SimFunction, kind: SimType, written: str) -> list[JournalRecord]:
    """Return the records of a new mdev, or refuse like the mdev core and the driver, in their order of checks."""
    uuid = written.removesuffix("\n")
    if not _UUID.fullmatch(uuid):
        raise_refusal(KernelRefusal.MDEV_MALFORMED_UUID)
    uuid = uuid.lower()
    if uuid in state.mdevs:
        raise_refusal(KernelRefusal.MDEV_UUID_EXISTS)
    if count_available_on(state, gpu, function, kind) < 1:
        if gpu.rule == "nvidia":
            raise_refusal(KernelRefusal.MDEV_NVIDIA_REFUSED)
        raise_refusal(_NO_UNITS[gpu.units_refusal])
    record: JournalRecord = ["mdev", uuid, function.address, kind.key, state.next_iommu_group]
    return [record, *placement_records(state, gpu, kind, uuid)]


def remove(state: State, mdev: SimMdev, written: str) -> list[JournalRecord]:
    """Return the records that remove an mdev.

    Raises:
        WouldPark: a running VM holds it. The kernel waits until the VM releases it.
    """
    number = written.strip()
    if not number.isdigit():
        raise_refusal(KernelRefusal.MDEV_REMOVE_JUNK)
    if int(number) == 0:
        return []
    records: list[JournalRecord] = [["unmdev", mdev.uuid]]
    if any(parked.records == records for parked in state.blocked_writes.values()):
        raise_refusal(KernelRefusal.MDEV_REMOVING)
    if mdev.uuid in state.carrier_users:
        raise WriteWouldBlock((mdev.uuid,), records)
    return records


def _type_nodes(state: State, gpu: SimGpu, function: SimFunction, kind: SimType) -> Mapping[str, Node]:
    function_dir = f"{function.path}/"
    nodes: dict[str, Node] = {
        "available_instances": FileNode(show=lambda: f"{count_available_on(state, gpu, function, kind)}\n"),
        "create": FileNode(store=partial(create, state, gpu, function, kind)),
        "device_api": text_file("vfio-pci"),
        "devices": DirectoryNode(
            lambda: {
                mdev.uuid: LinkNode(function_dir + mdev.uuid)
                for mdev in state.mdevs_on(function.address)
                if mdev.type_key == kind.key
            }
        ),
        "name": text_file(kind.name),
    }
    if kind.description is not None:
        nodes["description"] = text_file(kind.description)
    return nodes


def _mdev_directory(state: State, mdev: SimMdev) -> DirectoryNode:
    function = state.machine.functions[mdev.parent]
    type_link = LinkNode(f"{function.path}/mdev_supported_types/{mdev.type_key}")

    def build() -> Mapping[str, Node]:
        gpu = state.machine.gpus[function.gpu]
        nodes: dict[str, Node] = {
            "iommu_group": LinkNode(f"/sys/kernel/iommu_groups/{mdev.group}"),
            "mdev_type": type_link,
            "remove": FileNode(store=partial(remove, state, mdev)),
            "subsystem": LinkNode("/sys/bus/mdev"),
        }
        if gpu.rule == "nvidia":
            nodes["driver"] = LinkNode("/sys/bus/mdev/drivers/nvidia-vgpu-vfio")
            nvidia_files: dict[str, Node] = {
                "vgpu_params": FileNode(
                    show=lambda: f"{mdev.params}\n" if mdev.params else "",
                    store=partial(_write_params, state, mdev),
                ),
                "vm_name": FileNode(show=lambda: f"{_vm_name(state, mdev)}\n"),
            }
            if state.machine.driver_major >= PLACEMENT_SINCE:
                nvidia_files["placement_id"] = FileNode(
                    show=lambda: f"{_placement_text(state, mdev)}\n", store=partial(_write_placement, state, gpu, mdev)
                )
            nodes["nvidia"] = fixed_directory(nvidia_files)
        if state.driver(function) == mtgpu.MODULE:
            nodes.update(mtgpu.vgpu_nodes(state, mdev))
        return nodes

    return DirectoryNode(build, find_child=lambda name: type_link if name == "mdev_type" else build().get(name))


def _write_params(state: State, mdev: SimMdev, written: str) -> list[JournalRecord]:
    if mdev.uuid in state.carrier_users:
        raise_refusal(KernelRefusal.PARAMS_IN_USE)
    return [["params", mdev.uuid, check_params(written)]]


def _placement_text(state: State, mdev: SimMdev) -> int | str:
    placement_id = state.partitions.placement_id(mdev.uuid)
    return NO_PLACEMENT_TEXT if placement_id is None else placement_id


def _write_placement(state: State, gpu: SimGpu, mdev: SimMdev, written: str) -> list[JournalRecord]:
    placement_id = parse_placement(written)
    if mdev.uuid in state.carrier_users:
        raise_refusal(KernelRefusal.PLACE_IN_USE)
    return move_placement(state, gpu, mdev.uuid, placement_id)


def _vm_name(state: State, mdev: SimMdev) -> str:
    uuid = state.carrier_users.get(mdev.uuid)
    return state.running[uuid].name if uuid else ""
