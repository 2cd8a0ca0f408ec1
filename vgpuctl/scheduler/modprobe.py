# SPDX-License-Identifier: Apache-2.0
"""The registry word in modprobe's files, text in and text out, and as the loaded driver shows it.

nvidia.ko takes `NVreg_RegistryDwords="Key=0x1;Key2=0x2"` for every GPU, and
`NVreg_RegistryDwordsPerDevice="pci=0000:15:00.0;Key=0x1;pci=0000:16:00.0;Key=0x2"` for one each. Two lines with one
parameter do not add up: the kernel keeps the last (charp parameters, kernel/params.c). modprobe reads *.conf of its
directories by name, a file in the first directory hiding its namesakes (modprobe.d(5)). Only the one value is edited:
comments, other options, other keys and other GPUs' entries stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.address import normal_pci
from vgpuctl.scheduler.registry import KEY, LARGEST
from vgpuctl.value import Value

OWN = "/etc/modprobe.d"
FOLDERS = (OWN, "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
NEW_FILE = f"{OWN}/vgpuctl-nvidia.conf"
PARAMS = "/proc/driver/nvidia/params"
EVERYWHERE, EACH = "NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice"
_HEAD = "# The scheduler of NVIDIA's vGPUs; vgpuctl set-scheduler --via modprobe changes it.\n"
_OPTIONS = re.compile(r"\s*options\s+nvidia\s")
_VALUE = re.compile(r'(?<![\w-])(NVreg_RegistryDwords(?:PerDevice)?)=(?:"([^"]*)"|([^\s"]*))')
_LINES = re.compile(r"(?:[^\\\n]|\\(?:.|\n))*\n?")


class ModprobeFile(Value):
    """One of modprobe's files."""

    path: str
    text: str


class Setting(Value):
    """One value of one of the two parameters, and where it stands. `start` and `end` are the value's in the text."""

    path: str
    line: int
    name: str
    value: str
    start: int
    end: int


def settings(files: Iterable[ModprobeFile]) -> tuple[Setting, ...]:
    """Return every value of both parameters in the order in which the kernel gets them: of a name the last counts."""
    found: list[Setting] = []
    for file in sorted(files, key=lambda f: f.path.rpartition("/")[2]):
        for piece in _LINES.finditer(file.text):
            if not _OPTIONS.match(piece.group()):
                continue
            for match in _VALUE.finditer(piece.group()):
                group = 2 if match.group(2) is not None else 3
                start = piece.start() + match.start(group)
                end = piece.start() + match.end(group)
                line = file.text.count("\n", 0, start) + 1
                found.append(Setting(file.path, line, match.group(1), match.group(group), start, end))
    return tuple(found)


def word_of(everywhere: str, each: str, address: str) -> int | None:
    """Return a GPU's word by the two parameters' values; its own entry goes before the one for every GPU.

    None: neither says anything. A word that is no number counts as nothing, as in the driver.
    """
    own: str | None = None
    here = False
    for key, value in _entries(each):
        if key == "pci":
            here = _address(value) == address
        elif here and key == KEY:
            own = value
    shared = next((value for key, value in reversed(_entries(everywhere)) if key == KEY), None)
    return _number(own if own is not None else shared)


def in_force(found: Iterable[Setting], address: str) -> int | None:
    """Return the word that a GPU has when the driver is loaded next; None when no file says anything."""
    last = {setting.name: setting.value for setting in found}
    return word_of(last.get(EVERYWHERE, ""), last.get(EACH, ""), address)


def loaded(params: str, address: str) -> int | None:
    """Return the word that the loaded driver was given for a GPU, from the text of /proc/driver/nvidia/params."""
    known = dict(re.findall(r'^(RegistryDwords(?:PerDevice)?): "?([^"\n]*)"?$', params, re.MULTILINE))
    return word_of(known.get("RegistryDwords", ""), known.get("RegistryDwordsPerDevice", ""), address)


def merged(files: tuple[ModprobeFile, ...], address: str, word: int) -> ModprobeFile:
    """Return the file that has to be written, with its new text, for a GPU to get this word.

    Raises:
        Refused: two files set the parameter, or one that a package brought.
        InvalidInput: the value cannot be changed by a program.
    """
    mine = [s for s in settings(files) if s.name == EACH]
    paths = list(dict.fromkeys(s.path for s in mine))
    if len(paths) > 1:
        raise Refused(
            f"{EACH} is set in {len(paths)} files, of which only the last counts: {', '.join(paths)}",
            hint="put all of it into one line of one file, then run the command again",
            paths=paths,
        )
    if not mine:
        known = next((f for f in files if f.path == NEW_FILE), None)
        _refuse_other_text(known)
        text = (
            _HEAD if known is None else known.text if known.text.endswith("\n") or not known.text else known.text + "\n"
        )
        return ModprobeFile(NEW_FILE, f'{text}options nvidia {EACH}="pci={address};{_shown(word)}"\n')
    last = mine[-1]
    if not last.path.startswith(f"{OWN}/"):
        raise Refused(
            f"{EACH} is set in {last.path}, which belongs to a package",
            hint=f"copy it to {OWN}, which hides it, then run the command again",
            paths=[last.path],
        )
    if "\\" in last.value:
        raise InvalidInput(
            f"{last.path}:{last.line}: the value of {EACH} goes over several lines",
            hint="write it in one line, then run the command again",
            path=last.path,
        )
    file = next(f for f in files if f.path == last.path)
    _refuse_other_text(file)
    return ModprobeFile(last.path, file.text[: last.start] + _with(last.value, address, word) + file.text[last.end :])


def _refuse_other_text(file: ModprobeFile | None) -> None:
    """Refuse a file whose bytes were not all read, for they would not be written back either."""
    if file is not None and "\ufffd" in file.text:
        raise InvalidInput(
            f"{file.path} is not UTF-8 text",
            hint=f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {file.path}; then run the command again",
            path=file.path,
        )


def lost(found: Iterable[Setting]) -> tuple[Setting, ...]:
    """Return the settings that do not count, because a later line sets the same parameter."""
    ordered = tuple(found)
    last = {setting.name: setting for setting in ordered}
    return tuple(s for s in ordered if s is not last[s.name])


def _with(value: str, address: str, word: int) -> str:
    """Return a value for each GPU in which this GPU has the word; nothing else of it changes."""
    parts = [part for part in value.split(";") if part.strip()]
    own = [at for at, part in enumerate(parts) if _key(part) == "pci" and _address(_text(part)) == address]
    if not own:
        return ";".join([*parts, f"pci={address}", _shown(word)])
    first = own[-1] + 1
    end = next((at for at in range(first, len(parts)) if _key(parts[at]) == "pci"), len(parts))
    kept = [part for part in parts[first:end] if _key(part) != KEY]
    return ";".join([*parts[:first], *kept, _shown(word), *parts[end:]])


def _entries(value: str) -> list[tuple[str, str]]:
    return [(_key(part), _text(part)) for part in value.split(";") if part.strip()]


def _key(part: str) -> str:
    return part.partition("=")[0].strip()


def _text(part: str) -> str:
    return part.partition("=")[2].strip()


def _address(text: str) -> str | None:
    """Return the GPU that `pci=` names: DDDD:BB:SS.F, DDDD:BB:SS or BB:SS."""
    whole = text if "." in text else f"{text}.0"
    return normal_pci(whole if whole.count(":") == 2 else f"0000:{whole}")


def _number(text: str | None) -> int | None:
    try:
        number = int(text, 0) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number <= LARGEST else None


def _shown(word: int) -> str:
    return f"{KEY}=0x{word:08X}"
