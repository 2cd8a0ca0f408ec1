# SPDX-License-Identifier: Apache-2.0
"""AMD's driver gim on a simulated host: its file of settings, what loading it does, and the files of partition modes.

Source: amd/MxGPU-Virtualization at 695afe2: gim_shim/gim_config.c and gim_drv.c, gim_shim/sysfs/gim_monitor.c,
libgv/core/amdgv_gpumon.c, libgv/core/hw/AI/mi300 (mi300_nbio.c, mi300_gpumon.c, mi300_psp.c), read without a look at
vgpuctl.makers.gim. Here the reset of a GPU that a change of the memory mode causes is over at once. No contract test
verifies it: the lab has no such driver.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import FileNode, Node, text_file

CONFIG_PATH = "/etc/gim_config"
_KNOWN_ARRAYS = (
    "vf_num", "fw_load_type", "log_level", "guard", "sch_policy", "fullaccess_timeout", "perf_mon_enable",
    "skip_check_bgpu", "mm_policy", "hangdump_timeout", "hang_detection_mode", "asymmetric_fb_mode",
    "debug_dump_reserve_size", "pf_fb_size", "bad_page_record_threshold", "ras_vf_telemetry_policy", "max_cper_count",
)  # fmt: skip
_KNOWN_SINGLE = (
    "power_saving_mode", "fb_sharing_mode", "per_partition_fullaccess_enable", "deferred_full_live_update", "bp_mode",
)  # fmt: skip
_COMPUTE, _MEMORY = "accelerator_partition_mode", "memory_partition_mode"
_MAXIMUM = 9
_DEVICE_TABLE = ("0x74a1", "0x74a5", "0x74a2", "0x74a8", "0x74a9")
_NAMES = {1: "SPX", 2: "DPX", 4: "QPX", 8: "CPX"}
_PROFILES = {
    8: (("SPX", 1, "NPS1 ", (1,)), ("DPX", 2, "NPS1 ", (2,)), ("QPX", 4, "NPS1 NPS4 ", (4,)),
        ("CPX", 8, "NPS1 NPS4 ", (1, 2, 4, 8))),
    4: (("SPX", 1, "NPS1 ", (1,)), ("DPX", 2, "NPS1 ", (2,)), ("CPX", 4, "NPS1 NPS4 ", (1, 2, 4))),
}  # fmt: skip
"""By number of XCCs: name, number of partitions, memory modes, and the numbers of VFs that each is valid for."""


_NAME_OF = {xcc: {parts: name for name, parts, _, _ in rows} for xcc, rows in _PROFILES.items()}


def initial_config(gpus: Sequence[SimGpu]) -> str:
    """Return what the file has on a host whose driver was loaded with the scenario's numbers of VFs."""
    ordered = _in_order(gpus)
    modes = [initial_modes(gpu) for gpu in ordered if gpu.xcc]
    return _text([gpu.vfs_enabled or 1 for gpu in ordered], *(modes or [(0, 0)])[-1]) if ordered else ""


def initial_modes(gpu: SimGpu) -> tuple[int, int]:
    """Return the number of compute partitions and of memory partitions after the driver's first load."""
    return (_default_compute(gpu.xcc, gpu.vfs_enabled, 1), 1) if gpu.xcc else (0, 0)


def _in_order(gpus: Sequence[SimGpu]) -> list[SimGpu]:
    """Return the GPUs in the order in which the driver takes them: its table of ids, then the bus."""
    mine = [gpu for gpu in gpus if gpu.own_function.driver == "gim"]
    table = {device: number for number, device in enumerate(_DEVICE_TABLE)}
    return sorted(mine, key=lambda gpu: (table.get(gpu.own_function.device, len(table)), gpu.address))


def unload_records(state: State) -> list[JournalRecord]:
    """Return the records of `modprobe -r gim`; VFs and files of all its GPUs go.

    Raises:
        AssertionError: a VM uses a VF: gim_exit waits for it in the kernel, and nothing ends that.
    """
    records: list[JournalRecord] = []
    for gpu in _in_order(tuple(state.machine.gpus.values())):
        if state.driver(gpu.own_function) != "gim":
            continue
        held = [vf.address for vf in gpu.vfs if vf.address in state.carrier_users]
        assert not held, f"modprobe -r gim would hang in the kernel: VMs use {', '.join(held)}"
        records.append(["driver", gpu.address, None])
    return records


