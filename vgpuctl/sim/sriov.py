# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: the files of a physical function, and the checks of `sriov_numvfs` in the kernel's order."""

from __future__ import annotations

from functools import partial

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.refusals import KernelRefusal, WriteWouldBlock, raise_refusal
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import FileNode, LinkNode, Node, text_file

_MAX_U16 = 0xFFFF


def nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the files and links that SR-IOV adds to a function's directory."""
    if function.kind == "vf":
        return {"physfn": LinkNode(gpu.own_function.path)}
    if function.kind != "pf" or not gpu.vfs_total:
        return {}
    children: dict[str, Node] = {
        "sriov_totalvfs": text_file(gpu.vfs_total),
        "sriov_offset": text_file(4),
        "sriov_stride": text_file(1),
        "sriov_vf_device": text_file(gpu.vfs[0].device.removeprefix("0x")),
        "sriov_numvfs": FileNode(
            show=lambda: f"{state.vfs[gpu.address]}\n", store=partial(set_vf_count, state, gpu, function)
        ),
        "sriov_drivers_autoprobe": FileNode(
            show=lambda: f"{state.autoprobe.get(gpu.address, 1)}\n", store=partial(_write_autoprobe, gpu.address)
        ),
    }
    for vf in gpu.vfs[: state.vfs[gpu.address]]:
        children[f"virtfn{vf.index}"] = LinkNode(vf.path)
    return children


def set_vf_count(state: State, gpu: SimGpu, function: SimFunction, written: str) -> list[JournalRecord]:
    """Return the records of a write to `sriov_numvfs`.

    Raises:
        WouldPark: a running VM holds one of the VFs that would disappear.
    """
    number = _parse_number(written)
    if number > gpu.vfs_total:
        raise_refusal(KernelRefusal.NUMVFS_RANGE)
    if number == state.vfs[gpu.address]:
        return []
    if state.driver(function) is None:
        raise_refusal(KernelRefusal.NUMVFS_NO_DRIVER)
    if not gpu.configurable or state.driver(function) != function.driver:
        raise_refusal(KernelRefusal.NUMVFS_NO_CALLBACK)
    if number and state.vfs[gpu.address]:
        raise_refusal(KernelRefusal.NUMVFS_BUSY)
    if gpu.mdevs_take_vfs and state.mdevs_on(gpu.address):
        raise_refusal(KernelRefusal.NUMVFS_MDEVS)  # hw_dvt_sriov_enable in Huawei's dvt_sriov.c
    records: list[JournalRecord] = [["vfs", gpu.address, number]]
    held = state.used_carriers(vf_carriers(state, gpu))
    if number == 0 and held:
        raise WriteWouldBlock(held, records)
    return records


def vf_carriers(state: State, gpu: SimGpu) -> tuple[str, ...]:
    """Return every carrier that disappears with the GPU's VFs: the VFs, and the mdevs on them."""
    vfs = tuple(function.address for function in gpu.vfs[: state.vfs[gpu.address]])
    return vfs + tuple(mdev.uuid for mdev in state.mdevs.values() if mdev.parent in vfs)


def _write_autoprobe(address: str, written: str) -> list[JournalRecord]:
    value = written.strip().lower()
    if value not in ("0", "1", "y", "n", "on", "off"):
        raise_refusal(KernelRefusal.JUNK)
    return [["autoprobe", address, 1 if value in ("1", "y", "on") else 0]]


def _parse_number(written: str) -> int:
    """Parse a number as the kernel's kstrtou16 does with base 0."""
    digits = written.removesuffix("\n").removeprefix("+")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[:1] == "0" else 10
    try:
        number = int(digits, base) if digits[:1].isdigit() and "_" not in digits else -1
    except ValueError:
        number = -1
    if not 0 <= number <= _MAX_U16:
        raise_refusal(KernelRefusal.NUMVFS_JUNK)
    return number
