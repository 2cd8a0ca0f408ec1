# SPDX-License-Identifier: Apache-2.0
"""Read parameters of a driver's module in modprobe.d files, and word the line that sets the vGPU scheduler.

nvidia.ko has a registry key for it (`REGISTRY_KEY`). It takes `NVreg_RegistryDwords="Key=0x1;Key2=0x2"` for every GPU,
and `NVreg_RegistryDwordsPerDevice="pci=0000:15:00.0;Key=0x1;pci=0000:16:00.0;Key=0x2"` for single GPUs. Two lines with
the same parameter do not add up: the kernel keeps the last (charp parameters, kernel/params.c). modprobe reads the
*.conf files of its directories sorted by name; a file hides those of its name in later directories (modprobe.d(5)).
vgpuctl writes none of these files. The line that it shows keeps other options, other keys and other GPUs' entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vgpuctl.model.names import normalize_device
from vgpuctl.scheduler.registry_dword import MAX_DWORD, REGISTRY_KEY
from vgpuctl.value import Value

ADMIN_DIRECTORY = "/etc/modprobe.d"
DIRECTORIES = (
    ADMIN_DIRECTORY,
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
VGPUCTL_FILE = f"{ADMIN_DIRECTORY}/vgpuctl-nvidia.conf"
DRIVER_PARAMS_PATH = "/proc/driver/nvidia/params"
ALL_GPUS_PARAMETER, PER_GPU_PARAMETER = "NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice"
_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\(?:.|\n))*\n?")


class ModprobeFile(Value):
    """One modprobe file."""

    path: str
    text: str


class ParameterSetting(Value):
    """One value of a parameter, and its location. `start` and `end`: the value's span in the text."""

    path: str
    line: int
    name: str
    value: str
    start: int
    end: int


def parse_settings(
    files: Iterable[ModprobeFile],
    module: str = "nvidia",
    names: tuple[str, ...] = (ALL_GPUS_PARAMETER, PER_GPU_PARAMETER),
) -> tuple[ParameterSetting, ...]:
    """Return every value of a module's parameters in the order in which the kernel gets them: the last of a name wins.

    `files`: without those that a file of the same name in an earlier directory hides.
    """
    options = re.compile(rf"\s*options\s+{module}\s")
    parameter = _parameter_pattern(names)
    settings: list[ParameterSetting] = []
    for file in sorted(files, key=lambda f: f.path.rpartition("/")[2]):
        for logical_line in _LOGICAL_LINE.finditer(file.text):
            if not options.match(logical_line.group()):
                continue
            for match in parameter.finditer(logical_line.group()):
                group = 2 if match.group(2) is not None else 3
                start = logical_line.start() + match.start(group)
                end = logical_line.start() + match.end(group)
                line = file.text.count("\n", 0, start) + 1
                settings.append(ParameterSetting(file.path, line, match.group(1), match.group(group), start, end))
    return tuple(settings)


def _parameter_pattern(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf'(?<![\w-])({"|".join(names)})=(?:"([^"]*)"|([^\s"]*))')