def load_records(state: State, config: str, modprobe_files: Sequence[str]) -> list[JournalRecord]:
    """Return the records of `modprobe gim` with this text in its file, which it writes again."""
    counts, compute, memory = _parse(config)
    given = [int(n) for text in modprobe_files for n in _module_numbers(text)]
    if given:
        changed = any(value != _value(counts, index) for index, value in enumerate(given))
        counts, compute, memory = (given, 0, 0) if changed else (given, compute, memory)
    records: list[JournalRecord] = []
    saved = (compute, memory)
    for index, gpu in enumerate(_in_order(tuple(state.machine.gpus.values()))):
        if state.driver(gpu.own_function) not in (None, "gim"):
            continue
        number = _value(counts, index)
        modes = _modes_at_load(gpu.xcc, number, compute, memory)
        works = number <= gpu.vfs_total and (not gpu.xcc or modes[0] > 0)
        records += [["driver", gpu.address, "gim"], ["vfs", gpu.address, number if works else 0]]
        records.append(["gim_modes", gpu.address, *modes])
        if gpu.xcc and works:
            saved = modes
    new = _text(counts, *saved)
    return [*records, ["gim_config", new + config[len(new) :]]]


def _module_numbers(text: str) -> list[str]:
    """Return the numbers of the last `vf_num`; a backslash ends no line, and the kernel reads - in a name as _."""
    lines = [n for n in text.replace("\\\n", "").split("\n") if re.match(r"\s*(options|install)\s+gim\s", n)]
    numbers = [match[1] for line in lines for match in [re.search(r"\bvf[_-]num=\"?([0-9,]+)", line)] if match]
    return numbers[-1].split(",") if numbers else []


def _value(counts: Sequence[int], index: int) -> int:
    return counts[min(index, len(counts) - 1)]


def _parse(text: str) -> tuple[list[int], int, int]:
    """Read the file as gim_conf_parse_conf_file does: what it does not know empties the file."""
    words = [word for word in re.split("[ =\n\t]", text) if word]
    counts, modes = [1], {_COMPUTE: 0, _MEMORY: 0}
    while words:
        key = words.pop(0)
        name = next((n for n in (*_KNOWN_ARRAYS, *_KNOWN_SINGLE, *modes) if key.lower().startswith(n)), None)
        if name is None or (name in _KNOWN_SINGLE and words):
            return [1], 0, 0
        value = words.pop(0) if words else None
        if value is None:
            break
        if name == "vf_num":
            numbers = [int(part) if part.isdigit() else 0 for part in value.split(",")[:32]]
            counts = [number if 1 <= number <= 31 else 1 for number in numbers]
        elif name in modes and value.isdigit() and int(value) <= _MAXIMUM:
            modes[name] = int(value)
    return counts, modes[_COMPUTE], modes[_MEMORY]


def _text(counts: Sequence[int], compute: int, memory: int) -> str:
    return f"vf_num={','.join(map(str, counts))}\n{_COMPUTE}={compute}\n{_MEMORY}={memory}\n"


# --------------------------------------------------------------------- modes


def _default_compute(xcc: int, vfs: int, memory: int) -> int:
    """mi300_nbio_get_accelerator_partition_mode_default_setting; 0: there is none."""
    table = {(1, 1): 1, (1, 4): xcc, (2, 1): 2, (4, 1): 4, (4, 4): 4, (8, 1): 8, (8, 4): 8}
    return table.get((vfs, memory), 0)


def _is_supported(xcc: int, vfs: int, memory: int, compute: int) -> bool:
    """mi300_nbio_is_partition_mode_combination_supported."""
    if vfs not in (1, 2, 4, 8) or memory not in ((1,) if vfs == 2 else (1, 4)):
        return False
    return (compute == vfs and compute >= memory) or compute == xcc


def _modes_at_load(xcc: int, vfs: int, compute: int, memory: int) -> tuple[int, int]:
    """mi300_psp_check_memory_partition_mode, then the saved mode forced on by gim_set_dynamic_partition_mode."""
    if not xcc:
        return (0, 0)
    if not _is_supported(xcc, vfs, memory, compute):
        return (_default_compute(xcc, vfs, 1), 1)
    return (compute, memory)


