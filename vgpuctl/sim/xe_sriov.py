# SPDX-License-Identifier: Apache-2.0
"""Intel's xe on a simulated host: `sriov_admin` of a card with SR-IOV, from Linux 6.19 on.

The simulator states these rules itself, from the kernel's xe_sriov_pf_sysfs.c and xe_sriov_pf_provision.c. Directories
exist for every possible VF. A write to `.bulk_profile` is for the host and every possible VF; a priority is for all, or
for the host alone, and "high" only for the host. Quanta and timeouts are 32-bit numbers. Memory is given in steps of
2 MiB, and is short where all VFs have more than the card. Turning VFs on divides the memory equally unless some is
given already; turning them off resets everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.refusals import KernelRefusal, raise_refusal
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Node, fixed_directory

ADMIN_SINCE, MEMORY_SINCE = (6, 19), (7, 0)
_WORDS = ("low", "normal", "high")
_STEP = 2 << 20
_RESERVED_MIB = 1024
"""What the host keeps of the card's memory: not published, assumed here."""


def nodes(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the directory that xe adds to a card's own function."""
    if function.kind != "pf" or state.driver(function) != "xe" or not gpu.vfs_total:
        return {}
    if state.machine.kernel < ADMIN_SINCE:
        return {}
    children: dict[str, Node] = {".bulk_profile": fixed_directory(_bulk_files(state, gpu))}
    for vfid in range(gpu.vfs_total + 1):
        children["pf" if vfid == 0 else f"vf{vfid}"] = DirectoryNode(partial(_function_files, state, gpu, vfid))
    return {"sriov_admin": fixed_directory(children)}


def _quota(state: State, gpu: SimGpu, vfid: int) -> int:
    """Return a VF's memory: what was given, else, while VFs are on, an equal part."""
    given = {v: size for (v, name), size in state.xe_values.get(gpu.address, {}).items() if name == "vram_quota"}
    number = state.vfs[gpu.address]
    if any(given.values()) or vfid > number:
        return given.get(vfid, 0)
    return (gpu.framebuffer_mib - _RESERVED_MIB) // number * (1 << 20) // _STEP * _STEP


def _function_files(state: State, gpu: SimGpu, vfid: int) -> Mapping[str, Node]:
    files: dict[str, Node] = {
        name: FileNode(partial(_show, state, gpu, vfid, name), partial(_store_number, gpu, (vfid,), name))
        for name in ("exec_quantum_ms", "preempt_timeout_us")
    }
    files["sched_priority"] = FileNode(
        partial(_show_priority, state, gpu, vfid), partial(_store_priority, gpu, (0,)) if vfid == 0 else None
    )
    if vfid and gpu.framebuffer_mib and state.machine.kernel >= MEMORY_SINCE:
        files["vram_quota"] = FileNode(
            lambda: f"{_quota(state, gpu, vfid)}\n", partial(_store_memory, state, gpu, (vfid,))
        )
    children: dict[str, Node] = {"profile": fixed_directory(files)}
    if vfid <= state.vfs[gpu.address]:
        children["device"] = LinkNode((gpu.own_function if vfid == 0 else gpu.vfs[vfid - 1]).path)
    return children


def _bulk_files(state: State, gpu: SimGpu) -> dict[str, Node]:
    everybody = tuple(range(gpu.vfs_total + 1))
    files: dict[str, Node] = {
        name: FileNode(store=partial(_store_number, gpu, everybody, name))
        for name in ("exec_quantum_ms", "preempt_timeout_us")
    }
    files["sched_priority"] = FileNode(store=partial(_store_priority, gpu, everybody))
    if gpu.framebuffer_mib and state.machine.kernel >= MEMORY_SINCE:
        files["vram_quota"] = FileNode(store=partial(_store_memory, state, gpu, everybody[1:]))
    return files


def _value(state: State, gpu: SimGpu, vfid: int, name: str) -> int:
    return state.xe_values.get(gpu.address, {}).get((vfid, name), 0)


def _show(state: State, gpu: SimGpu, vfid: int, name: str) -> str:
    return f"{_value(state, gpu, vfid, name)}\n"


def _show_priority(state: State, gpu: SimGpu, vfid: int) -> str:
    words = _WORDS if vfid == 0 else _WORDS[:2]
    active = _value(state, gpu, vfid, "sched_priority")
    return " ".join(f"[{word}]" if number == active else word for number, word in enumerate(words)) + "\n"


def _store_number(gpu: SimGpu, vfids: tuple[int, ...], name: str, written: str) -> list[JournalRecord]:
    number = _parse(written, 1 << 32)
    most = 100_000 if name == "exec_quantum_ms" else 100_000_000
    return [["xe", gpu.address, vfid, name, min(number, most)] for vfid in vfids]


def _store_priority(gpu: SimGpu, vfids: tuple[int, ...], written: str) -> list[JournalRecord]:
    word, accepted = written.removesuffix("\n"), _WORDS if vfids == (0,) else _WORDS[:2]
    if word not in accepted:
        raise_refusal(KernelRefusal.JUNK)
    return [["xe", gpu.address, vfid, "sched_priority", accepted.index(word)] for vfid in vfids]


def _store_memory(state: State, gpu: SimGpu, vfids: tuple[int, ...], written: str) -> list[JournalRecord]:
    size = -(-_parse(written, 1 << 64) // _STEP) * _STEP
    others = sum(
        value
        for (vfid, name), value in state.xe_values.get(gpu.address, {}).items()
        if name == "vram_quota" and vfid not in vfids
    )
    if others + size * len(vfids) > (gpu.framebuffer_mib - _RESERVED_MIB) << 20:
        raise_refusal(KernelRefusal.XE_NO_MEMORY)
    return [["xe", gpu.address, vfid, "vram_quota", size] for vfid in vfids]


def _parse(written: str, limit: int) -> int:
    """Parse an unsigned number as kstrtou32 or kstrtou64 does."""
    text = written.strip()
    if not text.isascii() or not text.isdigit():
        raise_refusal(KernelRefusal.JUNK)
    if int(text) >= limit:
        raise_refusal(KernelRefusal.XE_RANGE)
    return int(text)