def line_with_values(files: Iterable[ModprobeFile], module: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return where a line goes and the line, so that a module gets these values of its parameters.

    The line that takes effect now is replaced; its other options stay.
    """
    files = tuple(files)
    last = next(reversed(parse_settings(files, module, tuple(values))), None)
    if last is None:
        line = " ".join([f"options {module}", *(f"{name}={value}" for name, value in values.items())])
        return f"add this line to {ADMIN_DIRECTORY}/vgpuctl-{module}.conf", line
    place, _, line = _line_of(files, last)
    line = line.replace("\\\n", " ").strip()
    for name, value in values.items():
        pattern = _parameter_pattern((name,))
        is_set = pattern.search(line) is not None
        line = pattern.sub(f"{name}={value}", line) if is_set else f"{line} {name}={value}"
    return place, line


def _line_of(files: Iterable[ModprobeFile], setting: ParameterSetting) -> tuple[str, int, str]:
    """Return where the line with a setting is to be replaced, its start in the text, and that line.

    It may have several parts, each but the last with a backslash at its end.
    """
    text = next(f.text for f in files if f.path == setting.path)
    logical = next(m for m in _LOGICAL_LINE.finditer(text) if m.start() <= setting.start < m.end())
    number = text.count("\n", 0, logical.start()) + 1
    place = f"replace line {number} of {setting.path} with this line"
    if not setting.path.startswith(f"{ADMIN_DIRECTORY}/"):
        copy = f"{ADMIN_DIRECTORY}/{setting.path.rpartition('/')[2]}"
        place = f"copy {setting.path} to {copy}, and replace line {number} there with this line"
    return place, logical.start(), logical.group()


def find_dword(all_gpus: str, per_gpu: str, address: str) -> int | None:
    """Return a GPU's dword from the two parameters' values; its own entry takes precedence over the one for all GPUs.

    None: neither sets it, or the entry that takes precedence is no number, which the driver ignores.
    """
    per_gpu_value: str | None = None
    in_section_of_gpu = False
    for key, value in _entries(per_gpu):
        if key == "pci":
            in_section_of_gpu = _parse_address(value) == address
        elif in_section_of_gpu and key == REGISTRY_KEY:
            per_gpu_value = value
    shared_value = next((value for key, value in reversed(_entries(all_gpus)) if key == REGISTRY_KEY), None)
    return _parse_dword(per_gpu_value if per_gpu_value is not None else shared_value)


def find_configured_dword(settings: Iterable[ParameterSetting], address: str) -> int | None:
    """Return the dword that a GPU gets at the next load of the driver; None if no file sets it."""
    effective = {setting.name: setting.value for setting in settings}
    return find_dword(effective.get(ALL_GPUS_PARAMETER, ""), effective.get(PER_GPU_PARAMETER, ""), address)


def find_loaded_dword(params: str, address: str) -> int | None:
    """Return the dword that the loaded driver got for a GPU, from the text of /proc/driver/nvidia/params."""
    values = dict(re.findall(r'^(RegistryDwords(?:PerDevice)?): "?([^"\n]*)"?$', params, re.MULTILINE))
    return find_dword(values.get("RegistryDwords", ""), values.get("RegistryDwordsPerDevice", ""), address)


def line_with_dword(files: Iterable[ModprobeFile], words: Mapping[str, int]) -> tuple[str, str]:
    """Return where a line goes and the line, so that each of these GPUs gets its dword.

    `words`: by address. The line that takes effect now is replaced, because a second one would hide it.
    """
    files = tuple(files)
    last = next((s for s in reversed(parse_settings(files)) if s.name == PER_GPU_PARAMETER), None)
    value = "" if last is None else last.value.replace("\\\n", "")
    for address, dword in words.items():
        value = _replace_dword(value, address, dword)
    if last is None:
        return f"add this line to {VGPUCTL_FILE}", f'options nvidia {PER_GPU_PARAMETER}="{value}"'
    place, start, line = _line_of(files, last)
    line = f"{line[: last.start - start]}{value}{line[last.end - start :]}"
    return place, line.replace("\\\n", " ").strip()


def overridden_settings(settings: Iterable[ParameterSetting]) -> tuple[ParameterSetting, ...]:
    """Return the settings without effect, because a later line sets the same parameter."""
    ordered = tuple(settings)
    effective = {setting.name: setting for setting in ordered}
    return tuple(s for s in ordered if s is not effective[s.name])


def _replace_dword(value: str, address: str, dword: int) -> str:
    """Return the per-GPU value with this GPU's dword set; nothing else changes."""
    parts = [part for part in value.split(";") if part.strip()]
    own_indexes = [
        index
        for index, part in enumerate(parts)
        if _entry_key(part) == "pci" and _parse_address(_entry_value(part)) == address
    ]
    if not own_indexes:
        return ";".join([*parts, f"pci={address}", _dword_entry(dword)])
    start = own_indexes[-1] + 1
    end = next((index for index in range(start, len(parts)) if _entry_key(parts[index]) == "pci"), len(parts))
    other_parts = [part for part in parts[start:end] if _entry_key(part) != REGISTRY_KEY]
    return ";".join([*parts[:start], *other_parts, _dword_entry(dword), *parts[end:]])


def _entries(value: str) -> list[tuple[str, str]]:
    return [(_entry_key(part), _entry_value(part)) for part in value.split(";") if part.strip()]


def _entry_key(part: str) -> str:
    return part.partition("=")[0].strip()


def _entry_value(part: str) -> str:
    return part.partition("=")[2].strip()


def _parse_address(text: str) -> str | None:
    """Return the GPU that `pci=` names: DDDD:BB:SS.F, DDDD:BB:SS or BB:SS."""
    return normalize_device(text)


def _parse_dword(text: str | None) -> int | None:
    try:
        number = int(text, 0) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number <= MAX_DWORD else None


def _dword_entry(dword: int) -> str:
    return f"{REGISTRY_KEY}=0x{dword:08X}"