def nodes(state: State, gpu: SimGpu) -> Mapping[str, Node]:
    """Return the files that gim makes in a PF's directory."""
    files: dict[str, Node] = {"reset_gpu": FileNode(show=_forbid_reset_read)}
    compute, memory = state.gim_modes.get(gpu.address, (0, 0))
    offered = _offered(gpu, state.vfs[gpu.address])
    index = next((number for number, (_, parts) in enumerate(offered) if parts == compute), None)
    row = "" if index is None else _profile_row(index, _NAME_OF[gpu.xcc][compute], compute, "")
    titles = f"{'profile_index':<20}{'profile_type':<20}{'num_of_partitions':<20}"
    more = f"{'num_of_resources':<20}{'resource_index_in_resource_profiles':<20}\n"
    files["accelerator_partition_profile"] = FileNode(
        show=lambda: "failed to get current accelerator partition profile\n" if index is None else titles + more + row,
        store=partial(_store_compute, state, gpu),
    )
    files["memory_partition_mode"] = FileNode(
        show=lambda: (
            f"memory_partition_mode: NPS{memory}\nnuma_count: {memory}\n"
            if memory
            else "failed to get current mp mode\n"
        ),
        store=partial(_store_memory, state, gpu),
    )
    files["spatial_partition_mode"] = text_file(_NAMES.get(compute, "UNKNOWN") if compute else "failed to get sp caps")
    rows = "".join(line for line, _ in offered)
    columns = f"{titles}{'memory_caps':<20}{'num_of_resources':<20}{'resource_index':<20}\n"
    files["accelerator_partition_profile_config"] = FileNode(
        show=lambda: f"resource_profiles:\nprofiles:\n{columns}{rows}" if gpu.xcc else "failed to get cp profile\n"
    )
    return files


def _offered(gpu: SimGpu, vfs: int) -> list[tuple[str, int]]:
    """Return a row for each profile that this number of VFs allows, with its number of partitions."""
    valid = [profile for profile in _PROFILES.get(gpu.xcc, ()) if vfs in profile[3]]
    return [
        (_profile_row(index, name, parts, f"{memory:<20}"), parts)
        for index, (name, parts, memory, _) in enumerate(valid)
    ]


def _profile_row(index: int, name: str, parts: int, memory: str) -> str:
    return f"{index:<20}{name:<20}{parts:<20}{memory}{2:<20}[{'[0 4 ]' * parts}]\n"


def _hive(state: State, gpu: SimGpu) -> list[SimGpu]:
    gpus = _in_order(tuple(state.machine.gpus.values()))
    return [other for other in gpus if other.xcc == gpu.xcc and state.driver(other.own_function) == "gim"]


def _is_assigned(state: State, hive: Sequence[SimGpu]) -> bool:
    return any(vf.address in state.carrier_users for gpu in hive for vf in gpu.vfs)


def _store_memory(state: State, gpu: SimGpu, written: str) -> list[JournalRecord]:
    """Change the memory mode of the hive; a refusal is only logged."""
    match = re.match(r"\s*NPS([1248])", written, re.IGNORECASE)
    if match is None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    memory, hive = int(match[1]), _hive(state, gpu)
    if not gpu.xcc or _is_assigned(state, hive):
        return []
    records: list[JournalRecord] = []
    for other in hive:
        compute = _default_compute(other.xcc, state.vfs[other.address], memory)
        if compute and _is_supported(other.xcc, state.vfs[other.address], memory, compute):
            records.append(["gim_modes", other.address, compute, memory])
    return [*records, *_saved(state, records)]


def _store_compute(state: State, gpu: SimGpu, written: str) -> list[JournalRecord]:
    """Change the compute mode of the hive to the profile of this number; a refusal is only logged."""
    match = re.match(r"\s*([0-9]+)", written)
    if match is None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    hive = _hive(state, gpu)
    if not gpu.xcc or _is_assigned(state, hive):
        return []
    records: list[JournalRecord] = []
    for other in hive:
        offered = _offered(other, state.vfs[other.address])
        compute = offered[int(match[1])][1] if int(match[1]) < len(offered) else 0
        memory = state.gim_modes[other.address][1]
        if _is_supported(other.xcc, state.vfs[other.address], memory, compute):
            records.append(["gim_modes", other.address, compute, memory])
    return [*records, *_saved(state, records)]


def _saved(state: State, records: Sequence[JournalRecord]) -> list[JournalRecord]:
    """Return the record of the file with the modes that the driver saves."""
    if not records:
        return []
    counts, _, _ = _parse(state.gim_config)
    _, _, compute, memory = records[-1]
    return [["gim_config", _text(counts, int(str(compute)), int(str(memory)))]]


def _forbid_reset_read() -> str:
    raise AssertionError("reading reset_gpu resets the card under its VMs: a PF's files are never read by glob")
