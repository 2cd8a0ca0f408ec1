# SPDX-License-Identifier: Apache-2.0
"""AMD's host driver gim: its file of settings, the order of its GPUs, and its partition modes. Pure.

Source: amd/MxGPU-Virtualization at 695afe2 (2025-04-29).

- gim_shim/gim_config.c: gim reads /etc/gim_config when it is loaded. A word that it does not know makes it empty the
  file and use its defaults, so the file has no comments. It keeps three keys there: `vf_num`, a number of VFs (1 to 31)
  for each GPU, of which the last is for all further GPUs, and the two partition modes, one value for all GPUs, 0 for
  its default. A parameter `vf_num` of the module wins over the file, and gim then writes it into the file; where that
  changes the number, both partition modes become 0. It writes over the file without shortening it, so a file with more
  numbers than the module's parameter ends in words that the next load does not know.
- gim_shim/gim_drv.c: a GPU's place in `vf_num` is its turn when gim takes it: by the order of the device ids in
  libgv/core/amdgv_device.c, then by address; those that the parameter `enabled_devices` leaves out have no place.
- gim_shim/sysfs/gim_monitor.c: the files of the partition modes, and what they show.
- libgv/core/hw/AI/mi300/mi300_nbio.c and mi300_gpumon.c: which modes go with which number of VFs. The driver changes
  them on all GPUs of an XGMI hive, and only while no VM uses a VF of any of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.model.names import address_sort_key, normalize_pci
from vgpuctl.value import Value

CONFIG_PATH = "/etc/gim_config"
CONFIG_MODE = 0o444
MAX_CONFIG_BYTES = 1024
MAX_GPUS = 32
MAX_VFS = 31
MODULE = "gim"
DRIVER = "/sys/bus/pci/drivers/gim"
PARAMETERS = "/sys/module/gim/parameters"
COMPUTE_FILE, MEMORY_FILE = "accelerator_partition_profile", "memory_partition_mode"
PROFILES_FILE = "accelerator_partition_profile_config"
COMPUTE_MODES: Mapping[str, int] = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
"""How many partitions each mode makes of a GPU with eight compute dies (XCC)."""
MEMORY_MODES: Mapping[str, int] = {"NPS1": 1, "NPS2": 2, "NPS4": 4, "NPS8": 8}

_KEYS = ("vf_num", "accelerator_partition_mode", "memory_partition_mode")
_MAX_MODE = 9
_DEVICE_ORDER = ("74a1", "74a5", "74a2", "74a8", "74a9")
_EIGHT_DIES: Mapping[int, tuple[tuple[str, str], ...]] = {
    1: (("SPX", "NPS1"), ("CPX", "NPS1"), ("CPX", "NPS4")),
    2: (("DPX", "NPS1"), ("CPX", "NPS1")),
    4: (("QPX", "NPS1"), ("CPX", "NPS1"), ("QPX", "NPS4"), ("CPX", "NPS4")),
    8: (("CPX", "NPS1"), ("CPX", "NPS4")),
}
_FOUR_DIES: Mapping[int, tuple[tuple[str, str], ...]] = {
    1: (("SPX", "NPS1"), ("CPX", "NPS1"), ("CPX", "NPS4")),
    2: (("DPX", "NPS1"), ("CPX", "NPS1")),
    4: (("CPX", "NPS1"), ("CPX", "NPS4")),
}
_MI350: Mapping[int, tuple[tuple[str, str], ...]] = {
    1: (("SPX", "NPS1"),),
    2: (("DPX", "NPS2"),),
    8: (("CPX", "NPS2"),),
}
PARTITION_CHOICES: Mapping[str, Mapping[int, tuple[tuple[str, str], ...]]] = {
    "74a1": _EIGHT_DIES,
    "74a5": _EIGHT_DIES,
    "74a9": _EIGHT_DIES,
    "74a2": _FOUR_DIES,
    "74a8": _FOUR_DIES,
    "75a0": _MI350,
    "75a3": _MI350,
}
"""By device id: for each number of VFs, the compute and memory modes that go with it. Another number does not work.

