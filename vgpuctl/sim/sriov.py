# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: the files of a physical function, and the checks of `sriov_numvfs` in the kernel's order."""

from __future__ import annotations

from functools import partial

from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.rules import Refusal, WouldPark, refuse
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import File, Link, Node, text

_LARGEST = 0xFFFF


def nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return what SR-IOV adds to a function's directory."""
    if function.kind == "vf":
        return {"physfn": Link(gpu.own.path)}
    if function.kind != "pf" or not gpu.vfs_total:
        return {}
    made: dict[str, Node] = {
        "sriov_totalvfs": text(gpu.vfs_total),
        "sriov_offset": text(4),
        "sriov_stride": text(1),
        "sriov_vf_device": text(gpu.vfs[0].device.removeprefix("0x")),
        "sriov_numvfs": File(
            show=lambda: f"{state.vfs[gpu.address]}\n", store=partial(set_number, state, gpu, function)
        ),
        "sriov_drivers_autoprobe": File(
            show=lambda: f"{state.autoprobe.get(gpu.address, 1)}\n", store=partial(_autoprobe, gpu.address)
        ),
    }
    for virtual in gpu.vfs[: state.vfs[gpu.address]]:
        made[f"virtfn{virtual.index}"] = Link(virtual.path)
    return made


def set_number(state: State, gpu: SimGpu, function: SimFunction, written: str) -> list[Record]:
    """Return the records of a write of `sriov_numvfs`.

    Raises:
        WouldPark: a running VM holds one of the VFs that would go.
    """
    number = _number(written)
    if number > gpu.vfs_total:
        refuse(Refusal.NUMVFS_RANGE)
    if number == state.vfs[gpu.address]:
        return []
    if state.driver(function) is None:
        refuse(Refusal.NUMVFS_NO_DRIVER)
    if not gpu.configurable or state.driver(function) != function.driver:
        refuse(Refusal.NUMVFS_NO_CALLBACK)
    if number and state.vfs[gpu.address]:
        refuse(Refusal.NUMVFS_BUSY)
    done: list[Record] = [["vfs", gpu.address, number]]
    held = state.used_by(below(state, gpu))
    if number == 0 and held:
        raise WouldPark(held, done)
    return done


def below(state: State, gpu: SimGpu) -> tuple[str, ...]:
    """Return every carrier that goes when the GPU's VFs go: the VFs, and the mdevs on them."""
    virtual = tuple(function.address for function in gpu.vfs[: state.vfs[gpu.address]])
    return virtual + tuple(mdev.uuid for mdev in state.mdevs.values() if mdev.parent in virtual)


def _autoprobe(address: str, written: str) -> list[Record]:
    value = written.strip().lower()
    if value not in ("0", "1", "y", "n", "on", "off"):
        refuse(Refusal.JUNK)
    return [["autoprobe", address, 1 if value in ("1", "y", "on") else 0]]


def _number(written: str) -> int:
    """Read a number as the kernel's kstrtou16 with base 0 does."""
    digits = written.removesuffix("\n").removeprefix("+")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[:1] == "0" else 10
    try:
        number = int(digits, base) if digits[:1].isdigit() and "_" not in digits else -1
    except ValueError:
        number = -1
    if not 0 <= number <= _LARGEST:
        refuse(Refusal.NUMVFS_JUNK)
    return number
