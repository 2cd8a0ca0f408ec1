# SPDX-License-Identifier: Apache-2.0
"""Read and edit the registry key of the vGPU scheduler (`REGISTRY_KEY`) in modprobe.d files; text in, text out.

nvidia.ko takes `NVreg_RegistryDwords="Key=0x1;Key2=0x2"` for every GPU, and
`NVreg_RegistryDwordsPerDevice="pci=0000:15:00.0;Key=0x1;pci=0000:16:00.0;Key=0x2"` for single GPUs. Two lines with the
same parameter do not add up: the kernel keeps the last (charp parameters, kernel/params.c). modprobe reads the *.conf
files of its directories sorted by name; a file hides files of the same name in later directories (modprobe.d(5)).
vgpuctl edits one value only: comments, other options, other keys and other GPUs' entries stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.address import normalize_device
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
_FILE_HEADER = "# The scheduler of NVIDIA's vGPUs; vgpuctl set-scheduler --via modprobe changes it.\n"
_OPTIONS = re.compile(r"\s*options\s+nvidia\s")
_PARAMETER = re.compile(r'(?<![\w-])(NVreg_RegistryDwords(?:PerDevice)?)=(?:"([^"]*)"|([^\s"]*))')
_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\(?:.|\n))*\n?")


class ModprobeFile(Value):
    """One modprobe file."""

    path: str
    text: str


class ParameterSetting(Value):
    """One value of one of the two parameters, and its location. `start` and `end`: the value's span in the text."""

    path: str
    line: int
    name: str
    value: str
    start: int
    end: int


def parse_settings(files: Iterable[ModprobeFile]) -> tuple[ParameterSetting, ...]:
    """Return every value of both parameters in the order in which the kernel gets them: the last of a name wins.

    `files`: without those that a file of the same name in an earlier directory hides.
    """
    settings: list[ParameterSetting] = []
    for file in sorted(files, key=lambda f: f.path.rpartition("/")[2]):
        for logical_line in _LOGICAL_LINE.finditer(file.text):
            if not _OPTIONS.match(logical_line.group()):
                continue
            for match in _PARAMETER.finditer(logical_line.group()):
                group = 2 if match.group(2) is not None else 3
                start = logical_line.start() + match.start(group)
                end = logical_line.start() + match.end(group)
                line = file.text.count("\n", 0, start) + 1
                settings.append(ParameterSetting(file.path, line, match.group(1), match.group(group), start, end))
    return tuple(settings)


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


def file_with_dword(files: tuple[ModprobeFile, ...], address: str, dword: int) -> ModprobeFile:
    """Return the file to write, with its new text, so that a GPU gets this dword.

    Raises:
        Refused: two files set the parameter, or one outside /etc/modprobe.d does.
        InvalidInput: vgpuctl cannot edit the value.
    """
    settings = [s for s in parse_settings(files) if s.name == PER_GPU_PARAMETER]
    paths = list(dict.fromkeys(s.path for s in settings))
    if len(paths) > 1:
        raise Refused(
            f"{PER_GPU_PARAMETER} is set in {len(paths)} files, of which only the last takes effect: "
            f"{', '.join(paths)}",
            hint="write all of it in one line of one file, then run the command again",
            paths=paths,
        )
    if not settings:
        vgpuctl_file = next((f for f in files if f.path == VGPUCTL_FILE), None)
        _require_utf8(vgpuctl_file)
        text = _FILE_HEADER if vgpuctl_file is None else vgpuctl_file.text
        if text and not text.endswith("\n"):
            text += "\n"
        return ModprobeFile(
            VGPUCTL_FILE, f'{text}options nvidia {PER_GPU_PARAMETER}="pci={address};{_dword_entry(dword)}"\n'
        )
    last = settings[-1]
    if not last.path.startswith(f"{ADMIN_DIRECTORY}/"):
        raise Refused(
            f"{PER_GPU_PARAMETER} is set in {last.path}, which belongs to a package",
            hint=f"copy it to {ADMIN_DIRECTORY}, which overrides it, then run the command again",
            paths=[last.path],
        )
    if "\\" in last.value:
        raise InvalidInput(
            f"{last.path}:{last.line}: the value of {PER_GPU_PARAMETER} spans several lines",
            hint="write it in one line, then run the command again",
            path=last.path,
        )
    file = next(f for f in files if f.path == last.path)
    _require_utf8(file)
    return ModprobeFile(
        last.path, file.text[: last.start] + _replace_dword(last.value, address, dword) + file.text[last.end :]
    )


def _require_utf8(file: ModprobeFile | None) -> None:
    """Refuse a file with undecodable bytes, which the reader replaced by U+FFFD: they could not be written back."""
    if file is not None and "\ufffd" in file.text:
        raise InvalidInput(
            f"{file.path} is not UTF-8 text",
            hint=f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {file.path}; then run the command again",
            path=file.path,
        )


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