The first pair of a number is what gim sets by itself. MI300X, MI325X, MI300X-HF and MI308X: the driver's own tables at
695afe2. MI350X and MI355X: AMD's release notes of 9.4.0.K, because that source has not these GPUs.
"""

_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\(?:.|\n))+")
_GIM_LINE = re.compile(r"[ \t]*(?:options|install)[ \t]+gim[ \t\\]")
_VF_OPTION = re.compile(r"(?<![\w-])vf[_-]num=")
_BOOT_OPTION = re.compile(r'(?:^|\s)"?(gim\.vf[_-]num=\S*)')
_PLAIN_PLACE = re.compile(
    r"(/etc/modprobe\.d/[^/,\n]+), line ([0-9]+): options[ \t]+gim[^\"'\\]*[ \t]vf_num=[0-9,]+(?:[ \t]|$)"
)
_PLACE = re.compile(r"(.*/([^/,\n]+)), line ([0-9]+): ")


class GimConfig(Value):
    """The contents of /etc/gim_config. `compute`, `memory`: the numbers of the saved partition modes, 0 for default."""

    vf_counts: tuple[int, ...] = (1,)
    compute: int = 0
    memory: int = 0

    def vf_count(self, place: int) -> int:
        """Return the number of VFs of the GPU at a place; the last number is for all further GPUs."""
        return self.vf_counts[min(place, len(self.vf_counts) - 1)]


def parse_config(text: str) -> GimConfig:
    """Return what gim reads from the text of its file.

    Raises:
        ValueError: gim would not use the file, or not as it is written; with the reason.
    """
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise ValueError(f"it has more than {MAX_CONFIG_BYTES} bytes")
    words = [word for word in re.split(r"[ =\n\t]", text) if word]
    values: dict[str, str] = {}
    for key, value in zip(words[::2], (*words[1::2], None), strict=False):
        if key.lower() not in _KEYS:
            raise ValueError(f"gim does not keep '{key}' there: it knows only {', '.join(_KEYS)}, and no comments")
        if value is None:
            raise ValueError(f"{key} has no value")
        values[key.lower()] = value
    counts = tuple(_parse_number(_KEYS[0], part, 1, MAX_VFS) for part in values.get(_KEYS[0], "1").split(","))
    if len(counts) > MAX_GPUS:
        raise ValueError(f"vf_num has {len(counts)} numbers, and gim takes {MAX_GPUS} GPUs at most")
    modes = (_parse_number(key, values.get(key, "0"), 0, _MAX_MODE) for key in _KEYS[1:])
    return GimConfig(counts, *modes)


def _parse_number(key: str, text: str, first: int, last: int) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else -1
    if not first <= number <= last:
        raise ValueError(f"{key} has '{text}', which is no number from {first} to {last}")
    return number


def render_config(config: GimConfig) -> str:
    """Return the text of the file exactly as gim writes it.

    Raises:
        ValueError: gim would not use it; with the reason.
    """
    counts = ",".join(map(str, config.vf_counts))
    text = "".join(
        f"{key}={value}\n" for key, value in zip(_KEYS, (counts, config.compute, config.memory), strict=True)
    )
    parse_config(text)
    return text


def order_gpus(gpus: Iterable[tuple[str, str]], enabled_devices: str) -> tuple[str, ...]:
    """Return addresses in gim's order. `gpus`: address and device id of each; `enabled_devices`: the parameter's text.

    A device id that is not in the table comes last: with it the order is not known, so what is set is read back.
    """
    enabled = {normalize_pci(part) for part in enabled_devices.strip().split(";")} - {None}
    positions = {device: number for number, device in enumerate(_DEVICE_ORDER)}
    taken = [(positions.get(device, len(positions)), address_sort_key(address), address) for address, device in gpus]
    return tuple(address for _, _, address in sorted(taken) if not enabled or address in enabled)


def find_vf_options(files: Sequence[tuple[str, str]], command_line: str) -> tuple[str, ...]:
    """Return where the parameter vf_num is set, as `PATH, line N: TEXT`: it wins over gim's file.

    `files`: path and text of modprobe's files; `command_line`: the kernel's.
    """
    places = [
        f"{path}, line {text.count(chr(10), 0, line.start()) + 1}: {line.group().replace(chr(10), ' ').strip()}"
        for path, text in files
        for line in _LOGICAL_LINE.finditer(text)
        if _GIM_LINE.match(line.group()) and _VF_OPTION.search(line.group().replace("\\\n", ""))
    ]
    boot = _BOOT_OPTION.search(command_line)
    return (*places, *([f"the kernel's command line: {boot.group(1)}"] if boot is not None else ()))


def removal_hint(place: str) -> str:
    """Return how to remove vf_num from a place of `find_vf_options`: a command where the line is a simple one."""
    if (plain := _PLAIN_PLACE.match(place)) is not None:
        return f"sed -i '{plain[2]}s/[ \\t]*vf_num=[0-9,]*//' {shlex.quote(plain[1])}"
    if (match := _PLACE.match(place)) is None:
        return "remove it from the boot loader's file"
    path, own = match[1], f"/etc/modprobe.d/{match[2]}"
    copy = "" if path == own else f"cp {shlex.quote(path)} {shlex.quote(own)}, then "
    return f"{copy}remove vf_num by hand from line {match[3]} of {own}"


def parse_compute_mode(text: str) -> str | None:
    """Return the mode that `accelerator_partition_profile` shows: index, mode and more below a line of titles."""
    words = (text.splitlines() or [""])[-1].split()
    return words[1] if len(words) > 1 and words[1] in COMPUTE_MODES else None


def parse_memory_mode(text: str) -> str | None:
    """Return the mode that `memory_partition_mode` shows in its first line, `memory_partition_mode: NPS4`."""
    key, _, mode = (text.splitlines() or [""])[0].partition(": ")
    return mode if key == MEMORY_FILE and mode in MEMORY_MODES else None


def find_profile_index(text: str, mode: str) -> int | None:
    """Return the number of a compute mode in `accelerator_partition_profile_config`; None if it is not offered."""
    rows = text.partition("\nprofiles:\n")[2].splitlines()
    numbers = (row.split()[0] for row in rows[1:] if row.split()[1:2] == [mode])
    return next((int(number) for number in numbers if re.fullmatch(r"[0-9]{1,6}", number)), None)
