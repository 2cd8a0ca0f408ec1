# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vendor-specific VFIO: the VF itself is the vGPU. Writing a type into its own directory creates it."""

from __future__ import annotations

import re
from functools import partial

from vgpuctl.sim import mig, mixed_size
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.mixed_size import count_available_on, placement_records
from vgpuctl.sim.objects import Partitions
from vgpuctl.sim.refusals import KernelRefusal, raise_refusal
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import FileNode, Node, fixed_directory

TYPES_HEADER = "ID    : vGPU Name\n"
MAX_PARAMS_LENGTH = 1024
PLACEMENT_SINCE = 580
"""From this driver on, a VF has `placement_id` and `gpu_instance_id`. 580 is the oldest driver observed with them.

It is a guess that an mdev has its `placement_id` from the same driver on.
"""
NO_INSTANCE = 0xFFFF_FFFF
"""What the driver shows for a vGPU that is in no GPU instance."""
_DECIMAL = re.compile(r"\+?[0-9]+", re.ASCII)


def is_carrier(state: State, gpu: SimGpu, function: SimFunction) -> bool:
    """Say whether the VF offers vGPU types now. NVIDIA's driver must be bound to it."""
    return gpu.backend == "vendor-vf" and function.kind == "vf" and state.driver(function) == "nvidia"


def nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the VF's directory `nvidia` with its files."""
    address = function.address

    def params() -> str:
        text = state.vf_params.get(address, "")
        return f"{text}\n" if text else ""

    files: dict[str, Node] = {
        "creatable_vgpu_types": FileNode(show=partial(list_creatable_types, state, gpu, function)),
        "current_vgpu_type": FileNode(
            show=lambda: f"{state.vf_types.get(address, 0)}\n",
            store=partial(set_type, state, gpu, function),
        ),
        "vgpu_params": FileNode(show=params, store=partial(_write_params, state, address)),
    }
    if state.machine.driver_major >= PLACEMENT_SINCE:
        files["gpu_instance_id"] = FileNode(
            show=lambda: f"{_number_or(_require_vgpu(state, address).instance_id(address), NO_INSTANCE)}\n",
            store=partial(_write_instance_id, state, gpu, address),
        )
        files["placement_id"] = FileNode(
            show=lambda: (
                f"{_number_or(_require_vgpu(state, address).placement_id(address), mixed_size.NO_PLACEMENT)}\n"
            ),
            store=partial(_write_placement_id, state, gpu, address),
        )
    return {"nvidia": fixed_directory(files)}


def list_creatable_types(state: State, gpu: SimGpu, function: SimFunction) -> str:
    """List the types that can be created on this VF now. There are none while it has a type."""
    lines = [
        f"{kind.number:<5d} : {kind.name}\n"
        for kind in gpu.types.values()
        if count_available_on(state, gpu, function, kind)
    ]
    return (TYPES_HEADER if gpu.header else "") + "".join(lines)


def set_type(state: State, gpu: SimGpu, function: SimFunction, written: str) -> list[JournalRecord]:
    """Return the records of a write to `current_vgpu_type`, or refuse like the driver, in its order of checks."""
    number = written.removesuffix("\n")
    if not _DECIMAL.fullmatch(number):
        raise_refusal(KernelRefusal.TYPE_JUNK)
    address = function.address
    if int(number) == 0:
        if address not in state.vf_types:
            raise_refusal(KernelRefusal.TYPE_NONE_TO_CLEAR)
        if address in state.carrier_users:
            raise_refusal(KernelRefusal.TYPE_IN_USE)
        return [["type", address, 0]]
    if address in state.vf_types:
        raise_refusal(KernelRefusal.TYPE_TAKEN)
    kind = gpu.types_by_number.get(int(number))
    if kind is None or not count_available_on(state, gpu, function, kind):
        raise_refusal(KernelRefusal.TYPE_REFUSED)
    return [["type", address, kind.number], *placement_records(state, gpu, kind, address)]


def check_params(written: str) -> str:
    """Return what `vgpu_params` stores: the whole text without its newline. A blank clears it."""
    if len(written) > MAX_PARAMS_LENGTH:
        raise_refusal(KernelRefusal.PARAMS_TOO_LONG)
    return written.removesuffix("\n").strip(" ")


def _write_params(state: State, address: str, written: str) -> list[JournalRecord]:
    if address not in state.vf_types:
        raise_refusal(KernelRefusal.PARAMS_NO_VGPU)
    if address in state.carrier_users:
        raise_refusal(KernelRefusal.PARAMS_IN_USE)
    return [["params", address, check_params(written)]]


def _require_vgpu(state: State, address: str) -> Partitions:
    """Return the partitions, which have the VF's placement. Without a vGPU both files fail."""
    if address not in state.vf_types:
        raise_refusal(KernelRefusal.PLACE_NO_VGPU)
    return state.partitions


def _number_or(number: int | None, none: int) -> int:
    return none if number is None else number


def parse_placement(written: str) -> int:
    """Parse the number that was written to `placement_id` or `gpu_instance_id`."""
    number = written.removesuffix("\n")
    if not _DECIMAL.fullmatch(number):
        raise_refusal(KernelRefusal.PLACE_JUNK)
    return int(number)


def _check_movable(state: State, address: str, written: str) -> int:
    """Parse the number that was written. Refuse it if there is no vGPU or a VM uses it."""
    number = parse_placement(written)
    _require_vgpu(state, address)
    if address in state.carrier_users:
        raise_refusal(KernelRefusal.PLACE_IN_USE)
    return number


def _write_instance_id(state: State, gpu: SimGpu, address: str, written: str) -> list[JournalRecord]:
    number = _check_movable(state, address, written)
    if not mig.can_move_vgpu(state, gpu, address, number):
        raise_refusal(KernelRefusal.PLACE_REFUSED)
    return [["partition", "place", address, None, number]]


def _write_placement_id(state: State, gpu: SimGpu, address: str, written: str) -> list[JournalRecord]:
    return move_placement(state, gpu, address, _check_movable(state, address, written))


def move_placement(state: State, gpu: SimGpu, carrier: str, placement_id: int) -> list[JournalRecord]:
    """Return the records that move a vGPU (VF or mdev) to a placement, or refuse like the resource manager."""
    kind = gpu.types[state.vgpus_by_gpu[gpu.address][carrier]]
    is_mixed_size = gpu.address in state.partitions.mixed_size_gpus
    if not is_mixed_size or placement_id not in mixed_size.free_starts(state, gpu, kind, ignored_carrier=carrier):
        raise_refusal(KernelRefusal.PLACE_REFUSED)
    return [["partition", "place", carrier, placement_id, None]]
