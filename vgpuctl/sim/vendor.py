# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vendor-specific VFIO: the VF itself is the vGPU, made by writing a type into its own directory."""

from __future__ import annotations

import re
from functools import partial

from vgpuctl.sim import mig, mixed
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.partition_state import Partitions
from vgpuctl.sim.room import placed, room_on
from vgpuctl.sim.rules import Refusal, refuse
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import File, Node, fixed

HEADER = "ID    : vGPU Name\n"
LONGEST_PARAMS = 1024
PLACES_SINCE = 580
"""From this driver on a VF has `placement_id` and `gpu_instance_id`; 580 is the oldest they were seen with.

That an mdev has its `placement_id` from the same driver on is a guess.
"""
NO_INSTANCE = 0xFFFF_FFFF
"""What the driver shows for a vGPU that is in no GPU instance."""
_DECIMAL = re.compile(r"\+?[0-9]+", re.ASCII)


def is_carrier(state: State, gpu: SimGpu, function: SimFunction) -> bool:
    """Say whether the VF offers vGPU types now: NVIDIA's driver must be bound to it."""
    return gpu.backend == "vendor-vf" and function.kind == "vf" and state.driver(function) == "nvidia"


def nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the VF's directory `nvidia`."""
    address = function.address

    def params() -> str:
        held = state.params.get(address, "")
        return f"{held}\n" if held else ""

    made: dict[str, Node] = {
        "creatable_vgpu_types": File(show=partial(creatable, state, gpu, function)),
        "current_vgpu_type": File(
            show=lambda: f"{state.types.get(address, 0)}\n",
            store=partial(set_type, state, gpu, function),
        ),
        "vgpu_params": File(show=params, store=partial(_write_params, state, address)),
    }
    if state.machine.driver_major >= PLACES_SINCE:
        made["gpu_instance_id"] = File(
            show=lambda: f"{_or(_made(state, address).instance(address), NO_INSTANCE)}\n",
            store=partial(_move_instance, state, gpu, address),
        )
        made["placement_id"] = File(
            show=lambda: f"{_or(_made(state, address).placement(address), mixed.NO_PLACEMENT)}\n",
            store=partial(_move_placement, state, gpu, address),
        )
    return {"nvidia": fixed(made)}


def creatable(state: State, gpu: SimGpu, function: SimFunction) -> str:
    """List what can be made on this VF now; nothing while it has a type."""
    lines = [f"{kind.number:<5d} : {kind.name}\n" for kind in gpu.types.values() if room_on(state, gpu, function, kind)]
    return (HEADER if gpu.header else "") + "".join(lines)


def set_type(state: State, gpu: SimGpu, function: SimFunction, written: str) -> list[Record]:
    """Return the records of a write of `current_vgpu_type`, or refuse as the driver does, in its order."""
    number = written.removesuffix("\n")
    if not _DECIMAL.fullmatch(number):
        refuse(Refusal.TYPE_JUNK)
    address = function.address
    if int(number) == 0:
        if address not in state.types:
            refuse(Refusal.TYPE_NONE_TO_CLEAR)
        if address in state.users:
            refuse(Refusal.TYPE_IN_USE)
        return [["type", address, 0]]
    if address in state.types:
        refuse(Refusal.TYPE_TAKEN)
    kind = gpu.by_number.get(int(number))
    if kind is None or not room_on(state, gpu, function, kind):
        refuse(Refusal.TYPE_REFUSED)
    return [["type", address, kind.number], *placed(state, gpu, kind, address)]


def checked_params(written: str) -> str:
    """Return what `vgpu_params` keeps: the whole text without its newline; a blank clears it."""
    if len(written) > LONGEST_PARAMS:
        refuse(Refusal.PARAMS_TOO_LONG)
    return written.removesuffix("\n").strip(" ")


def _write_params(state: State, address: str, written: str) -> list[Record]:
    if address not in state.types:
        refuse(Refusal.PARAMS_NO_VGPU)
    if address in state.users:
        refuse(Refusal.PARAMS_IN_USE)
    return [["params", address, checked_params(written)]]


def _made(state: State, address: str) -> Partitions:
    """Return where the VF's vGPU is; without one both files fail."""
    if address not in state.types:
        refuse(Refusal.PLACE_NO_VGPU)
    return state.partitions


def _or(number: int | None, none: int) -> int:
    return none if number is None else number


def place_number(written: str) -> int:
    """Return the number that was written to a file of where a vGPU is."""
    number = written.removesuffix("\n")
    if not _DECIMAL.fullmatch(number):
        refuse(Refusal.PLACE_JUNK)
    return int(number)


def _movable(state: State, address: str, written: str) -> int:
    """Return the number that was written for a vGPU that no VM uses."""
    number = place_number(written)
    _made(state, address)
    if address in state.users:
        refuse(Refusal.PLACE_IN_USE)
    return number


def _move_instance(state: State, gpu: SimGpu, address: str, written: str) -> list[Record]:
    number = _movable(state, address, written)
    if not mig.can_move(state, gpu, address, number):
        refuse(Refusal.PLACE_REFUSED)
    return [["partition", "place", address, None, number]]


def _move_placement(state: State, gpu: SimGpu, address: str, written: str) -> list[Record]:
    return moved(state, gpu, address, _movable(state, address, written))


def moved(state: State, gpu: SimGpu, carrier: str, begins: int) -> list[Record]:
    """Return the records of another placement for a vGPU, VF or mdev, or refuse as the resource manager does."""
    kind = gpu.types[state.on_gpu[gpu.address][carrier]]
    here = gpu.address in state.partitions.mixed
    if not here or begins not in mixed.free(state, gpu, kind, but=carrier):
        refuse(Refusal.PLACE_REFUSED)
    return [["partition", "place", carrier, begins, None]]
