# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: supported types on their parents, making, removing, and the device's own directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimFunction, SimGpu, SimType
from vgpuctl.sim.room import placed, room_on
from vgpuctl.sim.rules import Refusal, WouldPark, refuse
from vgpuctl.sim.state import State
from vgpuctl.sim.things import SimMdev
from vgpuctl.sim.tree import Dir, File, Link, Node, fixed, text
from vgpuctl.sim.vendor import PLACES_SINCE, checked_params, moved, place_number

NO_PLACE = "Not Applicable"
"""What the driver shows for an mdev that has no placement, as programs that read real ones know it."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def is_parent(state: State, gpu: SimGpu, function: SimFunction) -> bool:
    """Say whether the function offers mdev types now: its own driver must be bound to it."""
    kinds = {"mdev-pf": ("pf", "parent"), "mdev-vf": ("vf",)}.get(gpu.backend, ())
    return function.kind in kinds and function.driver is not None and state.driver(function) == function.driver


def parent_nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return what a parent's directory holds for mdev: the types, and the devices made on it."""
    nodes: dict[str, Node] = {mdev.uuid: _device(state, mdev) for mdev in state.mdevs_on(function.address)}
    nodes["mdev_supported_types"] = Dir(
        lambda: {kind.key: Dir(partial(_type, state, gpu, function, kind)) for kind in gpu.types.values()}
    )
    return nodes


def path_of(state: State, mdev: SimMdev) -> str:
    """Return the device's canonical directory."""
    return f"{state.machine.functions[mdev.parent].path}/{mdev.uuid}"


def create(state: State, gpu: SimGpu, function: SimFunction, kind: SimType, written: str) -> list[Record]:
    """Return the records of a new mdev, or refuse as the mdev core and the driver do, in their order."""
    uuid = written.removesuffix("\n")
    if not _UUID.fullmatch(uuid):
        refuse(Refusal.MDEV_MALFORMED_UUID)
    uuid = uuid.lower()
    if uuid in state.mdevs:
        refuse(Refusal.MDEV_UUID_EXISTS)
    if room_on(state, gpu, function, kind) < 1:
        if gpu.rule == "nvidia":
            refuse(Refusal.MDEV_NVIDIA_REFUSED)
        short = gpu.units_refusal == "no-units"
        refuse(Refusal.MDEV_NO_UNITS if short else Refusal.MDEV_NO_INSTANCES)
    made: Record = ["mdev", uuid, function.address, kind.key, state.next_group]
    return [made, *placed(state, gpu, kind, uuid)]


def remove(state: State, mdev: SimMdev, written: str) -> list[Record]:
    """Return the records of a removal.

    Raises:
        WouldPark: a running VM holds it; the kernel waits until it lets go.
    """
    number = written.strip()
    if not number.isdigit():
        refuse(Refusal.MDEV_REMOVE_JUNK)
    if int(number) == 0:
        return []
    gone: list[Record] = [["unmdev", mdev.uuid]]
    if any(parked.records == gone for parked in state.parked.values()):
        refuse(Refusal.MDEV_REMOVING)
    if mdev.uuid in state.users:
        raise WouldPark((mdev.uuid,), gone)
    return gone


def _type(state: State, gpu: SimGpu, function: SimFunction, kind: SimType) -> Mapping[str, Node]:
    here = f"{function.path}/"
    nodes: dict[str, Node] = {
        "available_instances": File(show=lambda: f"{room_on(state, gpu, function, kind)}\n"),
        "create": File(store=partial(create, state, gpu, function, kind)),
        "device_api": text("vfio-pci"),
        "devices": Dir(
            lambda: {
                mdev.uuid: Link(here + mdev.uuid)
                for mdev in state.mdevs_on(function.address)
                if mdev.type_key == kind.key
            }
        ),
        "name": text(kind.name),
    }
    if kind.description is not None:
        nodes["description"] = text(kind.description)
    return nodes


def _device(state: State, mdev: SimMdev) -> Dir:
    function = state.machine.functions[mdev.parent]
    kind = Link(f"{function.path}/mdev_supported_types/{mdev.type_key}")

    def make() -> Mapping[str, Node]:
        gpu = state.machine.gpus[function.gpu]
        nodes: dict[str, Node] = {
            "iommu_group": Link(f"/sys/kernel/iommu_groups/{mdev.group}"),
            "mdev_type": kind,
            "remove": File(store=partial(remove, state, mdev)),
            "subsystem": Link("/sys/bus/mdev"),
        }
        if gpu.rule == "nvidia":
            nodes["driver"] = Link("/sys/bus/mdev/drivers/nvidia-vgpu-vfio")
            own: dict[str, Node] = {
                "vgpu_params": File(
                    show=lambda: f"{mdev.params}\n" if mdev.params else "",
                    store=partial(_write_params, state, mdev),
                ),
                "vm_name": File(show=lambda: f"{_user(state, mdev)}\n"),
            }
            if state.machine.driver_major >= PLACES_SINCE:
                own["placement_id"] = File(
                    show=lambda: f"{_place(state, mdev)}\n", store=partial(_write_place, state, gpu, mdev)
                )
            nodes["nvidia"] = fixed(own)
        return nodes

    return Dir(make, pick=lambda name: kind if name == "mdev_type" else make().get(name))


def _write_params(state: State, mdev: SimMdev, written: str) -> list[Record]:
    if mdev.uuid in state.users:
        refuse(Refusal.PARAMS_IN_USE)
    return [["params", mdev.uuid, checked_params(written)]]


def _place(state: State, mdev: SimMdev) -> int | str:
    begins = state.partitions.placement(mdev.uuid)
    return NO_PLACE if begins is None else begins


def _write_place(state: State, gpu: SimGpu, mdev: SimMdev, written: str) -> list[Record]:
    begins = place_number(written)
    if mdev.uuid in state.users:
        refuse(Refusal.PLACE_IN_USE)
    return moved(state, gpu, mdev.uuid, begins)


def _user(state: State, mdev: SimMdev) -> str:
    uuid = state.users.get(mdev.uuid)
    return state.running[uuid].name if uuid else ""
